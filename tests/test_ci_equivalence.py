"""ci/equivalence: how counts are read, and what is within the limit. Counting itself takes minutes and a valgrind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load() -> ModuleType:
    path = Path(__file__).parents[1] / "ci" / "equivalence.py"
    spec = importlib.util.spec_from_file_location("ci_equivalence", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_equivalence"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


equivalence: Any = load()


def test_count_of_perf() -> None:
    assert equivalence.parse_perf("a program's own words\n1234567,,instructions:u,99,100.00,,\n") == 1234567


def test_perf_without_counters() -> None:
    with pytest.raises(ValueError):
        equivalence.parse_perf("<not supported>,,instructions:u,0,100.00,,\n")
    with pytest.raises(ValueError, match="no instructions"):
        equivalence.parse_perf("")


def test_count_of_callgrind() -> None:
    assert equivalence.parse_callgrind("==7== Events    : Ir\n==7== Collected : 3765173663\n") == 3765173663
    with pytest.raises(ValueError, match="no instructions"):
        equivalence.parse_callgrind("==7== Process terminating with default action of signal 4 (SIGILL)")


def test_same_tokens_and_ratio() -> None:
    count = equivalence.Count("m", 256, "valgrind", 1000, 1004, ("a", "a"))
    assert count.ratio == pytest.approx(0.004)
    assert count.same
    assert not equivalence.Count("m", 256, "valgrind", 1000, 1000, ("a", "b")).same


def test_a_run_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_perf", lambda command: ["sh", "-c", "echo broken >&2; exit 3"])
    folders = {"stock": tmp_path, "patched": tmp_path}
    with pytest.raises(equivalence.BuildError, match=r"exit code 3(.|\n)*broken"):
        equivalence.measure(tmp_path / "program", folders, "m", tmp_path / "m.gguf", 1, "perf", keep=tmp_path)
