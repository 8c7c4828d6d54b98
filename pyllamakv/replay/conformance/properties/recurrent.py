"""Rollback of recurrent states through the planes that ``n_rs_seq`` keeps: exact, or refused."""

from __future__ import annotations

from collections.abc import Sequence

from ..case import Case
from ..outcome import Wrong
from ..registry import prop
from ..subject import Subject


def _subject(case: Case, *reads: Sequence[int]) -> Subject:
    subject = Subject(case)
    subject.read(0, *reads)
    return subject


def _singles(case: Case, count: int, seed: int = 2) -> list[tuple[int, ...]]:
    return [(token,) for token in case.tokens(count, seed)]


@prop("rollback-after-batch", "Three tokens back after a batch.", defects=("A4",), needs=("rollback",))
def rollback_after_batch(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.remove(0, 37)
    subject.check(0, "three tokens back")


@prop(
    "rollback-after-singles",
    "Three tokens back after tokens that were decoded one by one.",
    defects=("A4",),
    needs=("rollback",),
)
def rollback_after_singles(case: Case) -> None:
    subject = _subject(case, case.tokens(30), *_singles(case, 6))
    subject.remove(0, 33)
    subject.check(0, "three single tokens back")


@prop(
    "rollback-over-a-batch",
    "Back over all of a short batch, as speculative decoding does.",
    defects=("A4",),
    needs=("rollback",),
)
def rollback_over_a_batch(case: Case) -> None:
    subject = _subject(case, case.tokens(30), case.tokens(4, 2))
    subject.remove(0, 30)
    subject.check(0, "before the short batch")


@prop("rollback-across-ubatches", "Back over the border of two micro-batches.", defects=("A4",), needs=("rollback",))
def rollback_across_ubatches(case: Case) -> None:
    subject = _subject(case, case.tokens(130))
    subject.remove(0, 125)
    subject.check(0, "five tokens back, two of them in the last micro-batch")


@prop("rollback-twice", "Two tokens back and two more.", defects=("A4",), needs=("rollback",))
def rollback_twice(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.remove(0, 38)
    subject.remove(0, 36)
    subject.check(0, "twice two tokens back")


@prop(
    "rollback-then-decode", "Back, on, and back again: verify and reject, twice.", defects=("A4",), needs=("rollback",)
)
def rollback_then_decode(case: Case) -> None:
    subject = _subject(case, case.tokens(30), case.tokens(5, 2))
    subject.remove(0, 32)
    subject.read(0, case.tokens(5, 3))
    subject.remove(0, 34)
    subject.check(0, "after two rejected drafts")


@prop("rollback-too-far", "Beyond the planes there is no way back.", defects=("A4",), needs=("rollback",))
def rollback_too_far(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.remove(0, 40 - case.setting.n_rs_seq - 4)
    subject.check(0, "far back")


@prop(
    "rollback-then-copy",
    "A copy after a rollback is a copy of what was rolled back.",
    defects=("A4",),
    needs=("rollback",),
)
def rollback_then_copy(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.remove(0, 37)
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the original")


@prop("rollback-of-copy", "A copy rolls back like the original, and alone.", defects=("A4",), needs=("rollback",))
def rollback_of_copy(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.copy(0, 1)
    subject.remove(1, 37)
    subject.check(1, "the copy rolled back")
    subject.remove(0, 38)
    subject.check(0, "the original rolled back otherwise")


@prop(
    "rollback-then-save",
    "A state saved after a rollback is the state rolled back.",
    defects=("A4",),
    needs=("rollback",),
)
def rollback_then_save(case: Case) -> None:
    subject, there = _subject(case, case.tokens(40)), Subject(case)
    subject.remove(0, 37)
    there.load(1, subject.save(0), subject.reads[0])
    there.check(1, "the restored sequence")
    subject.check(0, "the sequence that was saved")


@prop(
    "rollback-after-restore",
    "A restored state rolls back to the truth or not at all.",
    defects=("A4", "E3"),
    needs=("rollback",),
)
def rollback_after_restore(case: Case) -> None:
    subject, there = _subject(case, case.tokens(40)), Subject(case)
    there.read(1, case.tokens(25, 9))  # planes of somebody else
    there.load(1, subject.save(0), subject.reads[0])
    there.remove(1, 37)
    there.check(1, "the restored sequence rolled back")


@prop(
    "rollback-beside",
    "Rolling one of two sequences of a batch back leaves the other alone.",
    defects=("A4",),
    needs=("rollback",),
)
def rollback_beside(case: Case) -> None:
    subject = Subject(case)
    tokens = {seq: case.tokens(20, 1 + seq) for seq in (0, 1)}
    code = subject.window.try_batch([(tokens[seq][i], i, seq) for seq in (0, 1) for i in range(20)])
    if code:
        raise Wrong(f"llama_decode of two sequences returned {code}")
    subject.reads = {seq: (tokens[seq],) for seq in (0, 1)}
    subject.remove(0, 17)
    subject.unchanged("one of two sequences of a batch")


@prop(
    "rollback-removed",
    "Planes of a removed sequence do not serve the next one.",
    defects=("A4", "C2"),
    needs=("rollback",),
)
def rollback_removed(case: Case) -> None:
    subject = _subject(case, case.tokens(40))
    subject.remove(0, 37)
    subject.remove(0)
    subject.read(0, (9,))
    subject.read(0, (10,))
    subject.remove(0, 1)
    subject.check(0, "one token back, of two")
