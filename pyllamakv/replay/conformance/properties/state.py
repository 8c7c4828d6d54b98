"""Saving and restoring: the identity at any moment, and a refusal that leaves no gap where it cannot be."""

from __future__ import annotations

from ..case import Case
from ..registry import prop
from ..subject import Subject


@prop("save-restore", "A restored sequence continues like the original, under another id as well.")
def save_restore(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    blob = source.save(0)
    there.placed = False
    there.load(1, blob, source.reads[0])
    there.check(1, "the restored sequence")


@prop("save-restore-rollback", "Rolling a restored sequence back is exact or refused.", defects=("E3", "B1"))
def save_restore_rollback(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(200))
    there.load(1, source.save(0), source.reads[0])
    there.remove(1, 196)
    there.check(1, "the restored sequence rolled back")


@prop("restore-empty", "Restoring the state of an empty sequence empties the destination.", defects=("B8",))
def restore_empty(case: Case) -> None:
    subject, empty = Subject(case), Subject(case)
    blob = empty.window.save(0)
    for seq in (0, 1):
        subject.read(seq, case.tokens(40))
    subject.load(1, blob, ())
    subject.holds_positions(1, "after restoring an empty sequence")
    subject.read(1, case.tokens(30, 3))
    subject.check(1, "a new sequence after restoring an empty one")
    subject.check(0, "the other sequence")
