"""Samplers choose what they should, and never from what has no order."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pyllamakv as kv

N = 49152


@pytest.fixture
def logits() -> np.ndarray:
    values = np.full(N, -5.0, np.float32)
    values[[10, 20, 30]] = (3.0, 2.0, 1.0)
    return values


def chosen(sampler: kv.Sampler, logits: np.ndarray, n: int = 200) -> set[int]:
    return {sampler.sample(logits) for _ in range(n)}


def test_greedy_takes_the_best_of_a_context(smollm2: kv.Model, ctx: kv.Context) -> None:
    sampler = kv.Sampler(smollm2).greedy()
    with pytest.raises(kv.RefusedError, match="there are no logits"):
        sampler.sample(ctx)
    logits = ctx.decode(smollm2.tokenize("Once upon a"))
    assert logits is not None
    assert sampler.sample(ctx) == sampler.sample(logits) == int(logits.argmax())


def test_every_step_narrows(smollm2: kv.Model, logits: np.ndarray) -> None:
    def new() -> kv.Sampler:
        return kv.Sampler(smollm2)

    assert chosen(new().top_k(2).dist(1), logits) == {10, 20}
    assert chosen(new().top_k(3).top_p(0.6).dist(1), logits) == {10}
    assert chosen(new().min_p(0.3).dist(1), logits) == {10, 20}
    assert chosen(new().temp(0).dist(1), logits) == {10}
    assert chosen(new().temp(1e-30).dist(1), logits, 20) == {10}
    assert chosen(new().top_n_sigma(3.0).dist(1), logits) <= {10, 20, 30}
    assert chosen(new().top_k(3).typical(0.2).dist(1), logits, 20) <= {10, 20, 30}
    assert chosen(new().top_k(3).xtc(1.0, 0.05, seed=1).dist(1), logits) == {30}
    assert chosen(new().logit_bias({10: -math.inf, 20: 50.0}).dist(1), logits, 20) == {20}
    assert chosen(new().top_k(3).mirostat_v2(seed=1), logits) <= {10, 20, 30}
    assert chosen(new().top_k(3).mirostat(seed=1), logits) <= {10, 20, 30}


def test_penalties_learn_from_what_was_accepted(smollm2: kv.Model, logits: np.ndarray) -> None:
    sampler = kv.Sampler(smollm2).penalties(8, repeat=10.0).greedy()
    assert [sampler.sample(logits) for _ in range(3)] == [10, 20, 30]
    sampler.reset()
    assert sampler.sample(logits) == 10
    sampler.accept([20, 30])
    assert kv.Sampler(smollm2).penalties(8, repeat=10.0).greedy().accept([10, 20]).sample(logits) == 30


def test_a_seed_repeats_and_a_clone_goes_its_own_way(smollm2: kv.Model) -> None:
    logits = np.random.default_rng(0).normal(0, 1, N).astype(np.float32)
    a, b = (kv.Sampler(smollm2).temp(0.8).dist(7) for _ in range(2))
    assert [a.sample(logits) for _ in range(5)] == [b.sample(logits) for _ in range(5)]
    twin = a.clone()
    assert repr(twin) == repr(a) == "<Sampler temp(0.8) > dist(7)>"
    mine = [a.sample(logits) for _ in range(5)]
    assert [twin.sample(logits) for _ in range(5)] == mine
    a.close()
    twin.sample(logits)
    assert kv.Sampler(smollm2).dist().sample(logits) in range(N)


def test_a_grammar_allows_only_its_language(smollm2: kv.Model, ctx: kv.Context) -> None:
    sampler = kv.Sampler(smollm2).grammar('root ::= ("yes" | "no") "!"').greedy()
    ctx.decode(smollm2.tokenize("Is water wet? Answer: "))
    out = []
    while not smollm2.is_eog(token := sampler.sample(ctx)):
        out.append(token)
        ctx.decode(token)
    assert smollm2.detokenize(out) in ("yes!", "no!")
    with pytest.raises(kv.RefusedError, match="the grammar does not allow token"):
        sampler.accept(out[0])  # it is over
    sampler.reset()
    twin = sampler.clone().accept(out)
    with pytest.raises(kv.RefusedError, match="does not allow"):
        twin.accept(smollm2.tokenize("maybe")[0])
    sampler.accept(out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= (", "does not parse"),
        ("nothing", "does not parse"),
        ("root ::= nothing", "does not parse"),
        ("root ::= root", "does not parse.*left recursion"),
        ("start ::= [a-z]", "does not parse"),
        ("", "is empty"),
        ('root ::= "a\0b"', "NUL character"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nests parentheses 5000 deep"),
        ("\n".join(["root ::= r0"] + [f"r{i} ::= r{i + 1}" for i in range(9000)]), "9001 rules"),
    ],
)
def test_a_grammar_that_does_not_parse(smollm2: kv.Model, text: str, message: str) -> None:
    sampler = kv.Sampler(smollm2)
    with pytest.raises(kv.ArgumentError, match=message):
        sampler.grammar(text)
    assert repr(sampler) == "<Sampler empty>"  # nothing was added


def test_parentheses_in_strings_do_not_nest(smollm2: kv.Model) -> None:
    kv.Sampler(smollm2).grammar('root ::= "' + "(" * 900 + '" [(]  # ((((((').greedy()


def test_what_has_no_order_is_refused(smollm2: kv.Model, ctx: kv.Context) -> None:
    sampler = kv.Sampler(smollm2).greedy()
    for bad in (math.nan, math.inf):
        values = np.zeros(N, np.float32)
        values[7] = bad
        with pytest.raises(kv.NonFiniteError, match="1 of 49152 logits are NaN or Inf"):
            sampler.sample(values)
    with pytest.raises(kv.RefusedError, match="every logit is -inf"):
        sampler.sample(np.full(N, -np.inf, np.float32))
    with pytest.raises(kv.ArgumentError, match=r"shape \(5,\)"):
        sampler.sample(np.zeros(5))
    ctx.decode_embeddings(np.full((2, smollm2.n_embd_inp), np.nan, np.float32))
    with pytest.raises(ArithmeticError):
        sampler.sample(ctx)


def test_a_chain_has_one_chooser_at_its_end(smollm2: kv.Model, logits: np.ndarray) -> None:
    with pytest.raises(kv.ArgumentError, match="chooses nothing: end it with greedy"):
        kv.Sampler(smollm2).temp(0.5).sample(logits)
    with pytest.raises(kv.ArgumentError, match=r"has chosen already: put top_k\(5\) before"):
        kv.Sampler(smollm2).greedy().top_k(5)


def test_rubbish_settings(smollm2: kv.Model) -> None:
    sampler = kv.Sampler(smollm2)
    for attempt in (
        lambda: sampler.top_p(1.5),
        lambda: sampler.temp(-1),
        lambda: sampler.temp(math.nan),
        lambda: sampler.top_k(2**40),
        lambda: sampler.penalties(2**31 - 1, repeat=1.1),
        lambda: sampler.penalties(64, repeat=0.0),
        lambda: sampler.logit_bias({N: 1.0}),
        lambda: sampler.logit_bias({1: math.nan}),
        lambda: sampler.mirostat(m=1),
        lambda: sampler.dist(-1),
        lambda: sampler.accept(N),
    ):
        with pytest.raises(kv.ArgumentError):
            attempt()
    sampler.close()
    with pytest.raises(kv.ClosedError, match="this Sampler was closed"):
        sampler.greedy()
