"""Queued work must not outlive what it refers to: copies and shifts followed at once by a save or a restore."""

from __future__ import annotations

from ..case import Case
from ..registry import prop
from ..subject import Subject


@prop("copy-then-save", "Saving a fresh copy saves the copy.", defects=("A1",))
def copy_then_save(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    source.copy(0, 1)
    blob = source.save(1)
    there.placed = False
    there.load(0, blob, source.reads[0])
    there.check(0, "the restored copy")


@prop("copy-then-restore", "A restore after a copy to the same sequence wins over the copy.", defects=("A2",))
def copy_then_restore(case: Case) -> None:
    other, subject = Subject(case), Subject(case)
    other.read(0, case.tokens(30, 2))
    blob = other.save(0)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.load(1, blob, other.reads[0])
    subject.check(1, "the restored sequence")
    subject.check(0, "the sequence that was copied")


@prop(
    "shift-then-save",
    "A state saved right after a context shift continues like the original.",
    defects=("A3",),
    needs=("shift",),
)
def shift_then_save(case: Case) -> None:
    def removed() -> Subject:
        subject = Subject(case)
        subject.read(0, case.tokens(40))
        subject.remove_middle(0, 4, 8)
        return subject

    source, there = removed(), Subject(case)
    source.shift(0, 8, -1, -4, removed)
    there.window.load(0, source.save(0))
    got, want = case.tail(there.window, 0, 36), case.tail(source.window, 0, 36)
    case.same(got, want, "the restored shift", bound=case.bound())
