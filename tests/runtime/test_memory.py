"""Memory edits through Python: what they return, what they refuse, and that a failed one changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pyllamakv as kv


@pytest.fixture(scope="module")
def ids(smollm2: kv.Model) -> list[int]:
    return smollm2.tokenize("A long enough text for a memory to be cut into pieces, " * 4)[:40]


def nmse(a: np.ndarray | None, b: np.ndarray | None) -> float:
    assert a is not None and b is not None
    return float(((a - b) ** 2).mean() / (b**2).mean())


def test_remove_tells_what_is_left(ctx: kv.Context, ids: list[int]) -> None:
    ctx.decode(ids)
    assert ctx.memory.remove(0, 30) == kv.Removal(True, kept=30)
    assert ctx.memory.remove(0, 5, 15) == kv.Removal(True, kept=20)
    assert ctx.memory.positions(0) == (0, 29)
    assert ctx.memory.remove(0, 7, 7) == kv.Removal(True, kept=20)  # nothing to do
    assert ctx.memory.remove(1) == kv.Removal(True, kept=0)  # nor here
    ctx.decode(ids[:3], seq=2)
    assert ctx.memory.remove(-1, 2).kept == 2 + 2
    assert not kv.Removal(False, 3, "because")


def test_a_removed_tail_is_as_if_it_had_never_been(ctx: kv.Context, ids: list[int]) -> None:
    ctx.decode(ids[:20])
    expected = ctx.decode(ids[20:30], logits="all")
    assert ctx.memory.remove(0, 20)
    assert nmse(ctx.decode(ids[20:30], logits="all"), expected) < 1e-6


def test_copy_keep_and_shift(ctx: kv.Context, ids: list[int]) -> None:
    expected = ctx.decode(ids[:20])
    ctx.memory.copy(0, 1)
    ctx.memory.copy(0, 2, 5, 9)
    assert [ctx.memory.positions(s) for s in range(3)] == [(0, 19), (0, 19), (5, 8)]
    ctx.memory.keep(1)
    assert [ctx.memory.positions(s) for s in range(3)] == [(-1, -1), (0, 19), (-1, -1)]
    ctx.memory.remove(1, 19)
    assert nmse(ctx.decode(ids[19], seq=1), expected) < 1e-3
    ctx.memory.remove(1, 0, 4)
    ctx.memory.shift(1, 4, None, -4)
    assert ctx.memory.positions(1) == (0, 15)
    assert ctx.memory.remove(1, 100).kept == 16
    assert ctx.decode(ids[20], seq=1) is not None
    ctx.memory.divide(1, 8, None, 2)
    assert ctx.memory.positions(1) == (0, 8)
    ctx.memory.clear()
    assert ctx.memory.positions(1) == (-1, -1)


def test_save_and_load(ctx: kv.Context, smollm2: kv.Model, ids: list[int]) -> None:
    ctx.decode(ids[:20])
    blob = ctx.memory.save(0)
    assert isinstance(blob, bytes)
    expected = ctx.decode(ids[20:25], logits="all")
    for view in (blob, bytearray(blob), memoryview(blob), np.frombuffer(blob, np.uint8)):
        ctx.memory.load(1, view)
        assert ctx.memory.positions(1) == (0, 19)
        assert len(ctx.memory.save(1)) == len(blob)
    assert nmse(ctx.decode(ids[20:25], seq=1, logits="all"), expected) < 1e-6
    with smollm2.context(n_ctx=256) as other:
        other.memory.load(0, blob)
        assert other.memory.save(0) == blob
        assert nmse(other.decode(ids[20:25], logits="all"), expected) < 1e-3


def test_a_failed_load_changes_nothing(ctx: kv.Context, smollm2: kv.Model, ids: list[int]) -> None:
    ctx.decode(ids[:20])
    before = ctx.memory.save(0)
    with smollm2.context(n_ctx=256, type_k="f32", type_v="f32", flash_attn=False) as other:
        other.decode(ids[:10])
        foreign = other.memory.save(0)
    for bad in (b"", b"x" * 100, before[:-1], before[: len(before) // 2], before + b"more", before[:40], foreign):
        for seq in (0, 1):
            with pytest.raises(kv.StateError):
                ctx.memory.load(seq, bad)
        assert ctx.memory.save(0) == before
        assert ctx.memory.positions(1) == (-1, -1)
    with pytest.raises(kv.ArgumentError, match="blob is of type list"):
        ctx.memory.load(0, [1, 2])
    assert ctx.memory.remove(0, 15).kept == 15


def test_ranges_are_checked(ctx: kv.Context) -> None:
    for p0, p1 in ((-1, 5), (5, -1), (9, 3), (0, 2**31), ("a", None), (1.5, 2)):
        with pytest.raises(kv.ArgumentError):
            ctx.memory.remove(0, p0, p1)  # type: ignore[arg-type]
    with pytest.raises(kv.ArgumentError, match="d is 0"):
        ctx.memory.divide(0, 0, 5, 0)
    ctx.decode([1, 2, 3])
    with pytest.raises(kv.ArgumentError, match="does not fit 32 bits"):
        ctx.memory.shift(0, 0, None, 2**31 - 2)
    assert ctx.memory.positions(0) == (0, 2)


def test_mrope_positions_are_not_moved(zoo: Path) -> None:
    with kv.Model(zoo / "qwen2vl-dense.gguf") as model, model.context(n_ctx=256) as ctx:
        assert model.rope_type == "mrope" and not ctx.memory.can_shift
        ctx.decode([1, 2, 3, 4])
        for attempt in (lambda: ctx.memory.shift(0, 2, None, 1), lambda: ctx.memory.divide(0, 2, None, 2)):
            with pytest.raises(kv.RefusedError):
                attempt()
        assert ctx.memory.positions(0) == (0, 3)


def test_a_cache_without_layers_can_be_shifted(zoo: Path) -> None:
    with kv.Model(zoo / "lfm2-dense.gguf") as model, model.context(n_ctx=256) as ctx:
        ctx.decode([1, 2])
        if ctx.library.has_pkv:
            ctx.memory.shift(0, 0, None, 1)
            assert ctx.memory.positions(0)[1] == 2
        else:
            with pytest.raises(kv.RefusedError, match="has no layers"):
                ctx.memory.shift(0, 0, None, 1)
        ctx.decode([3])


@pytest.mark.parametrize("type_k", ["q8_0", "bf16"])
def test_keys_of_any_type_are_shifted(smollm2: kv.Model, ids: list[int], type_k: str) -> None:
    with smollm2.context(n_ctx=256, type_k="f32") as ctx:
        ctx.decode(ids[:9])
        ctx.memory.shift(0, 4, None, 2)
        expected = ctx.decode(ids[9])
    with smollm2.context(n_ctx=256, type_k=type_k) as ctx:
        ctx.decode(ids[:9])
        if not ctx.library.has_pkv and type_k == "bf16":
            with pytest.raises(kv.RefusedError, match="bf16"):
                ctx.memory.shift(0, 4, None, 2)
            return
        ctx.memory.shift(0, 4, None, 2)
        got = ctx.decode(ids[9])
        assert got is not None
        assert expected is not None
        assert nmse(got, expected) < 3e-2  # the models' own noise, see replay/oracle.py


def test_copies_between_streams(smollm2: kv.Model, ids: list[int]) -> None:
    with smollm2.context(n_ctx=512, n_seq_max=2, kv_unified=False) as ctx:
        expected = ctx.decode(ids[:20], logits="all")
        ctx.memory.copy(0, 1, 0, 20)  # the whole sequence, spelled as a range
        assert ctx.memory.positions(1) == (0, 19)
        ctx.memory.remove(1, 19)
        assert expected is not None
        assert nmse(ctx.decode(ids[19], seq=1), expected[-1]) < 1e-3
        if smollm2.library.has_pkv:
            ctx.memory.remove(1)
            ctx.memory.copy(0, 1, 0, 10)
            assert ctx.memory.positions(1) == (0, 9)
        else:
            with pytest.raises(kv.RefusedError, match="copies whole sequences only between streams"):
                ctx.memory.copy(0, 1, 0, 10)


def test_what_only_the_patched_library_has(ctx: kv.Context, smollm2: kv.Model, ids: list[int]) -> None:
    if not smollm2.library.has_pkv:
        for attempt in (ctx.memory.sync, ctx.memory.scrub, ctx.memory.residue, lambda: ctx.memory.scrub_mode):
            with pytest.raises(kv.RefusedError, match="is a stock library"):
                attempt()
        return
    assert ctx.memory.scrub_mode == "lazy"
    ctx.memory.scrub_mode = "eager"
    assert ctx.memory.scrub_mode == "eager"
    with pytest.raises(kv.ArgumentError, match="one of lazy, eager"):
        ctx.memory.scrub_mode = "now"
    ctx.decode(ids)
    ctx.memory.remove(0, 10)
    assert ctx.memory.residue() == 0
    ctx.memory.scrub_mode = "lazy"
    ctx.memory.sync()
    assert ctx.memory.scrub() >= 0


def test_a_recurrent_state_does_not_lose_its_beginning_silently(zoo: Path) -> None:
    with kv.Model(zoo / "mamba-dense.gguf") as model, model.context(n_ctx=256) as ctx:
        ctx.decode([1, 2, 3, 4, 5])
        tail = ctx.memory.remove(0, 3)
        assert not tail and tail.reason and tail.kept == 5
        if model.library.has_pkv:
            assert not ctx.memory.remove(0, 0, 2)
        assert ctx.memory.positions(0)[1] == 4
        assert ctx.memory.remove(0).kept == 0
