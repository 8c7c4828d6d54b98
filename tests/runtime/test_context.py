"""Decoding: positions, pieces, batches of several sequences, outputs, embeddings, aborts, threads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import pyllamakv as kv

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all, being asleep in the sun."


# Another batch split is another order of additions: below 1e-11 in f32, see the measurements of the zoo.
EXACT = 1e-9


def nmse(a: np.ndarray | None, b: np.ndarray | None) -> float:
    assert a is not None and b is not None and a.shape == b.shape
    return float(((a - b) ** 2).mean() / (b**2).mean())


SMALL = [int(t) for t in np.random.default_rng(3).integers(0, 128, 150)]  # for the tiny model


@pytest.fixture(scope="module")
def ids(smollm2: kv.Model) -> list[int]:
    return smollm2.tokenize(TEXT * 6)[:150]


def test_logits_last_all_none(ctx: kv.Context, ids: list[int]) -> None:
    every = ctx.decode(ids[:20], seq=0, logits="all")
    last = ctx.decode(ids[:20], seq=1)
    assert every is not None and last is not None
    assert every.shape == (20, 49152) and every.dtype == np.float32
    assert last.shape == (49152,)
    assert np.array_equal(every[-1], last)
    assert ctx.decode(ids[:20], seq=2, logits="none") is None
    assert ctx.memory.positions(0) == ctx.memory.positions(2) == (0, 19)


def test_more_tokens_than_a_batch_are_fed_in_pieces(ctx: kv.Context, smollm2: kv.Model, ids: list[int]) -> None:
    assert len(ids) > 2 * ctx.n_batch
    every = ctx.decode(ids, logits="all")
    with smollm2.context(n_ctx=512, n_batch=64, n_seq_max=4, kv_unified=True) as fresh:
        by_hand = [fresh.decode(ids[a : a + 64], logits="all") for a in range(0, len(ids), 64)]
    assert every is not None
    assert np.array_equal(every, np.concatenate([p for p in by_hand if p is not None]))


def test_tokens_may_be_any_integers(ctx: kv.Context, ids: list[int]) -> None:
    expected = ctx.decode(ids[:8])
    for form in (tuple(ids[:8]), np.array(ids[:8]), np.array(ids[:8], np.uint16), iter(ids[:8])):
        ctx.memory.remove(0)
        assert np.array_equal(ctx.decode(form), expected)


def test_one_by_one_is_the_same_as_at_once(exact: kv.Context) -> None:
    expected = exact.decode(SMALL[:8])
    for token in SMALL[:7]:
        exact.decode(token, seq=1, logits="none")
    assert nmse(exact.decode(np.int64(SMALL[7]), seq=1), expected) < EXACT


def test_a_result_outlives_the_next_decode(ctx: kv.Context, ids: list[int]) -> None:
    first = ctx.decode(ids[:5])
    assert first is not None
    kept = first.copy()
    ctx.decode(ids[5:60], logits="all")
    assert np.array_equal(first, kept) and first.flags.owndata


def test_the_view_is_the_librarys_own_buffer(smollm2: kv.Model, ids: list[int]) -> None:
    ctx = smollm2.context(n_ctx=256)
    with pytest.raises(kv.RefusedError, match="there are no logits"):
        ctx.logits_view()
    last = ctx.decode(ids[:5])
    view = ctx.logits_view()
    assert view.shape == (1, 49152) and not view.flags.writeable
    assert np.array_equal(view[0], last)
    ctx.close()
    del ctx
    gc.collect()
    assert np.array_equal(view[0], last)  # the view kept the buffer


def test_positions_are_the_callers_if_given(ctx: kv.Context, ids: list[int]) -> None:
    ctx.decode(ids[:4], pos=10)
    assert ctx.memory.positions(0) == (10, 13)
    ctx.decode(ids[4:6], pos=[14, 15])
    with pytest.raises(kv.DecodeError, match="calls the batch invalid"):
        ctx.decode(ids[:2], pos=30)  # a gap
    assert ctx.memory.positions(0) == (10, 15)
    with pytest.raises(kv.ArgumentError, match="3 entries for 2 tokens"):
        ctx.decode(ids[:2], pos=[1, 2, 3])
    with pytest.raises(kv.ArgumentError, match="do not fit 32 bits"):
        ctx.decode(ids[:2], seq=1, pos=2**31 - 2)


def test_a_batch_of_several_sequences(exact: kv.Context) -> None:
    ctx, ids = exact, SMALL
    ctx.decode(ids[:9], seq=3)
    alone = [ctx.decode(ids[:12], seq=0), ctx.decode(ids[20:27], seq=1, logits="all"), ctx.decode(ids[9:11], seq=3)]
    ctx.memory.clear()
    ctx.decode(ids[:9], seq=3)
    together = ctx.decode_batch(
        [
            kv.Entry(ids[:12], 0),
            kv.Entry(ids[20:27], 1, logits="all"),
            kv.Entry(ids[30:33], 2, logits="none"),
            kv.Entry(ids[9:11], 3),
        ]
    )
    assert together[2] is None
    for mine, one in zip((together[0], together[1], together[3]), alone, strict=True):
        assert nmse(mine, one) < EXACT
    assert [ctx.memory.positions(s)[1] for s in range(4)] == [11, 6, 2, 10]


def test_a_batch_larger_than_n_batch_and_entries_that_follow_each_other(exact: kv.Context) -> None:
    ctx, ids = exact, SMALL
    got = ctx.decode_batch([kv.Entry(ids[:50], 0, logits="all"), kv.Entry(ids[:50], 1), kv.Entry(ids[50:90], 0)])
    assert got[0] is not None and got[0].shape == (50, ctx.model.n_vocab)
    assert [ctx.memory.positions(s) for s in (0, 1)] == [(0, 89), (0, 49)]
    ctx.memory.clear()
    every = ctx.decode(ids[:90], logits="all")
    assert every is not None
    assert nmse(every[:50], got[0]) < EXACT and nmse(every[89], got[2]) < EXACT and nmse(every[49], got[1]) < EXACT


def test_tokens_shared_by_sequences(exact: kv.Context) -> None:
    ctx, ids = exact, SMALL
    (shared,) = ctx.decode_batch([kv.Entry(ids[:10], seq=[0, 2])])
    assert ctx.memory.positions(0) == ctx.memory.positions(2) == (0, 9)
    assert ctx.memory.positions(1) == (-1, -1)
    assert nmse(ctx.decode(ids[10:12], seq=0), ctx.decode(ids[10:12], seq=2)) < EXACT
    (after,) = ctx.decode_batch([kv.Entry(ids[:10], 1)])  # one sequence each again
    assert nmse(after, shared) < EXACT


def test_embeddings_go_in(ctx: kv.Context, smollm2: kv.Model, ids: list[int]) -> None:
    rows = np.random.default_rng(0).normal(0, 0.05, (70, smollm2.n_embd_inp)).astype(np.float32)
    every = ctx.decode_embeddings(rows, logits="all")
    assert every is not None and every.shape == (70, 49152) and np.isfinite(every).all()
    assert ctx.memory.positions(0) == (0, 69)
    assert ctx.decode(ids[:1]) is not None  # tokens again after embeddings
    rows[3] = np.nan
    poisoned = ctx.decode_embeddings(rows[:5], seq=1)
    assert poisoned is not None and np.isnan(poisoned).any()
    with pytest.raises(kv.ArgumentError, match=r"float32 \[n, 576\]"):
        ctx.decode_embeddings(rows[:, :10])


def test_embeddings_come_out(smollm2: kv.Model, ids: list[int]) -> None:
    with smollm2.context(n_ctx=256, embeddings=True, pooling_type="none", n_seq_max=2) as ctx:
        logits = ctx.decode(ids[:9], logits="all")
        tokens = ctx.token_embeddings()
        assert tokens.shape == (9, 576) and logits is not None and logits.shape == (9, 49152)
        with pytest.raises(kv.RefusedError, match="pools no embeddings"):
            ctx.embeddings(0)
    with smollm2.context(n_ctx=256) as ctx:
        ctx.decode(ids[:2])
        with pytest.raises(kv.RefusedError, match="embeddings=True"):
            ctx.token_embeddings()


def test_embeddings_are_pooled_over_all_tokens_or_refused(tiny: kv.Model) -> None:
    with tiny.context(n_ctx=512, n_seq_max=2, embeddings=True, pooling_type="none", type_k="f32", type_v="f32") as ctx:
        ctx.decode(SMALL[:9])
        expected = ctx.token_embeddings().mean(axis=0)
    pooled = {"n_ctx": 512, "n_ubatch": 32, "n_seq_max": 2, "embeddings": True, "pooling_type": "mean"}
    for unified in (True, False):
        with tiny.context(**pooled, kv_unified=unified, type_k="f32", type_v="f32") as ctx:
            together = [kv.Entry(SMALL[:9], 0), kv.Entry(SMALL[9:14], 1)]
            if unified:
                ctx.decode_batch(together)
                assert nmse(ctx.embeddings(0), expected) < EXACT
                assert nmse(ctx.embeddings(1), expected) > EXACT
            else:  # upstream would cut it, and pool the last four tokens only
                with pytest.raises(kv.ArgumentError, match=r"sequences of \[5, 9\] tokens are cut"):
                    ctx.decode_batch(together)
                ctx.decode(SMALL[:9])
                assert nmse(ctx.embeddings(0), expected) < EXACT
            with pytest.raises(kv.ArgumentError, match="33 tokens, but pooled embeddings need all of them in one"):
                ctx.decode(SMALL[:33], seq=1)
            with pytest.raises(kv.RefusedError, match="no token embeddings"):
                ctx.token_embeddings()


def test_a_full_memory_is_told(smollm2: kv.Model, ids: list[int]) -> None:
    with smollm2.context(n_ctx=256, n_batch=128) as ctx:
        ctx.decode(ids[:100] * 2, logits="none")
        with pytest.raises(MemoryError, match=r"no free slot .* larger n_ctx"):
            ctx.decode(ids[:100])
        assert ctx.memory.positions(0) == (0, 199)
        assert ctx.memory.remove(0, 150).kept == 150
        ctx.decode(ids[:100])


def test_abort(smollm2: kv.Model, ids: list[int]) -> None:
    calls: list[int] = []

    def after_some() -> bool:
        calls.append(1)
        return len(calls) > 40

    with smollm2.context(n_ctx=256, abort=after_some) as ctx:
        with pytest.raises(kv.DecodeError, match="aborted") as caught:
            ctx.decode(ids[:50])
        assert caught.value.code == 2
        assert ctx.memory.positions(0) == (-1, -1)
        assert ctx.memory.remove(0).kept == 0

        def fails() -> bool:
            raise KeyError("mine")

        ctx.set_abort(fails)
        with pytest.raises(KeyError, match="mine"):
            ctx.decode(ids[:50])
        ctx.set_abort(None)
        assert ctx.decode(ids[:50]) is not None


def test_threads_share_a_context(exact: kv.Context) -> None:
    ctx, ids = exact, SMALL
    alone = [ctx.decode(ids[s : s + 20], seq=s) for s in range(4)]
    ctx.memory.clear()
    results: dict[int, np.ndarray] = {}

    def work(seq: int) -> None:
        for token in ids[seq : seq + 10]:
            ctx.decode(token, seq=seq, logits="none")
        got = ctx.decode(ids[seq + 10 : seq + 20], seq=seq)
        assert got is not None
        results[seq] = got

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seq, one in enumerate(alone):
        assert nmse(results[seq], one) < EXACT


def test_closing_waits_for_a_decode_in_another_thread(smollm2: kv.Model, ids: list[int]) -> None:
    entered = threading.Event()

    def question() -> bool:
        entered.set()
        return False

    ctx = smollm2.context(n_ctx=512, n_batch=64, abort=question)
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(ctx.decode(ids))
        except kv.PyllamakvError as err:
            outcome.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(30)
    ctx.close()
    thread.join()
    assert isinstance(outcome[0], np.ndarray)


def test_options_that_would_assert(smollm2: kv.Model) -> None:
    with pytest.raises(kv.ArgumentError, match="n_seq_max is 8 and the batch has room for 4 tokens"):
        smollm2.context(n_ctx=256, n_batch=4, n_seq_max=8)
    with pytest.raises(kv.ArgumentError, match="n_seq_max is 100000"):
        smollm2.context(n_seq_max=100000)
    with pytest.raises(kv.ArgumentError, match="type_k is 'q3_k'; it has to be one of f32, f16"):
        smollm2.context(type_k="q3_k")
    with pytest.raises(kv.ArgumentError, match="n_threads is 0"):
        smollm2.context(n_threads=0)
    with pytest.raises(kv.RefusedError, match=r"type_v='q8_0' could not be made: .*flash_attn"):
        smollm2.context(n_ctx=256, type_v="q8_0", flash_attn=False)


def test_sequences_are_checked(ctx: kv.Context) -> None:
    for seq in (-1, 4, 2**40, None, "0", 1.0, True):
        with pytest.raises(kv.ArgumentError, match=r"seq is .*from 0 to 3"):
            ctx.decode([1], seq=seq)  # type: ignore[arg-type]


def test_positions_beyond_a_learned_table(zoo: Path) -> None:
    with kv.Model(zoo / "gpt2-dense.gguf") as model, model.context(n_ctx=1024) as ctx:
        limit = model.n_ctx_train
        assert model.position_limit == limit
        ctx.decode([1] * (limit - 1), logits="none")
        ctx.decode([1])
        with pytest.raises(kv.ArgumentError, match=f"position {limit} is beyond the {limit} that gpt2 has learned"):
            ctx.decode([1])


def test_a_model_without_memory(zoo: Path) -> None:
    with kv.Model(zoo / "llada-dense.gguf") as model, model.context(n_ctx=256) as ctx:
        assert ctx.decode([1, 2, 3], logits="all").shape == (3, model.n_vocab)  # type: ignore[union-attr]
        with pytest.raises(kv.RefusedError, match="llada keeps no memory"):
            ctx.memory.positions(0)
        with pytest.raises(kv.RefusedError, match="llada has no encoder"):
            ctx.encode([1])


def test_every_architecture_decodes(zoo: Path) -> None:
    """All of upstream's architectures go through the same call; those with a memory save and load."""
    without = []
    for path in sorted(zoo.glob("*.gguf")):
        with kv.Model(path) as model, model.context(n_ctx=256, n_batch=64, n_seq_max=2) as ctx:
            tokens = np.random.default_rng(1).integers(0, model.n_vocab, 20)
            logits = ctx.decode(tokens)
            assert logits is not None and np.isfinite(logits).all(), path.name
            try:
                ctx.memory.load(1, ctx.memory.save(0))
            except kv.RefusedError as err:
                assert "keeps no memory" in str(err), path.name
                without.append(path.name)
                continue
            assert ctx.memory.positions(0) == ctx.memory.positions(1), path.name
    assert without == ["dream-dense.gguf", "llada-dense.gguf", "llada-moe-moe.gguf", "rnd1-moe.gguf"]
