"""Batches of several sequences, and what contexts for embeddings do with them."""

from __future__ import annotations

import numpy as np

from pyllamakv.errors import DecodeError

from ..case import Case
from ..outcome import NotApplicable, Refused, Wrong
from ..registry import prop
from ..subject import Subject


def _together(case: Case, lengths: tuple[int, int], *, mixed: bool, before: int = 0) -> None:
    subject = Subject(case)
    for seq in (0, 1) if before else ():
        subject.read(seq, case.tokens(before, 7 + seq))
    parts = {seq: case.tokens(lengths[seq], 1 + seq) for seq in (0, 1)}
    rows = [(token, before + i, seq) for seq in (0, 1) for i, token in enumerate(parts[seq])]
    if mixed:
        rows.sort(key=lambda row: (row[1], row[2]))
    code = subject.window.try_batch(rows)
    if code:
        subject.refused(f"llama_decode of two sequences (code {code})")
    for seq in (0, 1):
        subject.reads[seq] = (*subject.reads.get(seq, ()), parts[seq])
    # micro-batches are cut otherwise than in the oracle: sums of a recurrent scan differ by more than a placement
    subject.unchanged("one of two sequences of a batch")


@prop("batch-of-two", "Two sequences in one batch are what each is alone.")
def batch_of_two(case: Case) -> None:
    _together(case, (30, 30), mixed=False)


@prop("batch-of-two-mixed", "Two sequences that take turns in a batch are what each is alone.")
def batch_of_two_mixed(case: Case) -> None:
    _together(case, (30, 30), mixed=True)


@prop("batch-of-two-uneven", "Two sequences of unequal length in one batch are what each is alone.")
def batch_of_two_uneven(case: Case) -> None:
    _together(case, (50, 9), mixed=False)


@prop("batch-of-two-later", "Two sequences that go on in one batch are what each is alone.")
def batch_of_two_later(case: Case) -> None:
    _together(case, (1, 1), mixed=False, before=40)


@prop("batch-shared", "A token of two sequences is in both.")
def batch_shared(case: Case) -> None:
    subject = Subject(case)
    tokens = case.tokens(20)
    code = subject.window.try_batch([(token, i, (0, 1)) for i, token in enumerate(tokens)])
    if code:
        for seq in (0, 1):
            subject.holds_positions(seq, f"after llama_decode returned {code}")
        raise Refused(f"llama_decode returned {code}: {subject.reason()}")
    subject.reads = {0: (tokens,), 1: (tokens,)}
    subject.unchanged("one of two that share their tokens")


@prop("outputs-everywhere", "Logits of every token of a batch are those of its last one, wherever it ends.")
def outputs_everywhere(case: Case) -> None:
    tokens = case.tokens(20)
    with case.open() as window:
        code = window.try_batch([(token, i, 0) for i, token in enumerate(tokens)], outputs=True)
        if code:
            raise NotApplicable(f"llama_decode returned {code}")
        rows = [window.logits_at(i) for i in (9, 19)]
    want = [case.oracle((), (tokens[: i + 1],))[0] for i in (9, 19)]
    # the last layer computes the asked rows alone: another shape, another order of sums
    case.same(rows, want, "logits of a token of a batch", bound=case.bound())


@prop("embeddings-context", "A context for embeddings decodes or says that it cannot.", needs=("no-memory",))
def embeddings_context(case: Case) -> None:
    if not case.facts.memory:
        raise NotApplicable("the model has no memory")
    with case.open(embeddings=True) as window:
        code = window.try_batch([(token, i, 0) for i, token in enumerate(case.tokens(40))])
        if code:
            if window.positions(0) != (-1, -1):
                raise Wrong(f"llama_decode returned {code} but positions are {window.positions(0)}")
            raise Refused(f"llama_decode returned {code}")


@prop(
    "pooled-over-ubatches",
    "A pooled embedding over several micro-batches is that of one, or an error.",
    needs=("no-memory",),
)
def pooled_over_ubatches(case: Case) -> None:
    rows = [(token, i, 0) for i, token in enumerate(case.tokens(120))]
    found = []
    for n_ubatch in (256, 64):
        with case.open(embeddings=True, pooling_type=1, n_ubatch=n_ubatch) as window:
            try:
                code = window.try_batch(rows, outputs=True)
                found.append(None if code else window.pooled(0))
            except DecodeError:
                found.append(None)
    one, several = found
    if one is None:
        raise NotApplicable("no pooled embedding in one micro-batch either")
    if several is None:
        raise Refused("no pooled embedding over several micro-batches")
    if not np.isfinite(one).all():
        raise NotApplicable("the pooled embedding itself is not finite")
    case.same((several,), (one,), "a pooled embedding over several micro-batches", bound=max(case.bound(), 1e-6))
