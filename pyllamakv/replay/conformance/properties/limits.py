"""Arguments that no caller should pass end in an error, not in the end of the process."""

from __future__ import annotations

from pyllamakv.errors import DecodeError, StateError

from ..case import Case
from ..outcome import Wrong
from ..registry import prop
from ..subject import Subject

#: Sequence ids that a context of two sequences does not have.
OUTSIDE = (2, 7, 255, 256, 100_000, -2, -(2**31), 2**31 - 1)


@prop("batch-too-long", "A batch longer than n_batch is an error and leaves the memory as it was.", defects=("D1",))
def batch_too_long(case: Case) -> None:
    subject = Subject(case, n_batch=64)
    subject.read(0, case.tokens(30))
    if subject.window.try_decode(case.tokens(65, 2), 30) == 0:
        raise Wrong("a batch of 65 tokens was taken with n_batch 64")
    subject.check(0, "after a batch that was refused")


@prop(
    "more-sequences-than-batch",
    "n_seq_max beyond n_batch gives no context.",
    defects=("D2",),
    needs=("no-memory", "once"),
)
def more_sequences_than_batch(case: Case) -> None:
    try:
        case.engine.open(n_ctx=512, n_batch=4, n_ubatch=4, n_seq_max=8)
    except DecodeError:
        return
    raise Wrong("a context of 8 sequences was made with n_batch 4")


@prop("foreign-sequence-ids", "Calls with sequence ids that do not exist do nothing.", defects=("D3",))
def foreign_sequence_ids(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30))
    window = subject.window
    blob = window.save(0)
    for seq in OUTSIDE:
        window.seq_cp(seq, 0)
        window.seq_cp(0, seq)
        window.seq_keep(seq)
        if window.positions(seq) != (-1, -1):
            raise Wrong(f"sequence {seq} has positions {window.positions(seq)}")
        window.seq_add(seq, 0, -1, 2)
        window.seq_div(seq, 0, -1, 2)
        window.save(seq)
        if seq >= 0:  # a negative id means every sequence
            window.seq_rm(seq, -1, -1)
        try:
            window.load(seq, blob)
        except StateError:
            continue
        raise Wrong(f"a state was restored into sequence {seq}")
    subject.check(0, "after calls with ids that do not exist")
