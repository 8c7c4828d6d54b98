"""Long conversations with everything that people do to them: edits, cuts, regenerated answers, forks, autosaves."""

from __future__ import annotations

from ..scenario import scenario
from ..stage import Stage, repeated
from ..talk import Talk
from ..texts import remarks

_DENSE = "smollm2-135m"


@scenario(
    "dangling-pointer",
    story="I drop the oldest message before each answer to stay inside the context; after a fork and a save of the "
    "chat the answers dissolve into repetition",
    right="every answer as from the same history in a context that was never forked or saved",
    models=(_DENSE,),
    defects=("A1", "A3"),
    seconds=60,
)
def dangling_pointer(stage: Stage) -> None:
    settings = {"n_ctx": 4096, "n_seq_max": 2, "kv_unified": False}
    talk = Talk(stage.open(**settings))
    said: list[int] = []
    for turn, note in enumerate(remarks("dangling", 12), start=1):
        if turn >= 3:
            stage.step(f"turn {turn}: the oldest message and its answer are dropped")
            talk.cut(talk.marks[0], talk.marks[1])
            residue = talk.window.residue()
            if residue is not None:
                stage.measure(f"residue after the removal in turn {turn}, bytes", residue)
        if turn in (6, 10):
            seq = talk.seq
            if turn == 6:
                stage.step("turn 6: the chat is forked at once, and the fork moves to another server")
                seq = 1
                talk.fork(seq)
            else:
                stage.step("turn 10: the chat is saved at once, and resumed in another server")
            blob = talk.window.save(seq)
            moved = stage.open(**settings)
            moved.load(seq, blob)
            talk = talk.twin(seq, moved)
        before, got = talk.turn(note, 12)
        stage.compare(f"answer {turn}", talk.window, before, got)
        said += got.tokens
    stage.measure("repeated 4-grams in all answers", repeated(said))


@scenario(
    "fifteen-turns",
    story="after an evening of edits, cuts and regenerated answers the assistant answers things that I deleted",
    right="each answer as from a chat in which only what is left was ever said",
    models=("gemma3-270m", _DENSE),
    defects=("A3", "B1"),
    seconds=90,
)
def fifteen_turns(stage: Stage) -> None:
    settings = {"n_ctx": 4096, "n_batch": 128, "n_ubatch": 128, "swa_full": False}
    talk = Talk(stage.open(**settings))
    for turn, note in enumerate(remarks("evening", 16, chars=330), start=1):
        if turn == 9:
            stage.step("turn 9: back to the third question, which is asked in another way")
            talk.rewind(talk.marks[2])
        if turn == 12:
            stage.step("turn 12: a question and its answer are cut from the middle, and the app saves the chat")
            talk.cut(talk.marks[2], talk.marks[3])
            blob = talk.window.save(talk.seq)
            resumed = stage.open(**settings)
            resumed.load(talk.seq, blob)
            talk = talk.twin(talk.seq, resumed)
        before, got = talk.turn(note, 10)
        stage.compare(f"answer {turn}", talk.window, before, got)
        if turn == 14:
            stage.step("turn 14: the answer is regenerated, to a question that was put in other words")
            talk.rewind(talk.marks[-1])
            before, got = talk.turn("Put that into one short sentence.", 10)
            stage.compare("answer 14, regenerated", talk.window, before, got)
    stage.measure("removals that were refused, and decoded again", talk.refusals)
