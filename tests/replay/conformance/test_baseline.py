"""Two runs: what is worse, what is better, and files that are no baseline."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from pyllamakv.errors import ArgumentError
from pyllamakv.replay.conformance import baseline
from pyllamakv.replay.conformance.outcome import Result, worse


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ("ok", "ok", False),
        ("ok", "refused", True),  # a refusal of what was right
        ("ok", "n/a", True),
        ("ok", "wrong", True),
        ("refused", "ok", False),
        ("refused", "n/a", False),
        ("refused", "wrong", True),
        ("wrong", "refused", False),
        ("wrong", "died", True),
        ("died", "wrong", False),
        ("died", "ok", False),
        ("n/a", "nan", True),
    ],
)
def test_worse(before: str, now: str, is_worse: bool) -> None:
    assert worse(before, now) is is_worse


def test_changes_are_matched_by_check_and_the_worse_come_first(result: Callable[..., Result]) -> None:
    before = [result("died"), result("ok", prop="clear"), result("ok", prop="gone"), result("ok", setting="f16")]
    now = [
        result("ok"),
        result("refused", prop="clear", detail="no"),
        result("wrong", prop="new"),
        result("ok", setting="f16"),
    ]
    found = baseline.changes(before, now)
    assert [(change.now.property, change.worse) for change in found] == [("clear", True), ("keep", False)]
    lines = baseline.summary(found)
    assert lines[0].startswith("worse: clear ok -> refused: 1 (llama-dense f32")
    assert lines[-1] == "against the baseline: 1 better, 1 worse"


def test_nothing_changed(result: Callable[..., Result]) -> None:
    assert baseline.summary(baseline.changes([result("ok")], [result("ok")])) == [
        "against the baseline: 0 better, 0 worse"
    ]


def test_reads_what_is_written(tmp_path: Path, result: Callable[..., Result]) -> None:
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"schema": baseline.SCHEMA, "results": [asdict(result("ok", error=1e-13))]}), "utf-8")
    assert baseline.read(file) == [result("ok", error=1e-13)]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "results": [{"outcome": "ok"}]}', '{"schema": 99, "results": []}'],
)
def test_what_is_no_baseline(tmp_path: Path, text: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(text, "utf-8")
    with pytest.raises(ArgumentError, match=r"b\.json"):
        baseline.read(file)
