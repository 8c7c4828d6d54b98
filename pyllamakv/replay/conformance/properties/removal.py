"""Removal: a suffix, a middle, a prefix, everything. What is gone must be gone in every part of the memory."""

from __future__ import annotations

from ..case import Case
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
