"""Sliding-window attention: a removal that says yes although the window before it is gone."""

from __future__ import annotations

from pyllamakv.errors import DecodeError

from ..scenario import scenario
from ..stage import Stage
from ..talk import Talk
from ..texts import remarks

_SETTINGS = {"n_ctx": 2048, "n_batch": 128, "n_ubatch": 128, "swa_full": False}


@scenario(
    "edited-question-is-misunderstood",
    story="I went back, edited an early message, and the answer has nothing to do with it",
    right="exact, or the removal is refused and the chat is decoded again",
    models=("gemma3-270m",),
    defects=("B1",),
    seconds=15,
)
def edited_question_is_misunderstood(stage: Stage) -> None:
    window = stage.open(**_SETTINGS)
    talk = Talk(window)
    notes = remarks("edit", 10)
    talk.listen(notes)
    stage.step(f"back to position {talk.marks[3]} of {talk.at}, the window is 512")
    talk.rewind(talk.marks[3])
    talk.message("user", "Which machine did I write about in my first note?", prompt=True)
    before = list(talk.ops)
    stage.compare("the answer to the edited question", window, before, talk.answer(16))


@scenario(
    "memory-is-full-although-all-was-removed",
    story="each turn I drop everything but the instructions; after some turns the context is full",
    right="positions tell the truth, and removed cells come back",
    models=("gemma3-270m",),
    defects=("B1", "B2"),
    seconds=25,
)
def memory_is_full(stage: Stage) -> None:
    window = stage.open(**{**_SETTINGS, "n_ctx": 1280})
    # A program that leaves the positions to llama.cpp, as llama_batch_get_one does.
    talk = Talk(window, counts=False)
    talk.listen(remarks("rules", 3))
    keep = talk.at
    for turn in range(1, 4):
        stage.step(f"turn {turn}: read seven messages, then drop all but the first {keep} positions")
        try:
            talk.listen(remarks(f"leak {turn}", 7))
        except DecodeError as error:
            stage.hold(f"there is room for turn {turn}", False, str(error))
            return
        talk.rewind(keep)
        last = window.positions(0)[1]
        stage.hold(f"the last position after turn {turn}", last == keep - 1, f"it is {last}, not {keep - 1}")
    talk.message("user", "What should I do next?", prompt=True)
    before = list(talk.ops)
    stage.compare("the answer after three turns", window, before, talk.answer(12))
