"""JSON, JUnit XML, the page and the tables, from results made by hand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from pyllamakv.replay.conformance import junit, report
from pyllamakv.replay.conformance.outcome import Result
from pyllamakv.replay.conformance.runner import Run


@pytest.fixture
def run(result: Callable[..., Result]) -> Run:
    results = [
        result("ok", error=1e-13),
        result("refused", prop="clear", detail="cannot go back 4 positions"),
        result("refused", prop="clear", setting="f16", detail="cannot go back 12 positions"),
        result("n/a", prop="clear", model="llada-dense", detail="the model has no memory"),
        result("wrong", model="<b>&</b>", error=0.5, detail="off by 5e-01 </script> [bold]"),
        result("nan", setting="f16"),
        result("died", model="gpt2-dense", detail="SIGABRT: \x1b[0m\x00"),
    ]
    return Run("patched", "libllama.so", {"variant": "patched"}, {}, ["f32", "f16"], ["keep", "clear"], results)


def test_json_has_what_it_documents(run: Run, tmp_path: Path) -> None:
    report.write_json(run, tmp_path / "r.json")
    written = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert written["schema"] == 1
    keys = ("library", "path", "build", "machine", "models", "settings", "properties", "uncovered", "counts", "results")
    assert set(written) == {"schema", *keys}
    assert {tuple(entry) for entry in written["results"]} == {
        ("property", "model", "setting", "library", "outcome", "error", "detail", "seconds")
    }
    assert set(written["properties"]) == {"keep", "clear"}
    assert written["counts"]["refused"] == 2


def test_junit_is_xml_whatever_a_dying_process_wrote(run: Run, tmp_path: Path) -> None:
    junit.write(run.results, tmp_path / "r.xml")
    root = Xml.parse(tmp_path / "r.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert {name: suite.get("tests") for name, suite in suites.items()} == {"keep": "4", "clear": "3"}
    assert (suites["keep"].get("failures"), suites["keep"].get("errors"), suites["clear"].get("skipped")) == (
        "2",
        "1",
        "1",
    )
    assert next(out.text for out in root.iter("system-out")) == "refused: cannot go back 4 positions"
    assert {case.get("name") for case in suites["clear"]} == {
        "llama-dense[f32]",
        "llama-dense[f16]",
        "llada-dense[f32]",
    }


def test_reasons_are_counted_without_their_numbers(run: Run) -> None:
    ((name, reason, count, example),) = report.reasons(run.results)
    assert (name, reason, count, example.detail) == (
        "clear",
        "cannot go back N positions",
        2,
        "cannot go back 4 positions",
    )


def test_page_stands_alone_and_escapes(run: Run, tmp_path: Path) -> None:
    report.write_html(run, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert not re.search(r"(src|href)\s*=", page)
    assert "<b>&</b>" not in page
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found.group(1))
    assert len(data["rows"]) == len(run.results)
    model, prop, setting, outcome, detail, error = data["rows"][4]
    assert (data["models"][model], data["properties"][prop]["name"], data["settings"][setting]) == (
        "<b>&</b>",
        "keep",
        "f32",
    )
    assert (data["outcomes"][outcome], data["details"][detail], error) == ("wrong", run.results[4].detail, 0.5)


@pytest.mark.parametrize("table", [report.by_property, report.by_setting, report.refusals])
def test_tables_show_what_happened(run: Run, table: Callable[[Run], object]) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(table(run))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("[bold]" in text) is (table is not report.refusals)
    assert "2" in text
