"""Queued work must not outlive what it refers to: a copy or a shift followed at once by something else."""

from __future__ import annotations

from ..case import Case
from ..outcome import Refused, Wrong
from ..registry import prop
from ..subject import Subject


@prop("copy-then-save", "Saving a fresh copy saves the copy.", defects=("A1",))
def copy_then_save(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    source.copy(0, 1)
    there.placed = case.facts.n_swa > 0  # a purged window comes back in other cells
    there.load(0, source.save(1), source.reads[0])
    there.check(0, "the restored copy")


@prop("copy-then-save-whole", "Saving the whole context right after a copy saves the copy.", defects=("A1",))
def copy_then_save_whole(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    source.copy(0, 1)
    blob = source.window.save_whole()
    there.refusable(lambda: there.window.try_load_whole(blob), "llama_state_set_data")
    there.reads = dict(source.reads)
    there.unchanged("a sequence of the restored context")


@prop("copy-then-restore", "A restore after a copy to the same sequence wins over the copy.", defects=("A2",))
def copy_then_restore(case: Case) -> None:
    other, subject = Subject(case), Subject(case)
    other.read(0, case.tokens(30, 2))
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.load(1, other.save(0), other.reads[0])
    subject.check(1, "the restored sequence")
    subject.check(0, "the sequence that was copied")


@prop("copy-then-remove", "A copy that is removed at once does not come back.", defects=("A2",))
def copy_then_remove(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.remove(1)
    subject.read(1, case.tokens(30, 2))
    subject.check(1, "a new sequence in place of the copy")
    subject.check(0, "the sequence that was copied")


@prop("copy-then-clear", "A copy that is cleared at once does not come back.", defects=("A2",))
def copy_then_clear(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.clear(data=False)
    for seq in (0, 1):
        subject.read(seq, case.tokens(30, 2 + seq))
    subject.unchanged("a new sequence after the clear")


@prop("copy-then-replace", "A copy does not see what its source becomes afterwards.", defects=("A1", "A2"))
def copy_then_replace(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.remove(0)
    subject.read(0, case.tokens(30, 2))
    subject.check(1, "the copy")
    subject.check(0, "what replaced its source")


@prop("copy-chain", "A copy of a copy is the copy, all sources gone.", defects=("A1",))
def copy_chain(case: Case) -> None:
    subject = Subject(case, n_seq_max=4)
    subject.read(0, case.tokens(40))
    subject.copy(0, 1)
    subject.copy(1, 2)
    subject.remove(0)
    subject.remove(1)
    subject.check(2, "the copy of the copy")


def _removed(case: Case) -> Subject:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.remove_middle(0, 4, 8)
    return subject


def _shifted(case: Case) -> Subject:
    """40 tokens less [4, 8), those behind moved up; the keys' rotation still queued."""
    subject = _removed(case)
    subject.shift(0, 8, -1, -4, lambda: _removed(case))
    return subject


@prop(
    "shift-then-save",
    "A state saved right after a context shift continues like the original.",
    defects=("A3",),
    needs=("shift",),
)
def shift_then_save(case: Case) -> None:
    source, there = _shifted(case), case.open()
    there.load(0, source.save(0))
    case.same(case.tail(there, 0, 36), case.tail(source.window, 0, 36), "the restored shift", bound=case.bound())


@prop(
    "shift-then-copy",
    "A copy right after a context shift continues like the original.",
    defects=("A3",),
    needs=("shift",),
)
def shift_then_copy(case: Case) -> None:
    source = _shifted(case)
    want = case.tail(_shifted(case).window, 0, 36)
    source.window.seq_cp(0, 1)
    case.same(case.tail(source.window, 1, 36), want, "the copy of the shift", bound=case.bound())
    case.same(case.tail(source.window, 0, 36), want, "the copied shift", bound=case.bound())


@prop("shift-then-remove", "A shift and a removal of the end may change places.", defects=("A3",), needs=("shift",))
def shift_then_remove(case: Case) -> None:
    first, second = _shifted(case), _removed(case)
    done = first.window.seq_rm(0, 30, -1), second.window.seq_rm(0, 34, -1)
    if done[0] != done[1]:
        raise Wrong("one of two equal sequences could be rolled back, the other not")
    second.window.seq_add(0, 8, -1, -4)
    if not done[0]:
        got, want = case.tail(first.window, 0, 36), case.tail(second.window, 0, 36)
        case.same(got, want, "a removal was refused but something changed", bound=case.bound())
        raise Refused(first.reason() or second.reason())
    got, want = case.tail(first.window, 0, 30), case.tail(second.window, 0, 30)
    case.same(got, want, "shift before removal", bound=case.bound())


@prop(
    "shift-then-restore",
    "A restore over a sequence whose shift is queued is not shifted.",
    defects=("A3",),
    needs=("shift",),
)
def shift_then_restore(case: Case) -> None:
    other, subject = Subject(case), _shifted(case)
    other.read(0, case.tokens(30, 2))
    subject.load(0, other.save(0), other.reads[0])
    subject.check(0, "the restored sequence")


@prop("shift-then-clear", "A queued shift ends with a clear.", defects=("A3",), needs=("shift",))
def shift_then_clear(case: Case) -> None:
    subject = _shifted(case)
    subject.clear(data=False)
    subject.read(0, case.tokens(30, 2))
    subject.check(0, "a new sequence after the clear")
