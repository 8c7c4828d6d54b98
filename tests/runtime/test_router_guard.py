"""One llama_decode of several sequences, one of them NaN: the others have their outputs, at their places in the batch.

Through the C API, which takes embeddings of several sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyllamakv as kv
from pyllamakv.runtime.router import NON_FINITE

OPTIONS = {"n_ctx": 256, "n_seq_max": 3, "type_k": "f32", "type_v": "f32"}


@pytest.fixture(params=["qwen2moe", "cohere2moe", "lfm2moe"])
def model(request: pytest.FixtureRequest, zoo: Path) -> Iterator[kv.Model]:
    """Attention, a sliding window, a recurrent state beside attention."""
    if kv.native.load().optional("pkv_router_faults") is None:
        pytest.skip("the library was built without clean-up-moe-router")
    with kv.Model(zoo / f"{request.param}-moe.gguf") as model:
        yield model


def decode(ctx: kv.Context, rows: np.ndarray, at: Sequence[tuple[int, int]], outputs: Sequence[int]) -> int:
    """One llama_decode of embeddings [n, n_embd]; ``at``: (sequence, position) of each. Its return code."""
    ffi, n = ctx.library.ffi, len(rows)
    data = np.ascontiguousarray(rows, np.float32)
    pos = np.array([p for _, p in at], np.int32)
    wanted = np.isin(np.arange(n), outputs).astype(np.int8)
    owners = [ffi.new("llama_seq_id[1]", [s]) for s, _ in at]
    pointers, counts = ffi.new("llama_seq_id *[]", owners), ffi.new("int32_t[]", [1] * n)
    batch = ffi.new("struct llama_batch *")
    batch.n_tokens, batch.token = n, ffi.NULL
    batch.embd, batch.pos = ffi.from_buffer("float[]", data), ffi.from_buffer("llama_pos[]", pos)
    batch.n_seq_id, batch.seq_id, batch.logits = counts, pointers, ffi.from_buffer("int8_t[]", wanted)
    return int(ctx.library.lib.llama_decode(ctx._use(), batch[0]))


def logits(ctx: kv.Context, i: int) -> np.ndarray | None:
    row = ctx.library.lib.llama_get_logits_ith(ctx._use(), i)
    return None if row == ctx.library.ffi.NULL else ctx._floats(row, ctx.model.n_vocab).copy()


def faults(ctx: kv.Context) -> list[tuple[int, int]]:
    room: Any = ctx.library.ffi.new("struct pkv_router_fault[4]")
    n = ctx.library.lib.pkv_router_faults(ctx._use(), room, 4)
    return [(room[i].seq, room[i].pos) for i in range(n)]


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("n_ubatch", [64, 4])
def test_the_rest_of_the_batch_comes_through(model: kv.Model, flash_attn: bool, unified: bool, n_ubatch: int) -> None:
    options = {**OPTIONS, "flash_attn": flash_attn, "kv_unified": unified, "n_ubatch": n_ubatch}
    values = np.random.default_rng(5).standard_normal((3, 6, model.n_embd_inp)).astype(np.float32)
    values[1, 3] = np.nan
    with model.context(**options) as ctx, model.context(**options) as right:
        for context in (ctx, right):
            for seq in range(3):
                context.decode(range(1, 9), seq=seq)
        at = [(seq, 8 + i) for i in range(6) for seq in range(3)]
        rows = np.stack([values[seq, pos - 8] for seq, pos in at])
        last = {seq: at.index((seq, 13)) for seq in range(3)}
        assert decode(ctx, rows, at, list(last.values())) == NON_FINITE
        assert faults(ctx) == [(1, 11)]
        assert ctx.memory.positions(1)[1] == 7
        assert logits(ctx, last[1]) is None
        for seq in (0, 2):
            assert decode(right, values[seq], [(seq, 8 + i) for i in range(6)], [5]) == 0
            got, wanted = logits(ctx, last[seq]), logits(right, 5)
            assert got is not None and wanted is not None
            assert ((got - wanted) ** 2).sum() <= 1e-6 * (wanted**2).sum()
        for seq in range(3):
            got, wanted = (c.decode([30, 31], seq=seq) for c in (ctx, right))
            assert got is not None and wanted is not None
            assert ((got - wanted) ** 2).sum() <= 1e-6 * (wanted**2).sum()
            assert not faults(ctx)
