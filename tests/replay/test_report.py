"""Outcomes, the JSON contract, and a page that needs nothing from elsewhere."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.replay import report, runner
from pyllamakv.replay.runner import Result
from pyllamakv.replay.scenario import all_scenarios

SCENARIO = all_scenarios()[0]


def check(ok: bool = True, nmse: float | None = 1e-9, finite: bool = True) -> dict[str, Any]:
    return {
        "label": "answer 1",
        "ok": ok,
        "finite": finite,
        "nmse": nmse,
        "first": nmse,
        "bound": 1e-6,
        "tokens": 4,
        "same": 4,
        "detail": "",
    }


def judged(*events: dict[str, Any], code: int | None = 0, said: str = "") -> Result:
    return runner._judge(SCENARIO, "toy", "stock", events, code, said)


END = {"end": True, "seconds": 1.0, "peak_mib": 10.0}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (judged({"check": check()}, END), "ok"),
        (judged({"check": check()}, {"check": check(False, 0.3)}, END), "wrong"),
        (judged({"check": check(False, None, finite=False)}, END), "nan"),
        (judged({"step": "decode"}, code=-6), "died"),
        (judged({"step": "decode"}, code=None), "died"),
        (judged({"error": "ModelLoadError: no"}, code=1), "error"),
        (judged(code=1, said="Traceback (most recent call last): boom"), "error"),
        (judged(END), "error"),  # a scenario that checks nothing proves nothing
    ],
    ids=lambda value: value.outcome if isinstance(value, Result) else value,
)
def test_outcome(result: Result, outcome: str) -> None:
    assert result.outcome == outcome
    assert result.detail


def test_death_names_the_last_step() -> None:
    result = judged({"step": "the first"}, {"step": "copy half of it"}, code=-6)
    assert result.detail == "SIGABRT at: copy half of it"


def results() -> list[Result]:
    events = [{"check": check(nmse=10.0**-n)} for n in (9, 8, 7)]
    stock = judged(*events, {"check": check(False, 0.3)}, {"measure": "tokens per second", "value": 12.5}, END)
    patched = runner._judge(SCENARIO, "toy", "patched", [*events, END], 0, "")
    return [stock, patched]


def test_json(tmp_path: Path) -> None:
    report.write_json(results(), tmp_path / "results.json")
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["schema"] == report.SCHEMA
    for key in ("scenario", "model", "library", "outcome", "detail"):
        assert all(key in result for result in data["results"])
    assert [result["outcome"] for result in data["results"]] == ["wrong", "ok"]


def test_html_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    report.write_html(results(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")

    class Reader(HTMLParser):
        void = frozenset({"meta", "br", "line", "circle", "polyline"})

        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.loads: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.loads += [str(v) for k, v in attrs if k in ("src", "href") and not str(v).startswith("#")]
            if tag in ("script", "link", "iframe", "img"):
                self.loads.append(tag)
            if tag not in self.void:
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert tag in self.void or self.open.pop() == tag

    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.loads == []
    assert SCENARIO.name in page
    assert "off by 3e-01" in page
    assert page.count("<circle") == 7


def test_table_has_a_column_for_each_library() -> None:
    table = report.table(results())
    assert [str(column.header) for column in table.columns] == ["scenario", "model", "stock", "patched", "seen first"]
