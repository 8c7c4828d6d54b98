"""Poison: NaN that one request brought in must end with the request."""

from __future__ import annotations

from ..case import Case
from ..registry import prop
from ..subject import Subject


@prop("poison-removed", "A sequence decoded after a poisoned one was removed is like any other.", defects=("C1", "C2"))
def poison_removed(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0)
    subject.remove(0)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after a poisoned sequence was removed")


@prop("poison-tail", "Removing a poisoned tail leaves the sequence as it was.", defects=("C1",))
def poison_tail(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(0)
    subject.remove(0, 30)
    subject.check(0, "after a poisoned tail was removed")


@prop("poison-neighbour", "A neighbour is untouched once the poisoned sequence is removed.", defects=("C1",))
def poison_neighbour(case: Case) -> None:
    subject = Subject(case)
    subject.poison(1)
    subject.remove(1)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "beside a removed poisoned sequence")


@prop("poison-clear", "clear(data=false) ends poison.", defects=("C1", "C2"))
def poison_clear(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0)
    subject.clear(data=False)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after a clear")


@prop("poison-keep", "seq_keep ends the poison of the others.", defects=("C1", "C3"))
def poison_keep(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(1)
    subject.keep(0)
    subject.check(0, "the sequence that was kept")
