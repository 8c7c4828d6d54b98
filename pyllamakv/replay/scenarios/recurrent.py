"""Recurrent and hybrid models: a state that is whole or nothing."""

from __future__ import annotations

from ..scenario import scenario
from ..stage import F32, Stage
from ..talk import Talk


@scenario(
    "deleted-chats-are-remembered",
    story="I deleted all conversations at once, and the next one still knows them",
    right="everything is gone, and the next conversation starts at nothing",
    models=("mamba", "lfm2", "jamba"),
    defects=("B3",),
    seconds=2,
)
def deleted_chats_are_remembered(stage: Stage) -> None:
    window = stage.open(**F32, n_ctx=256, n_seq_max=2, kv_unified=True)
    for seq in (0, 1):
        Talk(window, seq).read(stage.tokens(30, seed=seq))
    stage.step("seq_rm(-1, -1, -1)")
    done = window.seq_rm(-1, -1, -1)
    stage.hold("removing everything never fails", done, "seq_rm says that it could not")
    for seq in (0, 1):
        last = window.positions(seq)[1]
        stage.hold(f"sequence {seq} is empty", last == -1, f"its last position is {last}")
        talk = Talk(window, seq, counts=False)
        talk.read(stage.tokens(12, seed=9))
        before = list(talk.ops)
        stage.compare(f"the next conversation in sequence {seq}", window, before, talk.answer(8))
