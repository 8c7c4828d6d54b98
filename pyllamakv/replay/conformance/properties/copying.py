"""Copies: whole and in part, within a stream and across, next to what is there."""

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


@prop("copy-whole", "A copied sequence continues like the original, whatever was decoded before it.", defects=("B6",))
def copy_whole(case: Case) -> None:
    subject = Subject(case)
    subject.read(1, case.tokens(50, 9))
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the sequence that was copied")
