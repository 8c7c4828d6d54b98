"""Copies and keeping: whole and in part, within a stream and across, next to what is there."""

from __future__ import annotations

from ..case import Case
from ..registry import prop
from ..subject import Subject


@prop("copy-part", "A copied prefix continues like the prefix.", defects=("B6",))
def copy_part(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1, 0, 24)
    subject.check(1, "the copied prefix")
    subject.check(0, "the sequence that was copied")


@prop("copy-part-late", "A copied prefix beyond the window's length is right or refused.", defects=("B6", "B1"))
def copy_part_late(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(200))
    subject.copy(0, 1, 0, 100)
    subject.check(1, "the copied prefix")
    subject.check(0, "the sequence that was copied")


@prop("copy-whole", "A copied sequence continues like the original, whatever was decoded before it.", defects=("B6",))
def copy_whole(case: Case) -> None:
    subject = Subject(case)
    subject.read(1, case.tokens(50, 9))
    subject.remove(1)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the sequence that was copied")


@prop("copy-late", "A copied sequence that outgrew its window continues like the original.")
def copy_late(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(200))
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the sequence that was copied")


@prop("copy-diverge", "Two copies go their own ways.", defects=("B7",))
def copy_diverge(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.read(0, case.tokens(20, 2))
    subject.read(1, case.tokens(20, 3))
    subject.unchanged("one of two that were equal")


@prop(
    "copy-then-rollback",
    "Rolling a copy back leaves the original alone, and the other way round.",
    defects=("B7", "A4"),
)
def copy_then_rollback(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.remove(1, 38)
    subject.check(1, "the copy rolled back")
    subject.check(0, "the original")


@prop("copy-onto", "A whole copy replaces what the destination held.", defects=("B6",))
def copy_onto(case: Case) -> None:
    subject = Subject(case)
    subject.read(1, case.tokens(50, 9))
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the sequence that was copied")


@prop("copy-nothing", "Copies to itself, of nothing and of an empty range change nothing.")
def copy_nothing(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    for src, dst, p0, p1 in ((0, 0, -1, -1), (0, 1, 100, 200), (0, 1, 8, 8)):
        subject.window.seq_cp(src, dst, p0, p1)
        subject.holds_positions(0, f"after llama_memory_seq_cp({src}, {dst}, {p0}, {p1})")
    subject.window.seq_rm(1, -1, -1)
    subject.check(0, "after copies of nothing")


@prop("copy-ends", "Copying both ends is removing the middle.", defects=("B6",), needs=("attention-only",))
def copy_ends(case: Case) -> None:
    removed, subject = Subject(case), Subject(case)
    for each in (removed, subject):
        each.read(0, case.tokens(40))
    removed.remove_middle(0, 28, 36)
    subject.copy(0, 1, 0, 28)
    subject.window.seq_cp(0, 1, 36, -1)
    if subject.window.positions(1)[1] != 39:
        subject.check(1, "the first end alone")
        subject.refused("llama_memory_seq_cp(0, 1, 36, -1)")
    got, want = case.tail(subject.window, 1, 40), case.tail(removed.window, 0, 40)
    case.same(got, want, "the copy of both ends", bound=case.bound())
    subject.check(0, "the sequence that was copied")


@prop("keep", "seq_keep empties the others and leaves the one as it is.", defects=("C3",))
def keep(case: Case) -> None:
    subject = Subject(case, n_seq_max=4)
    for seq in (0, 1, 2):
        subject.read(seq, case.tokens(40, 1 + seq))
    subject.keep(1)
    for seq in (0, 2):
        subject.holds_positions(seq, "after keeping another")
    subject.check(1, "the kept sequence")
    subject.read(0, case.tokens(30, 9))
    subject.check(0, "a new sequence")


@prop("keep-empty", "Keeping an empty sequence empties the memory.")
def keep_empty(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.keep(1)
    for seq in (0, 1):
        subject.holds_positions(seq, "after keeping an empty sequence")
    subject.read(0, case.tokens(30, 9))
    subject.check(0, "a new sequence")


@prop("keep-copy", "Keeping a copy keeps all of it.", defects=("A1", "B7"))
def keep_copy(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.keep(1)
    subject.holds_positions(0, "after keeping its copy")
    subject.check(1, "the kept copy")


@prop("clear", "A cleared memory is a fresh one, with its data or without.")
def clear(case: Case) -> None:
    for data in (False, True):
        subject = Subject(case)
        subject.read(0, case.tokens(50))
        subject.read(1, case.tokens(20, 2))
        subject.clear(data=data)
        for seq in (0, 1):
            subject.holds_positions(seq, "after a clear")
            subject.read(seq, case.tokens(30, 3 + seq))
        subject.unchanged("a new sequence after a clear")
