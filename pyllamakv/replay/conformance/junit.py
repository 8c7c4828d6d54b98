"""Results as JUnit XML: a suite for each property, a case for each model and setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from pyllamakv.paths import atomic_write

from .outcome import Result

__all__ = ["to_junit", "write"]

# XML 1.0 has no other control characters, whatever a dying process wrote
_FORBIDDEN = {code: " " for code in range(32) if chr(code) not in "\t\n\r"}


def to_junit(results: Sequence[Result]) -> Xml.Element:
    """``testsuites``: wrong and nan are failures, died and error errors, n/a skipped; a refusal passes and says why."""
    root = Xml.Element("testsuites", name="pyllamakv conformance")
    by_property: dict[str, list[Result]] = {}
    for result in results:
        by_property.setdefault(result.property, []).append(result)
    for name, group in by_property.items():
        counts = {
            "tests": len(group),
            "failures": sum(r.outcome in ("wrong", "nan") for r in group),
            "errors": sum(r.outcome in ("died", "error") for r in group),
            "skipped": sum(r.outcome == "n/a" for r in group),
        }
        suite = Xml.SubElement(root, "testsuite", name=name)
        for key, value in counts.items():
            suite.set(key, str(value))
        suite.set("time", f"{sum(r.seconds for r in group):.3f}")
        for result in group:
            _case(suite, result)
    return root


def _case(suite: Xml.Element, result: Result) -> None:
    case = Xml.SubElement(
        suite,
        "testcase",
        classname=f"{result.library}.{result.property}",
        name=f"{result.model}[{result.setting}]",
        time=f"{result.seconds:.3f}",
    )
    detail = result.detail.translate(_FORBIDDEN)
    kind = {"wrong": "failure", "nan": "failure", "died": "error", "error": "error", "n/a": "skipped"}
    if result.outcome in kind:
        found = Xml.SubElement(case, kind[result.outcome], message=detail)
        if result.outcome != "n/a":
            found.set("type", result.outcome)
    elif result.outcome == "refused":
        Xml.SubElement(case, "system-out").text = f"refused: {detail}"


def write(results: Sequence[Result], path: Path) -> None:
    """Write :func:`to_junit`, whole or not at all."""
    with atomic_write(path) as file:
        file.write(Xml.tostring(to_junit(results), encoding="utf-8", xml_declaration=True))
