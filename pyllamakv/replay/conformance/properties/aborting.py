"""Decodes that end early: what remains must be true, for the sequence and for its neighbours."""

from __future__ import annotations

from ..case import Case
from ..outcome import NotApplicable, Wrong
from ..registry import prop
from ..subject import Subject, cut


def _questions(case: Case, count: int) -> int:
    """How often the callback is asked while ``count`` tokens are decoded in a fresh context."""
    with case.open() as window:
        window.abort_after(None)
        if window.try_decode(case.tokens(count, 2), 0):
            raise NotApplicable("not even a fresh context decodes this")
        return window.asked


def _honest(subject: Subject, seq: int, whole: tuple[tuple[int, ...], ...], what: str) -> None:
    """The memory is right about how far it came, or empty."""
    high = subject.window.positions(seq)[1]
    subject.reads[seq] = cut(whole, high + 1)
    subject.check(seq, f"{what}, which says it holds {high + 1} tokens")


def _aborted(case: Case, micro_batches: float, count: int, before: int) -> None:
    questions = _questions(case, 64)
    subject = Subject(case)
    if before:
        subject.read(0, case.tokens(before))
    subject.read(1, case.tokens(30, 9))
    tokens = case.tokens(count, 2)
    subject.window.abort_after(int(questions * micro_batches))
    code = subject.window.try_decode(tokens, before)
    subject.window.abort_after(None)
    if code == 0:
        raise NotApplicable("the decode was through before the callback said stop")
    _honest(subject, 0, (*subject.reads.get(0, ()), tokens), f"after an abort (code {code})")
    subject.check(1, "the neighbour of an aborted decode")


@prop("abort-first", "A decode aborted in its first micro-batch leaves the truth.", defects=("B5",))
def abort_first(case: Case) -> None:
    _aborted(case, 0.5, 50, 40)


@prop("abort-start", "The first decode of a sequence, aborted at once, leaves the truth.", defects=("B5",))
def abort_start(case: Case) -> None:
    _aborted(case, 0.1, 50, 0)


@prop("abort-later", "A decode aborted in a later micro-batch leaves the truth.", defects=("B5",))
def abort_later(case: Case) -> None:
    _aborted(case, 1.5, 180, 20)


@prop("abort-token", "The decode of one token, aborted, leaves the truth.", defects=("B5", "A4"))
def abort_token(case: Case) -> None:
    with case.open() as window:
        window.decode(case.tokens(20), 0)
        window.abort_after(None)
        window.decode((5,), 20)
        questions = window.asked
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    subject.window.abort_after(questions // 2)
    code = subject.window.try_decode((5,), 40)
    subject.window.abort_after(None)
    if code == 0:
        raise NotApplicable("the decode was through before the callback said stop")
    _honest(subject, 0, (*subject.reads[0], (5,)), f"after an abort (code {code})")


@prop("abort-two", "An aborted decode of two sequences leaves the truth in both.", defects=("B5",))
def abort_two(case: Case) -> None:
    questions = _questions(case, 64)
    subject = Subject(case)
    whole = {seq: (case.tokens(20, 4 + seq), case.tokens(60, 6 + seq)) for seq in (0, 1)}
    for seq in (0, 1):
        subject.read(seq, whole[seq][0])
    rows = [(whole[seq][1][i], 20 + i, seq) for seq in (0, 1) for i in range(60)]
    subject.window.abort_after(int(questions * 1.5))
    code = subject.window.try_batch(rows)
    subject.window.abort_after(None)
    if code == 0:
        raise NotApplicable("the decode was through before the callback said stop")
    for seq in (0, 1):
        high = subject.window.positions(seq)[1]
        if high > 79:
            raise Wrong(f"sequence {seq} ends at {high} after a batch up to 79")
        _honest(subject, seq, whole[seq], f"sequence {seq} after an abort (code {code})")


@prop("abort-then-save", "What is saved after an abort is what is there.", defects=("B5", "E4"))
def abort_then_save(case: Case) -> None:
    questions = _questions(case, 64)
    subject, there = Subject(case), Subject(case)
    whole = (case.tokens(40), case.tokens(180, 2))
    subject.read(0, whole[0])
    subject.window.abort_after(int(questions * 1.5))
    code = subject.window.try_decode(whole[1], 40)
    subject.window.abort_after(None)
    if code == 0:
        raise NotApplicable("the decode was through before the callback said stop")
    reads = cut(whole, subject.window.positions(0)[1] + 1)
    there.load(1, subject.window.save(0), reads)
    there.check(1, f"the state after an abort (code {code})")


@prop("abort-pushed", "A sequence that an aborted batch had no part in stays as it is.", defects=("B5",))
def abort_pushed(case: Case) -> None:
    questions = 0
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        subject = Subject(case, n_seq_max=3)
        # states lie in the order of their first decode, and a micro-batch takes neighbours: 2 is in the way of 0 and 1
        for seq in (0, 2, 1):
            subject.read(seq, case.tokens(20, 1 + seq))
        rows = [(token, 20 + i, seq) for seq in (0, 1) for i, token in enumerate(case.tokens(20, 4 + seq))]
        if not questions:
            with case.open(n_seq_max=3) as window:
                window.abort_after(None)
                if window.try_batch([(token, pos - 20, seq) for token, pos, seq in rows]):
                    raise NotApplicable("not even a fresh context decodes this")
                questions = window.asked
        subject.window.abort_after(int(questions * part))
        code = subject.window.try_batch(rows)
        subject.window.abort_after(None)
        if code == 0:
            continue
        subject.check(2, f"the sequence beside a batch aborted after {part:.0%} (code {code})")
        for seq in (0, 1):
            whole = (*subject.reads[seq], case.tokens(20, 4 + seq))
            _honest(subject, seq, whole, f"sequence {seq} after {part:.0%} of a batch (code {code})")
        subject.window.close()


@prop("abort-shift", "An abort while keys are turned leaves them turned once.", defects=("B5", "A3"), needs=("shift",))
def abort_shift(case: Case) -> None:
    def shifted() -> Subject:
        subject = Subject(case)
        subject.read(0, case.tokens(40))
        subject.window.seq_add(0, 0, -1, 8)
        if subject.window.positions(0)[1] != 47:
            raise NotApplicable("the shift is refused")
        return subject

    want = case.tail(shifted().window, 0, 48)
    counting = shifted()
    counting.window.abort_after(None)
    counting.window.try_decode((5,), 48)
    for stop in sorted({*range(6), counting.window.asked // 4, counting.window.asked // 2}):
        subject = shifted()
        subject.window.abort_after(stop)
        code = subject.window.try_decode((5,), 48)
        subject.window.abort_after(None)
        high = subject.window.positions(0)[1]
        what = f"a decode aborted after {stop} questions (code {code})"
        if code == 0:
            case.same((subject.window.logits(),), want[:1], what, bound=case.bound())
        elif high == 47:
            case.same(case.tail(subject.window, 0, 48), want, f"after {what}", bound=case.bound())
        elif high != -1:
            raise Wrong(f"after {what} the last position is {high}")
        subject.window.close()
