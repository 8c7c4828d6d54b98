"""A run for people and programs: tables in the terminal, JSON, and an HTML matrix that opens offline."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllamakv.paths import atomic_write

from .baseline import SCHEMA
from .outcome import BAD, ORDER, Result
from .registry import UNCOVERED, Property, all_properties
from .runner import Run

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["by_property", "by_setting", "html", "reasons", "refusals", "to_json", "write_html", "write_json"]

STYLE = {"ok": "green", "refused": "cyan", "n/a": "dim", "wrong": "yellow", "nan": "magenta", "died": "red"}

_NUMBER = re.compile(r"-?\b\d+(\.\d+)?\b")


def to_json(run: Run) -> dict[str, Any]:
    """The run as one object, ``schema`` 1:

    ``library`` and ``path`` (what it was called, which file was loaded), ``build`` (what it says of itself),
    ``machine``, ``models`` (name to facts), ``settings`` (names asked for; without those that do not differ for a
    model), ``properties`` (name to ``means``, ``defects``, ``group``), ``uncovered`` (rows of the
    catalogue without a property, and why), ``counts`` (outcome to number), and ``results``:
    a list of {property, model, setting, library, outcome, error, detail, seconds}.
    """
    return {
        "schema": SCHEMA,
        "library": run.label,
        "path": run.library,
        "build": run.build,
        "machine": f"{platform.system()} {platform.machine()}",
        "models": run.models,
        "settings": run.settings,
        "properties": {p.name: _about(p) for p in all_properties() if p.name in run.properties},
        "uncovered": UNCOVERED,
        "counts": dict(_counts(run.results)),
        "results": [asdict(result) for result in run.results],
    }


def _about(found: Property) -> dict[str, Any]:
    return {"means": found.means, "defects": list(found.defects), "group": found.group}


def _counts(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.outcome for result in results)


def write_json(run: Run, path: Path) -> None:
    """Write :func:`to_json`, whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(to_json(run), indent=1) + "\n").encode())


def by_property(run: Run) -> Table:
    """Property x outcome, with the largest error and an example of what is not right."""
    names = {p.name: ", ".join(p.defects) for p in all_properties()}
    return _table(f"Conformance of {run.label}", "property", run, lambda r: r.property, names)


def by_setting(run: Run) -> Table:
    """Setting x outcome."""
    return _table("By setting", "setting", run, lambda r: r.setting, {})


def _table(title: str, heading: str, run: Run, key: Any, about: dict[str, str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    groups: dict[str, list[Result]] = {}
    for result in run.results:
        groups.setdefault(key(result), []).append(result)
    present = [outcome for outcome in ORDER if any(r.outcome == outcome for r in run.results)]
    out = Table(title=title)
    for name in (heading, *(["defects"] if about else [])):
        out.add_column(name)
    for name in present:
        out.add_column(name, justify="right", style=STYLE.get(name))
    out.add_column("an example", overflow="fold")
    for name in [n for n in about or groups if n in groups]:
        counts = _counts(groups[name])
        cells = [str(counts[outcome] or "") for outcome in present]
        bad = next((r for r in groups[name] if r.outcome in BAD), None)
        # square brackets of a message are no markup
        example = Text("" if bad is None else f"{bad.model} {bad.setting}: {bad.detail}")
        out.add_row(name, *([about[name]] if about else []), *cells, example)
    counts = _counts(run.results)
    out.add_section()
    out.add_row("all", *([""] if about else []), *(str(counts[outcome] or "") for outcome in present), "")
    return out


def reasons(results: Sequence[Result]) -> list[tuple[str, str, int, Result]]:
    """Property, reason with its numbers taken out, how often, and one such result; the most frequent first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "refused":
            groups.setdefault((result.property, _NUMBER.sub("N", result.detail)), []).append(result)
    rows = [(name, reason, len(found), found[0]) for (name, reason), found in groups.items()]
    return sorted(rows, key=lambda row: (row[0], -row[2]))


def refusals(run: Run) -> Table:
    """Why calls were refused."""
    from rich.table import Table
    from rich.text import Text

    out = Table(title="Refusals", show_header=True)
    for name in ("property", "times", "reason", "for example"):
        out.add_column(name, overflow="fold")
    for name, reason, count, example in reasons(run.results):
        out.add_row(name, str(count), Text(reason), f"{example.model} {example.setting}")
    return out


def html(run: Run) -> str:
    """One page with everything in it: models x properties, a filter by setting, details on a click."""
    from jinja2 import Environment, StrictUndefined

    template = resources.files(__package__).joinpath("templates/conformance.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    properties = [p for p in all_properties() if p.name in run.properties]
    models = sorted({r.model for r in run.results})
    settings = list(dict.fromkeys(r.setting for r in run.results))
    index = {name: i for i, name in enumerate(p.name for p in properties)}
    details: dict[str, int] = {}
    rows = [
        [
            models.index(r.model),
            index[r.property],
            settings.index(r.setting),
            ORDER.index(r.outcome),
            details.setdefault(r.detail, len(details)),
            None if r.error is None else float(f"{r.error:.1e}"),
        ]
        for r in run.results
    ]
    data = {
        "models": models,
        "facts": [run.models.get(name, {}) for name in models],
        "settings": settings,
        "properties": [{"name": p.name, "means": p.means, "defects": p.defects, "group": p.group} for p in properties],
        "outcomes": list(ORDER),
        "details": list(details),
        "rows": rows,
    }
    return environment.from_string(template).render(
        run=run,
        # the only characters that could end the script element
        data=json.dumps(data).replace("<", "\\u003c"),
        counts=_counts(run.results),
        order=ORDER,
        reasons=reasons(run.results),
        uncovered=UNCOVERED,
        machine=f"{platform.system()} {platform.machine()}",
    )


def write_html(run: Run, path: Path) -> None:
    """Write :func:`html`, whole or not at all."""
    with atomic_write(path) as file:
        file.write(html(run).encode())
