"""Removal: a suffix, a middle, a prefix, everything. What is gone must be gone in every part of the memory."""

from __future__ import annotations

from ..case import Case
from ..outcome import NotApplicable, Wrong
from ..registry import prop
from ..subject import Subject


def _roll_back(case: Case, count: int, keep: int) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(count))
    subject.remove(0, keep)
    subject.check(0, f"after {count} tokens less {count - keep}")


@prop("remove-long-suffix", "Far rollback: as if it had never been decoded.", defects=("B1", "B2"))
def remove_long_suffix(case: Case) -> None:
    _roll_back(case, 200, 60)


@prop("remove-suffix", "Rollback of a few tokens: as if they had never been decoded.", defects=("B1",))
def remove_suffix(case: Case) -> None:
    _roll_back(case, 40, 36)


@prop("remove-suffix-late", "Rollback of a few tokens beyond the window's length.", defects=("B1", "B2"))
def remove_suffix_late(case: Case) -> None:
    _roll_back(case, 200, 190)


@prop("remove-last", "Rollback of one token beyond the window's length.", defects=("B1", "B2"))
def remove_last(case: Case) -> None:
    _roll_back(case, 200, 199)


@prop("remove-again", "Rollback, decode and rollback again: only what is left counts.", defects=("B1", "A4"))
def remove_again(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(100))
    subject.remove(0, 96)
    subject.read(0, case.tokens(20, 2))
    subject.remove(0, 112)
    subject.check(0, "after two rollbacks")


@prop("remove-without-positions", "A batch without positions goes on behind what a rollback left.", defects=("B2",))
def remove_without_positions(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(200))
    subject.remove(0, 192)
    got = subject.window.decode((9, 10, 11), None)
    want = case.oracle(subject.reads[0], ((9, 10, 11),))
    case.same((got,), want, "a batch without positions", bound=case.bound())
    subject.reads[0] = (*subject.reads[0], (9, 10, 11))
    subject.check(0, "after a batch without positions")


@prop("remove-whole", "A removed sequence is empty, its neighbour untouched, its id like new.", defects=("B2",))
def remove_whole(case: Case) -> None:
    subject = Subject(case)
    for seq in (0, 1):
        subject.read(seq, case.tokens(80, 1 + seq))
    subject.remove(0)
    subject.holds_positions(0, "after the removal")
    subject.check(1, "the neighbour")
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "a new sequence under the same id")


@prop("remove-everything", "seq_rm(-1, -1, -1) empties every sequence.", defects=("B3",))
def remove_everything(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.read(1, case.tokens(40)[:20])
    subject.remove(-1)
    for seq in (0, 1):
        subject.holds_positions(seq, "after removing everything")
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "a new sequence after removing everything")


@prop("remove-every-suffix", "seq_rm(-1, p0, -1) rolls every sequence back, or none.", defects=("B3",))
def remove_every_suffix(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.read(1, case.tokens(38, 2))
    subject.remove(-1, 36)
    subject.unchanged("after rolling every sequence back")


@prop("remove-nothing", "Removing positions that are not there changes nothing.")
def remove_nothing(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    for p0, p1 in ((40, -1), (100, 200), (5, 5), (50, 10)):
        subject.window.seq_rm(0, p0, p1)
        subject.holds_positions(0, f"after llama_memory_seq_rm(0, {p0}, {p1})")
    subject.window.seq_rm(1, 0, -1)
    subject.check(0, "after removing nothing")


def _ends(case: Case, p0: int, p1: int) -> None:
    """A removal that has no fresh-context oracle: placement and a detour through a state must not matter."""
    here, there = Subject(case), Subject(case)
    here.read(0, case.tokens(40))
    there.read(0, case.tokens(50, 9))
    there.load(1, here.save(0), here.reads[0])
    here.remove_middle(0, p0, p1)
    if not there.window.seq_rm(1, p0, p1):
        raise Wrong("one of two equal sequences could be cut, the other not")
    for window, seq in ((here.window, 0), (there.window, 1)):
        if window.positions(seq)[1] != 39:
            raise Wrong(f"positions end at {window.positions(seq)[1]} in place of 39")
    want = case.tail(here.window, 0, 40)
    case.same(case.tail(there.window, 1, 40), want, "the same removal elsewhere", bound=case.bound())
    whole = case.oracle((case.tokens(40),))
    if all((a == b).all() for a, b in zip(want, whole, strict=True)):
        raise Wrong("what was removed is still attended to")
    there.check(0, "the neighbour")


@prop(
    "remove-middle",
    "Removing a middle does the same wherever the sequence lies, and leaves neighbours alone.",
    needs=("attention-only",),
)
def remove_middle(case: Case) -> None:
    _ends(case, 28, 36)


@prop("remove-prefix", "Removing a prefix does the same wherever the sequence lies.", needs=("attention-only",))
def remove_prefix(case: Case) -> None:
    _ends(case, 0, 32)


@prop(
    "remove-middle-recurrent",
    "A state that has taken a middle in is not said to have lost it.",
    defects=("B4",),
    needs=("recurrent",),
)
def remove_middle_recurrent(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.remove_middle(0, 4, 8)
    if case.facts.attention:
        raise Wrong("the attention half lost what the recurrent half still knows")
    subject.check(0, "after a removal that llama.h defines as void")
    raise NotApplicable("void by definition where the memory is a recurrent state alone: pkv_memory_remove tells")


@prop(
    "remove-middle-strict",
    "pkv_memory_remove refuses what a recurrent state cannot forget.",
    defects=("B4",),
    needs=("recurrent", "pkv"),
)
def remove_middle_strict(case: Case) -> None:
    for p0, p1 in ((4, 8), (0, 8)):
        subject = Subject(case)
        subject.read(0, case.tokens(40))
        if case.engine.lib.pkv_memory_remove(subject.window.ctx, 0, p0, p1):
            raise Wrong(f"positions [{p0}, {p1}) were removed from a recurrent state")
        subject.check(0, "after a refused removal")
