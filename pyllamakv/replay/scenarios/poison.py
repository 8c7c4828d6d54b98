"""One bad request beside healthy ones: NaN in freed cells and in states that are reset by a product with zero."""

from __future__ import annotations

import numpy as np

from ..engine import Window
from ..scenario import scenario
from ..stage import F32, Stage, repeated
from ..talk import Talk
from ..texts import remarks

_SHARED = {"n_ctx": 2048, "n_seq_max": 4, "kv_unified": True, "swa_full": False}
_QUESTION = "What should I clean first?"


def _poison(stage: Stage, window: Window, seq: int, at: int, rows: int = 250) -> None:
    """A request whose embeddings hold NaN (a broken image encoder, an overflow in half precision).

    It is longer than what comes after it, which otherwise might overwrite all of its cells. A library that refuses it
    is right, so the return code is not looked at.
    """
    data = np.full((rows, stage.engine.n_embd), np.nan, dtype=np.float32)
    window.try_embed(data, at, seq)


def _other_users_request(stage: Stage, *, flash_attn: bool) -> None:
    notes = remarks("healthy", 3)
    window = stage.open(**_SHARED, flash_attn=flash_attn)
    healthy = Talk(window, 0)
    healthy.listen(notes[:1])
    stage.step("another user's request holds NaN; it is removed")
    _poison(stage, window, 1, 0)
    window.seq_rm(1, -1, -1)
    before, got = healthy.turn(notes[1], 12)
    stage.compare("the healthy user's next answer", window, before, got)
    fresh = Talk(window, 2)
    before, got = fresh.turn(notes[2][:330], 12)
    stage.compare("a new user's first answer", window, before, got)


@scenario(
    "other-users-request",
    story="other user's request makes every answer empty until restart",
    right="the removal ends the damage: nobody else notices",
    models=("smollm2-135m", "smollm2-moe", "gemma3-270m"),
    defects=("C1",),
    seconds=12,
)
def other_users_request(stage: Stage) -> None:
    _other_users_request(stage, flash_attn=False)


@scenario(
    "other-users-request-flash-attention",
    story="the same with flash attention: other user's request makes the next long prompt's answer empty",
    right="the removal ends the damage: nobody else notices",
    models=("smollm2-135m", "gemma3-270m"),
    defects=("C1",),
    seconds=12,
)
def other_users_request_flash(stage: Stage) -> None:
    _other_users_request(stage, flash_attn=True)


@scenario(
    "failed-message-spoils-the-chat",
    story="one message failed; I deleted it and sent another, but this chat answers nothing any more",
    right="the chat goes on as if the failed message had never been",
    models=("smollm2-135m",),
    defects=("C1",),
)
def failed_message_spoils(stage: Stage) -> None:
    window = stage.open(n_ctx=1024)
    talk = Talk(window)
    talk.listen(remarks("failed", 1))
    stage.step("a message that holds NaN, removed again")
    _poison(stage, window, 0, talk.at)
    talk.rewind(talk.at)
    before, got = talk.turn(_QUESTION, 16)
    stage.compare("the next answer", window, before, got)


@scenario(
    "moe-repetition",
    story="after one bad request the MoE model repeats the same token for ever",
    right="no more repetition than the oracle; with equal experts, the dense model's own tokens",
    models=("smollm2-moe", "smollm2-moe-noise"),
    defects=("C1",),
    seconds=25,
)
def moe_repetition(stage: Stage) -> None:
    settings = {**_SHARED, "n_ctx": 1024}
    window = stage.open(**settings)
    talk = Talk(window, 0)
    talk.listen(remarks("moe", 1))
    stage.step("another user's request holds NaN; it is removed")
    _poison(stage, window, 1, 0)
    window.seq_rm(1, -1, -1)
    talk.message("user", "Tell me what a feed pump is for.", prompt=True)
    before, got = list(talk.ops), talk.answer(40, through=True)
    stage.compare("the answer", window, before, got)
    right = stage.oracle(settings).answer(before, 40, through=True)
    share, own = repeated(got.tokens), repeated(right.tokens)
    stage.measure("repeated 4-grams", share)
    stage.measure("repeated 4-grams, oracle", own)
    stage.hold("no more repetition than the oracle", share <= own + 0.15, f"{share:.0%} of its 4-grams repeat")
    if stage.model == "smollm2-moe":
        dense = stage.oracle(settings, "smollm2-135m")
        stage.compare("the dense model's answer", window, before, got, control=dense)


@scenario(
    "fresh-chat-is-already-broken",
    story="every new chat of a recurrent model answers nothing, since one user's request failed",
    right="a fresh sequence starts from a true zero state",
    models=("mamba", "mamba2", "jamba"),
    defects=("C2",),
    seconds=2,
)
def fresh_chat_is_broken(stage: Stage) -> None:
    window = stage.open(**F32, n_ctx=256, n_seq_max=2, kv_unified=True)
    stage.step("a request that holds NaN, in both sequences; they are removed")
    for seq in (0, 1):
        _poison(stage, window, seq, 0, 8)
    for seq in (0, 1):
        window.seq_rm(seq, -1, -1)
    for seq in (0, 1):
        talk = Talk(window, seq)
        # as many tokens as the bad requests had: a hybrid model's attention cells are overwritten, the state is not
        talk.read(stage.tokens(16, seed=seq))
        before = list(talk.ops)
        stage.compare(f"a new chat in sequence {seq}", window, before, talk.answer(8))
