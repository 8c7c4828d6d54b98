"""The router of a mixture of experts: NaN is one sequence's error, and rows go where their tokens go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyllamakv as kv
from pyllamakv.errors import ArgumentError, NonFiniteError, RefusedError, StateError
from pyllamakv.runtime.router_rows import RouterRows, drift

F32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
# softmax, sigmoid with a bias and groups, shared experts, weights before the experts, biased logits, a hybrid, two
# routers a layer, two sizes of cache
MODELS = ("llama", "deepseek2", "qwen2moe", "llama4", "gpt-oss", "lfm2moe", "grovemoe", "glm4moe")


@pytest.fixture(scope="module", autouse=True)
def router_patch() -> None:
    if kv.native.load().optional("pkv_set_router") is None:
        pytest.skip("the library was built without clean-up-moe-router")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, zoo: Path) -> Iterator[kv.Model]:
    with kv.Model(zoo / f"{request.param}-moe.gguf") as model:
        yield model


@pytest.fixture
def moe(zoo: Path) -> Iterator[kv.Model]:
    with kv.Model(zoo / "qwen2moe-moe.gguf") as model:
        yield model


def nmse(a: np.ndarray | None, b: np.ndarray | None) -> float:
    assert a is not None and b is not None
    return float(((a - b) ** 2).mean() / (b**2).mean())


def embeddings(model: kv.Model, n: int, nan: int) -> np.ndarray:
    rows = np.random.default_rng(3).standard_normal((n, model.n_embd_inp)).astype(np.float32)
    rows[nan] = np.nan
    return rows


def equal(a: RouterRows, b: RouterRows) -> None:
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4, atol=1e-6)


def test_nan_is_the_error_of_one_sequence(model: kv.Model) -> None:
    options = {"n_ctx": 256, "n_seq_max": 2, "kv_unified": True, **F32}
    ids = list(range(1, 25))
    with model.context(**options) as ctx, model.context(**options) as right:
        for context in (ctx, right):
            context.decode(ids[:10], seq=0)
        with pytest.raises(NonFiniteError) as error:
            ctx.decode_embeddings(embeddings(model, 12, 7), seq=1)
        assert (error.value.seq, error.value.pos) == (1, 7)
        assert -1 <= error.value.layer < model.n_layer
        assert ctx.memory.positions(1) == (-1, -1)
        assert nmse(ctx.decode(ids[10:20], seq=0), right.decode(ids[10:20], seq=0)) < 1e-5
        assert nmse(ctx.decode(ids, seq=1), right.decode(ids, seq=1)) < 1e-5
        assert ctx.memory.residue() == 0 or ctx.memory.scrub() >= 0


def test_the_sequence_is_as_before_the_call(moe: kv.Model) -> None:
    with moe.context(n_ctx=256, n_seq_max=2, **F32) as ctx, moe.context(n_ctx=256, n_seq_max=2, **F32) as right:
        for context in (ctx, right):
            context.decode(range(1, 9), seq=1)
        with pytest.raises(NonFiniteError, match="sequence 1"):
            ctx.decode_embeddings(embeddings(moe, 8, 0), seq=1)
        assert ctx.memory.positions(1) == (0, 7)
        assert nmse(ctx.decode([5, 6], seq=1), right.decode([5, 6], seq=1)) < 1e-9


def test_what_a_sequence_held_before_is_found(moe: kv.Model) -> None:
    """A state whose keys hold NaN: only the sequence that owns it goes, the rest of its batch has its logits."""
    options = {"n_ctx": 256, "n_seq_max": 3, "kv_unified": True, **F32}
    with moe.context(**options) as ctx, moe.context(**options) as right:
        for context in (ctx, right):
            context.decode(range(1, 9), seq=0)
        ctx.decode(range(1, 9), seq=1)
        blob = bytearray(ctx.memory.save(1))
        blob[-4:] = np.float32(np.nan).tobytes()
        ctx.memory.load(1, blob)
        entries = [kv.Entry([20], seq=0), kv.Entry([21], seq=1), kv.Entry([22, 23], seq=2)]
        with pytest.raises(NonFiniteError) as error:
            ctx.decode_batch(entries)
        assert [seq for seq, _, _ in error.value.faults] == [1]
        wanted = right.decode_batch([entries[0], entries[2]])
        assert nmse(error.value.logits[0], wanted[0]) < 1e-9
        assert nmse(error.value.logits[2], wanted[1]) < 1e-9
        assert ctx.memory.positions(0) == (0, 8)
        assert nmse(ctx.decode([9], seq=2), right.decode([9], seq=2)) < 1e-9


def test_guard_off(moe: kv.Model) -> None:
    with moe.context(n_ctx=256, **F32) as ctx:
        assert ctx.router.guard == "auto"
        ctx.router.guard = "off"
        out = ctx.decode_embeddings(embeddings(moe, 8, 0))
        assert out is not None and np.isnan(out).all()
        ctx.memory.clear()
        ctx.router.guard = "on"
        with pytest.raises(NonFiniteError):
            ctx.decode_embeddings(embeddings(moe, 8, 0))
        with pytest.raises(ArgumentError):
            ctx.router.guard = "maybe"


def test_refused_where_there_is_no_router(tiny: kv.Model) -> None:
    with tiny.context(n_ctx=64) as ctx:
        for change in (lambda: setattr(ctx.router, "enabled", True), lambda: setattr(ctx.router, "guard", "on")):
            with pytest.raises(RefusedError, match="no experts"):
                change()
        with pytest.raises(RefusedError):
            ctx.router.rows()
        assert not ctx.router.enabled


def test_rows_change_no_logits_and_follow_the_tokens(model: kv.Model) -> None:
    options = {"n_ctx": 256, "n_seq_max": 3, **F32}
    ids = list(range(1, 31))
    with model.context(**options) as ctx, model.context(**options) as plain:
        ctx.router.enabled = True
        np.testing.assert_array_equal(ctx.decode(ids, logits="all"), plain.decode(ids, logits="all"))
        whole = ctx.router.rows(0)
        assert whole.ids.shape == whole.weights.shape == (30, len(whole.layers), whole.ids.shape[2])
        assert whole.positions.tolist() == list(range(30))
        assert (whole.ids >= 0).any(axis=2).all() and whole.ids.max() < whole.n_expert
        assert np.isfinite(whole.weights).all()
        ctx.memory.copy(0, 2)
        equal(ctx.router.rows(2), whole)
        if ctx.memory.remove(0, 20):
            equal(ctx.router.rows(0), whole.between(0, 20))
        ctx.memory.remove(2)
        assert len(ctx.router.rows(2)) == 0
        # cells that were freed and taken again have the new tokens' rows
        ctx.memory.clear()
        ctx.decode(ids[::-1], logits="all")
        assert not np.array_equal(ctx.router.rows(0).ids, whole.ids)
        ctx.memory.clear()
        ctx.decode(ids, logits="all")
        equal(ctx.router.rows(0), whole)
        ctx.router.enabled = False
        with pytest.raises(RefusedError, match="not kept"):
            ctx.router.rows(0)


def test_rows_follow_shifts_and_parts_of_copies(moe: kv.Model) -> None:
    for unified in (True, False):
        with moe.context(n_ctx=256, n_seq_max=3, kv_unified=unified, **F32) as ctx:
            ctx.router.enabled = True
            ctx.decode(range(1, 31), logits="all")
            whole = ctx.router.rows(0)
            ctx.memory.copy(0, 1, 5, 25)
            equal(ctx.router.rows(1), whole.between(5, 25))
            ctx.memory.remove(0, 0, 10)
            ctx.memory.shift(0, 10, None, -10)
            moved = ctx.router.rows(0)
            assert moved.positions.tolist() == list(range(20))
            equal(moved, whole.between(10))
            equal(ctx.router.rows(1), whole.between(5, 25))


def test_rows_are_saved_beside_the_state(moe: kv.Model) -> None:
    with moe.context(n_ctx=256, n_seq_max=2, **F32) as ctx:
        ctx.router.enabled = True
        ctx.decode(range(1, 21), logits="all")
        whole, state, blob = ctx.router.rows(0), ctx.memory.save(0), ctx.router.save(0)
        ctx.memory.load(1, state)
        assert (ctx.router.rows(1).ids == -1).all()  # upstream's blob holds none
        ctx.router.load(1, blob)
        equal(ctx.router.rows(1), whole)
        for damaged in (blob[:-1], blob[:10], b"", b"\0" * len(blob)):
            with pytest.raises(RefusedError):
                ctx.router.load(1, damaged)
        equal(ctx.router.rows(1), whole)
        # a cell that another state took has not the rows of what was there before
        ctx.memory.load(1, state)
        assert (ctx.router.rows(1).ids == -1).all()
        with pytest.raises(StateError):
            RouterRows.from_bytes(blob[:-2])


def test_a_last_layer_chooses_for_outputs_only(moe: kv.Model) -> None:
    with moe.context(n_ctx=64, **F32) as ctx:
        ctx.router.enabled = True
        ctx.decode(range(1, 9))
        rows = ctx.router.rows()
        assert (rows.ids[:-1, -1] == -1).all() and (rows.ids[-1] >= 0).any(axis=1).all()
        assert (rows.ids[:, 0] >= 0).any(axis=1).all()


def rows_of(ids: list[list[int]], n_expert: int = 4) -> RouterRows:
    array = np.array(ids, np.int32)[:, None, :]
    n = len(ids)
    layers = np.zeros(1, np.int32)
    return RouterRows(array, np.ones(array.shape, np.float32), np.arange(n, dtype=np.int32), layers, n_expert)


def test_frequencies_hit_curve_and_drift() -> None:
    a = rows_of([[0, 1], [0, 2], [-1, -1], [0, 1]])
    np.testing.assert_allclose(a.frequencies(), [[3 / 6, 2 / 6, 1 / 6, 0]])
    # 0 1 0 2 0 1: the second and third 0 have one expert between them, the second 1 has two
    np.testing.assert_allclose(a.hit_curve(), [[0, 2 / 6, 3 / 6, 3 / 6]])
    b = rows_of([[3, 3]])
    np.testing.assert_allclose(drift(a, b), [1.0])
    np.testing.assert_allclose(drift(a, a), [0.0])
    with pytest.raises(ArgumentError):
        drift(a, rows_of([[0, 1]], n_expert=8))
    empty = rows_of([[-1, -1]])
    assert not empty.frequencies().any() and not empty.hit_curve().any()


@pytest.mark.slow
def test_a_conversation_after_poison_and_removal_is_the_oracles() -> None:
    from pyllamakv.replay import models

    with kv.Model(models.get("smollm2-moe-noise")) as model:
        first = model.tokenize("The feed pump moves water into the boiler. Clean the strainer first, then the valve.")
        then = model.tokenize(" What should I clean first? The")
        options = {"n_ctx": 512, "n_seq_max": 2, "kv_unified": True, "flash_attn": False}
        with model.context(**options) as ctx, model.context(**options) as oracle:
            said = []
            for context in (oracle, ctx):
                context.router.enabled = True
                context.decode(first, seq=0)
                if context is ctx:
                    with pytest.raises(NonFiniteError):
                        ctx.decode_embeddings(embeddings(model, 64, 40), seq=1)
                logits = context.decode(then, seq=0)
                answer = []
                for _ in range(24):
                    assert logits is not None
                    answer.append(int(logits.argmax()))
                    logits = context.decode(answer[-1], seq=0)
                said.append(answer)
            assert said[0] == said[1]
            equal(ctx.router.rows(0), oracle.router.rows(0))
