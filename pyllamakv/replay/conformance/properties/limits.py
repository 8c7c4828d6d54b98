"""Arguments that no caller should pass end in an error, not in the end of the process."""

from __future__ import annotations

from typing import Any

from pyllamakv.errors import DecodeError, StateError

from ..case import PARAMS, Case
from ..outcome import NotApplicable, Wrong
from ..registry import prop
from ..subject import Subject, cut

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


_IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"n_seq_max": 0},
    {"n_seq_max": 100_000},
    {"n_batch": 0},
    {"n_ubatch": 0},
    {"n_batch": 64, "n_ubatch": 512},
    {"n_batch": 3, "n_ubatch": 3, "n_seq_max": 4},
    {"n_ctx": 1, "n_seq_max": 2},
    {"type_v": 8, "flash_attn": False},
    {"type_k": 30, "type_v": 30},
    {"type_k": 26},
    {"type_k": 9},
)


@prop(
    "impossible-contexts",
    "Impossible sizes and types give no context, or one that works.",
    defects=("D2",),
    needs=("no-memory", "once"),
)
def impossible_contexts(case: Case) -> None:
    for over in _IMPOSSIBLE:
        try:
            window = case.engine.open(**{**PARAMS, **case.setting.params(), **over})
        except DecodeError:
            continue
        with window:
            window.try_decode((5,), 0)


@prop("three-sequences", "A context for three sequences works.", needs=("no-memory",))
def three_sequences(case: Case) -> None:
    if not case.facts.memory:
        raise NotApplicable("the model has no memory")
    subject = Subject(case, n_seq_max=3)
    for seq in range(3):
        subject.read(seq, case.tokens(50, 1 + seq))
    subject.unchanged("one of three sequences")


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
        if window.try_decode((5,), 0, seq) == 0:
            raise Wrong(f"a token was decoded for sequence {seq}")
        try:
            window.load(seq, blob)
        except StateError:
            continue
        raise Wrong(f"a state was restored into sequence {seq}")
    subject.check(0, "after calls with ids that do not exist")


@prop("invalid-batches", "Batches with impossible tokens or positions are errors and change nothing.", defects=("D7",))
def invalid_batches(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30))
    vocab = case.engine.n_vocab
    for tokens, pos in (((-1,), 30), ((vocab,), 30), ((2**31 - 1,), 30), ((5,), 12), ((), 30), ((5,), -7)):
        if subject.window.try_decode(tokens, pos) == 0 if tokens else False:
            raise Wrong(f"tokens {tokens} at {pos} were decoded behind 30 tokens")
        subject.holds_positions(0, f"after tokens {tokens} at {pos}")
    subject.check(0, "after invalid batches")


@prop(
    "beyond-the-table",
    "Positions beyond a learned table are an error and change nothing.",
    defects=("D7",),
    needs=("learned",),
)
def beyond_the_table(case: Case) -> None:
    subject = Subject(case)
    start, train = 0, case.facts.n_ctx_train
    while start < train - 20:
        count = min(100, train - 20 - start)
        subject.read(0, case.tokens(count, start))
        start += count
    code = subject.window.try_decode(case.tokens(40, 9), start)
    if code == 0:
        raise Wrong(f"position {start + 39} was decoded with a table of {train}")
    subject.check(0, "after positions beyond the table")


@prop(
    "shift-beyond-the-table",
    "A shift beyond a learned table is an error, at the latest when decoding.",
    defects=("D7",),
    needs=("learned",),
)
def shift_beyond_the_table(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30))
    subject.window.seq_add(0, 0, -1, case.facts.n_ctx_train)
    low, high = subject.window.positions(0)
    if (low, high) == (0, 29):
        subject.refused(f"llama_memory_seq_add(0, 0, -1, {case.facts.n_ctx_train})")
    if subject.window.try_decode((5,), high + 1) == 0:
        raise Wrong(f"position {high + 1} was decoded with a table of {case.facts.n_ctx_train}")


@prop(
    "memory-full", "A batch that finds no room is an error and changes nothing.", defects=("E4",), needs=("attention",)
)
def memory_full(case: Case) -> None:
    if case.facts.learned_positions:
        raise NotApplicable("the position table ends before the context")
    subject = Subject(case, n_ctx=512, n_batch=512)
    subject.read(0, case.tokens(100))
    subject.read(1, case.tokens(100, 2))
    before = subject.window.positions(0)
    code = subject.window.try_decode(case.tokens(420, 3), 100)
    if code == 0:
        raise NotApplicable("there is room for it, or a window makes it")
    if subject.window.positions(0) != before:
        raise Wrong(f"positions were {before}, are {subject.window.positions(0)} after llama_decode returned {code}")
    if code != 1:
        raise Wrong(f"llama_decode returned {code} where 1 means no room")
    twin = Subject(case, n_ctx=512, n_batch=512)
    twin.read(0, case.tokens(100))
    if twin.window.seq_rm(0, 98, -1):
        # what could be taken back before can be taken back still
        if not subject.window.seq_rm(0, 98, -1):
            raise Wrong("two tokens could be rolled back before the batch, and cannot after it")
        subject.reads[0] = cut(subject.reads[0], 98)
    subject.unchanged("after a batch that found no room")
