"""One check: outcomes from exceptions, and children that die, hang, or are at fault themselves."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.errors import DecodeError, StateError
from pyllamakv.replay.conformance.outcome import NonFinite, NotApplicable, Refused, Wrong
from pyllamakv.replay.conformance.registry import Property
from pyllamakv.replay.conformance.worker import Fork, check

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")


class NoCase:
    """As much of a case as a property gets that asks for nothing."""

    def needs(self, names: tuple[str, ...]) -> None:
        assert names == ()


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, "ok"),
        (Refused("why"), "refused"),
        (NotApplicable("why"), "n/a"),
        (NonFinite("why"), "nan"),
        (Wrong("why"), "wrong"),
        (DecodeError("why", code=1), "wrong"),
        (StateError("why"), "wrong"),
    ],
)
def test_outcomes(raised: Exception | None, outcome: str) -> None:
    def run(_: Any) -> None:
        if raised is not None:
            raise raised

    found = check(Property("p", "It is.", (), (), run, 1.0), NoCase())  # type: ignore[arg-type]
    assert found == (outcome, "" if raised is None else "why")


@pytest.fixture
def fork() -> Iterator[Fork]:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise:
        yield Fork(noise)


@needs_fork
def test_what_a_child_returns_comes_back(fork: Fork) -> None:
    assert fork(lambda: {"pid": os.getppid()}, 10) == ({"pid": os.getpid()}, "")


@needs_fork
def test_a_child_that_dies_says_of_what(fork: Fork) -> None:
    def die() -> None:
        os.write(2, b"noise\n/src/llama-kv-cache.cpp:7: GGML_ASSERT(is_full) failed\nmore noise\n")
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGABRT)

    assert fork(die, 10) == (None, "SIGABRT: llama-kv-cache.cpp:7: GGML_ASSERT(is_full) failed")


@needs_fork
def test_a_child_that_hangs_is_ended(fork: Fork) -> None:
    start = time.monotonic()
    assert fork(lambda: time.sleep(60), 0.2) == (None, "no end after 0.2 s")
    assert time.monotonic() - start < 10


@needs_fork
def test_a_fault_of_the_property_itself_is_told_from_a_death(fork: Fork) -> None:
    value, how = fork(lambda: {}["missing"], 10)
    assert value is None
    assert how == "exit code 70: KeyError: 'missing'"


@needs_fork
@pytest.mark.parametrize("call", [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_children_leave_nothing_behind(fork: Fork, call: Callable[[], None]) -> None:
    def handles() -> int:
        folder = Path("/proc/self/fd")
        return len(list(folder.iterdir())) if folder.is_dir() else 0

    before = handles()
    for _ in range(3):
        assert fork(call, 10)[0] is None
    assert handles() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
