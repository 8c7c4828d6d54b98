"""Forks, saved sessions and restored ones: queued work that outlives what it refers to."""

from __future__ import annotations

import time

from ..oracle import truncate
from ..scenario import scenario
from ..stage import F32, Stage
from ..talk import Talk
from ..texts import remarks

#: Two sequences, each with a stream of its own, as llama-server runs its slots.
_STREAMS = {"n_ctx": 2048, "n_seq_max": 2, "kv_unified": False, "swa_full": False}
_QUESTION = "What should I clean first?"


@scenario(
    "saved-fork-forgets",
    story="I forked a conversation and saved the fork at once; opened again, it talks nonsense",
    right="the saved fork goes on like the conversation that it was made from",
    models=("smollm2-135m", "smollm2-moe", "gemma3-270m"),
    defects=("A1",),
    seconds=15,
)
def saved_fork_forgets(stage: Stage) -> None:
    window = stage.open(**_STREAMS)
    talk = Talk(window)
    talk.listen(remarks("fork", 3))
    stage.step("fork, and save the fork before anything is decoded")
    blob = talk.fork(1).window.save(1)
    other = stage.open(**_STREAMS)
    other.load(1, blob)
    resumed = talk.twin(1, other)
    before, got = resumed.turn(_QUESTION, 16)
    stage.compare("the fork, restored in another process", other, before, got)
    before, got = talk.turn(_QUESTION, 16)
    stage.compare("the conversation that was forked", window, before, got)


@scenario(
    "restored-chat-becomes-another",
    story="I loaded my saved chat into a slot that had just been forked, and got the other chat's answers",
    right="what was restored stays; a fork stays what it was when it was made",
    models=("smollm2-135m",),
    defects=("A2",),
    seconds=20,
)
def restored_chat_becomes_another(stage: Stage) -> None:
    notes = remarks("restore", 4)
    window = stage.open(**_STREAMS)
    mine = Talk(window, 1)
    mine.listen(notes[:1])
    blob = window.save(1)
    other = Talk(window, 0)
    other.listen(notes[1:3])
    stage.step("fork the other chat into the slot, then load my chat there")
    other.fork(1)
    window.load(1, blob)
    before, got = mine.turn(_QUESTION, 12)
    stage.compare("my chat, loaded over a fork", window, before, got)
    stage.step("fork again, then load another chat into the one that was forked")
    fork = other.fork(1)
    window.load(0, blob)
    before, got = fork.turn(_QUESTION, 12)
    stage.compare("the fork, its source loaded over", window, before, got)


@scenario(
    "resumed-chat-talks-nonsense",
    story="the chat was saved right after its oldest messages were dropped; resumed, it talks nonsense",
    right="the resumed chat goes on like the one that was never closed",
    models=("smollm2-135m",),
    defects=("A3",),
    seconds=15,
)
def resumed_chat_talks_nonsense(stage: Stage) -> None:
    settings = {**_STREAMS, "n_seq_max": 1}
    window = stage.open(**settings)
    talk = Talk(window)
    talk.listen(remarks("resume", 4))
    stage.step("drop the oldest message, and save before anything is decoded")
    talk.cut(talk.marks[0], talk.marks[1])
    blob = window.save(0)
    other = stage.open(**settings)
    other.load(0, blob)
    before, got = talk.twin(0, other).turn(_QUESTION, 16)
    stage.compare("the resumed chat", other, before, got)


@scenario(
    "fork-of-a-part-kills-the-server",
    story="forking a conversation at an earlier message kills the server, and everybody's chat with it",
    right="the fork knows the messages up to there and no others; a second part can follow the first",
    models=("smollm2-135m", "gemma3-270m"),
    defects=("B6",),
    seconds=15,
)
def fork_of_a_part_kills(stage: Stage) -> None:
    window = stage.open(**_STREAMS)
    talk = Talk(window)
    talk.listen(remarks("part", 4))
    for label, (start, end) in {"a part": (0, talk.marks[2]), "the next part": (talk.marks[2], talk.marks[3])}.items():
        stage.step(f"seq_cp of positions {start} to {end} into another stream")
        window.seq_cp(0, 1, start, end)
        fork = Talk(window, 1, truncate(talk.ops, end))
        if window.positions(1)[1] != end - 1:  # not copied: a careful program decodes it
            fork.rewind(0)
            fork = Talk(window, 1)
            fork.listen(remarks("part", 4)[: 2 if start == 0 else 3])
        before, got = fork.turn(_QUESTION, 12)
        stage.compare(f"the fork with {label}", window, before, got)
        fork.rewind(end)
    before, got = talk.turn(_QUESTION, 12)
    stage.compare("the conversation that was forked", window, before, got)


@scenario(
    "fork-makes-everybody-wait",
    story="whenever someone forks a short chat on a server with a large context, everybody waits",
    right="the first token after a fork takes at most two and a half times as long as any other",
    models=("smollm2-135m",),
    defects=("B6",),
    seconds=15,
)
def fork_makes_everybody_wait(stage: Stage) -> None:
    window = stage.open(**{**_STREAMS, "n_ctx": 2 * 32768})
    talk = Talk(window)
    talk.message("user", "Say hello to the workshop.", prompt=True)

    def timed() -> float:
        start = time.perf_counter()
        talk.answer(1)
        return time.perf_counter() - start

    talk.answer(2)
    plain = [timed() for _ in range(9)]
    stage.step("fork into the other stream, then decode one token")
    forked = []
    for _ in range(4):
        fork = talk.fork(1)
        forked.append(timed())
    # the quickest of each: a busy machine slows both, a copy of the whole stream is in every fork
    ratio = min(forked) / min(plain)
    stage.measure("token after a fork / plain token", ratio)
    stage.hold("nobody waits for a fork", ratio <= 2.5, f"the first token after a fork took {ratio:.1f} times as long")
    fork.end_turn()
    before, got = fork.turn(_QUESTION, 8)
    stage.compare("the fork", window, before, got)


@scenario(
    "new-chat-continues-the-old-one",
    story="the slot was reset by loading an empty session, and the new user's chat continues the old user's",
    right="the slot is empty",
    models=("smollm2-135m", "lfm2"),
    defects=("B8",),
    seconds=10,
)
def new_chat_continues_the_old_one(stage: Stage) -> None:
    settings = {**_STREAMS, "n_ctx": 1024}
    window = stage.open(**settings if stage.engine.has_text else {**settings, **F32, "n_ctx": 512})
    empty = window.save(1)
    old = Talk(window)
    if stage.engine.has_text:
        old.listen(remarks("old", 2))
    else:
        old.read(stage.tokens(40))
    stage.step("load the state of an empty sequence")
    window.load(0, empty)
    stage.hold("the slot is empty", window.positions(0) == (-1, -1), f"it holds positions {window.positions(0)}")
    new = Talk(window, counts=False)
    if stage.engine.has_text:
        new.message("user", "What did I tell you so far?", prompt=True)
    else:
        new.read(stage.tokens(12, seed=1))
    before = list(new.ops)
    stage.compare("the new chat", window, before, new.answer(8))
