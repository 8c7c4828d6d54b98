"""Running llama.cpp's own tests: which, with what, and what counts as a failure. The programs here are stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import pin, upstream_tests
from pyllamakv.build.upstream_tests import (
    TESTS,
    Finding,
    Outcome,
    UpstreamTest,
    choose,
    reason,
    run_all,
    run_one,
    table,
)
from pyllamakv.errors import ArgumentError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")

PASSES = UpstreamTest("passes", "passes", (), "")
FAILS = UpstreamTest("fails", "fails", ("-m", "{model}"), "")


def write(prefix: Path, program: str, script: str) -> None:
    path = prefix / "bin" / program
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The builds of both variants, with no compiler asked."""

    def build(_programs: set[str], settings: Any, _progress: object) -> Path:
        return tmp_path / str(settings.variant)

    monkeypatch.setattr(upstream_tests, "_build", build)
    return lambda variant: tmp_path / variant


def test_every_test_is_in_the_pinned_tree() -> None:
    files = pin.load().files
    for test in TESTS:
        assert f"tests/{test.program}.cpp" in files, test.name


def test_names_are_unique_and_say_what_they_are_about() -> None:
    assert len({test.name for test in TESTS}) == len(TESTS)
    assert all(test.about for test in TESTS)


def test_chosen_by_part_of_a_name() -> None:
    assert [test.name for test in choose(["rollback"])] == ["test-recurrent-state-rollback"]
    assert choose([]) == list(TESTS)
    with pytest.raises(ArgumentError, match="test-save-load-state"):
        choose(["no-such-test"])


def test_files_are_put_into_the_arguments(tmp_path: Path) -> None:
    write(tmp_path, "echoes", 'test "$2" = /some/model.gguf')
    test = UpstreamTest("echoes", "echoes", ("-m", "{model}"), "")

    assert run_one(test, tmp_path, {"{model}": "/some/model.gguf"}).passed
    assert not run_one(test, tmp_path, {"{model}": "/another"}).passed


def test_a_test_that_never_ends_has_failed(tmp_path: Path) -> None:
    write(tmp_path, "sleeps", "exec sleep 60")

    outcome = run_one(UpstreamTest("sleeps", "sleeps", (), "", limit=1), tmp_path, {})

    assert not outcome.passed
    assert "1 s" in outcome.why


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("a\nx.cpp:1: GGML_ASSERT(n > 0) failed\nb failed", "x.cpp:1: GGML_ASSERT(n > 0) failed"),
        ("one PASS\n\x1b[1;31mtwo FAIL\x1b[0m\nthree", "two FAIL"),
        ("first\nlast", "last"),
        ("", "it said nothing"),
    ],
)
def test_reason_is_the_line_that_says_why(output: str, line: str) -> None:
    assert reason(output, 1) == f"{line} (exit code 1)"


def test_only_what_stock_passes_counts(prefixes: Callable[[str], Path], tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write(prefixes("patched"), "passes", "exit 0")
    write(prefixes("patched"), "fails", "echo 'this FAILED'; exit 3")
    write(prefixes("stock"), "fails", "exit 0")

    worse = run_all([PASSES, FAILS], model=model)
    assert [finding.counts for finding in worse] == [False, True]
    assert worse[1].asked.why == "this FAILED (exit code 3)"

    write(prefixes("stock"), "fails", "echo 'stock FAILED'; exit 3")
    shared = run_all([PASSES, FAILS], model=model)
    assert [finding.counts for finding in shared] == [False, False]
    assert "fails: stock fails too: stock FAILED" in table(shared)

    # asked of stock itself, there is nothing to share
    assert [finding.counts for finding in run_all([FAILS], "stock", model=model)] == [True]


def test_a_model_must_be_named_where_one_is_needed() -> None:
    with pytest.raises(ArgumentError, match="--model"):
        run_all([FAILS])


def test_table_has_a_line_for_each() -> None:
    findings = [Finding(PASSES, Outcome(True, 1.0)), Finding(replace(FAILS, name="f"), Outcome(False, 2.0, "why"))]

    lines = table(findings, "stock").splitlines()

    assert len(lines) == 4
    assert "stock" in lines[0]
    assert lines[-1] == "f: why"


@pytest.mark.slow
@pytest.mark.xdist_group("build")
def test_one_that_needs_no_model_passes() -> None:
    (finding,) = run_all(choose(["test-batch-alloc"]))

    assert finding.asked.passed, finding.asked.why
