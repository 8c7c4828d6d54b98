"""Arguments that are merely wrong, and kill the process with everybody's conversation in it."""

from __future__ import annotations

from pyllamakv.errors import DecodeError

from ..scenario import scenario
from ..stage import F32, Stage
from ..talk import Talk
from ..texts import remarks

_SETTINGS = {"n_ctx": 1024, "n_batch": 256, "n_ubatch": 256}


def _go_on(stage: Stage, talk: Talk) -> None:
    before, got = talk.turn("What should I do next?", 10)
    stage.compare("the conversation goes on", talk.window, before, got)


@scenario(
    "long-message-kills-the-server",
    story="one user pastes a long message and the server is gone",
    right="an error code, and everybody's memory as it was",
    models=("smollm2-135m",),
    defects=("D1",),
)
def long_message_kills(stage: Stage) -> None:
    window = stage.open(**_SETTINGS)
    talk = Talk(window)
    talk.listen(remarks("long", 1))
    pasted = stage.engine.tokenize(" ".join(remarks("pasted", 4)))[:300]
    stage.step(f"llama_decode with {len(pasted)} tokens, n_batch is {window.n_batch}")
    code = window.try_decode(pasted, talk.at)
    stage.hold("an error code", code < 0, f"llama_decode returned {code}")
    last = window.positions(0)[1]
    stage.hold("the memory is as it was", last == talk.at - 1, f"the last position is {last}, not {talk.at - 1}")
    _go_on(stage, talk)


@scenario(
    "many-users-kill-the-server-at-start",
    story="the server is started for more users than one batch has tokens, and dies without a word",
    right="no context and a message, or one that works",
    models=("smollm2-135m",),
    defects=("D2",),
)
def many_users_kill(stage: Stage) -> None:
    stage.step("llama_init_from_model with n_seq_max 64 and n_batch 16")
    try:
        window = stage.open(n_ctx=2048, n_seq_max=64, n_batch=16, n_ubatch=16, kv_unified=True)
    except DecodeError:
        window = stage.open(n_ctx=2048, n_seq_max=16, n_batch=16, n_ubatch=16, kv_unified=True)
    talk = Talk(window)
    talk.message("user", "Say hello to the workshop.")
    _go_on(stage, talk)


@scenario(
    "unknown-session-kills-the-server",
    story="a client asks for a session number that does not exist, and the server dies",
    right="nothing happens to anybody",
    models=("smollm2-135m", "gemma3-270m", "lfm2"),
    defects=("D3",),
)
def unknown_session_kills(stage: Stage) -> None:
    settings = {**_SETTINGS, "n_seq_max": 2, "kv_unified": False}
    window = stage.open(**settings if stage.engine.has_text else {**settings, **F32, "n_ctx": 256})
    talk = Talk(window)
    if stage.engine.has_text:
        talk.listen(remarks("unknown", 1, chars=200))
    else:
        talk.read(stage.tokens(20))
    for seq in (2, 1_000_000, -7):
        stage.step(f"memory calls with sequence {seq} of 2")
        stage.hold(f"seq_rm of {seq} is refused", not window.seq_rm(seq, 0, -1), "it says that it removed something")
        window.seq_cp(0, seq)
        window.seq_cp(seq, 1)
        window.seq_add(seq, 0, -1, 1)
        window.seq_div(seq, 0, -1, 2)
        window.seq_keep(seq)
        stage.hold(f"no position in {seq}", window.positions(seq) == (-1, -1), f"positions {window.positions(seq)}")
    if stage.engine.has_text:
        _go_on(stage, talk)
    else:
        talk.read(stage.tokens(5, seed=2))
        before = list(talk.ops)
        stage.compare("the conversation goes on", window, before, talk.answer(8))


@scenario(
    "context-shift-kills-the-server",
    story="the context was full, the server dropped the oldest half and moved the rest down, and died",
    right="nothing is moved where positions cannot be, and the chat can be decoded again",
    models=("qwen2vl",),
    defects=("D4",),
)
def context_shift_kills(stage: Stage) -> None:
    window = stage.open(**_SETTINGS, **F32)
    tokens = stage.tokens(60)
    talk = Talk(window)
    talk.read(tokens)
    stage.hold("positions cannot be shifted here", not window.can_shift(), "llama_memory_can_shift says that they can")
    stage.step("drop 20 positions, move the rest down, go on")
    window.seq_rm(0, 4, 24)
    window.seq_add(0, 24, -1, -20)
    last = window.positions(0)[1]
    stage.hold("positions stay what they were", last == len(tokens) - 1, f"the last position is {last}")
    window.decode(tokens[:1], last + 1)
    stage.step("decode what is left again")
    talk.rewind(0)
    talk.read(tokens[24:])
    before = list(talk.ops)
    stage.compare("the answer", window, before, talk.answer(8))


@scenario(
    "long-chat-kills-an-old-model",
    story="one user of a GPT-2 type model typed on beyond its context, and the server was gone",
    right="an error code, and the chat as it was",
    models=("gpt2",),
    defects=("D7",),
)
def long_chat_kills(stage: Stage) -> None:
    learned = stage.engine.n_ctx_train
    window = stage.open(**{**_SETTINGS, **F32, "n_ctx": 2 * learned})
    talk = Talk(window)
    talk.read(stage.tokens(learned - 8))
    stage.step(f"decode position {learned} of a model that has learned {learned}")
    code = window.try_decode(stage.tokens(16, seed=1), learned - 8, 0)
    stage.hold("an error code", code != 0, "the call succeeded")
    stage.hold("nothing was added", window.positions(0)[1] == learned - 9, f"positions {window.positions(0)}")
    before = list(talk.ops)
    stage.compare("the chat goes on", window, before, talk.answer(4))
