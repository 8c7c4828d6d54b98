"""A request that is NaN and still there, on a mixture of experts: its neighbours are routed by it."""

from __future__ import annotations

import numpy as np

from ..scenario import scenario
from ..stage import Stage, repeated
from ..talk import Talk
from ..texts import remarks


@scenario(
    "one-bad-request-stops-every-expert",
    story="one request to the MoE model goes wrong, and from then on everybody gets the same token",
    right="that request gets an error and leaves nothing; the others' answers are the oracle's, token for token",
    models=("smollm2-moe-noise",),
    defects=("C4",),
    seconds=20,
)
def bad_request_stops_every_expert(stage: Stage) -> None:
    settings = {"n_ctx": 1024, "n_seq_max": 4, "kv_unified": True}
    window = stage.open(**settings)
    talk = Talk(window, 0)
    talk.listen(remarks("experts", 1))
    stage.step("another user's request holds NaN; nobody removes it")
    rows = np.zeros((64, stage.engine.n_embd), dtype=np.float32)
    rows[40] = np.nan
    code = window.try_embed(rows, 0, 1)
    stage.hold("the request gets an error", code != 0, f"llama_decode returned {code}")
    stage.hold("nothing of it is left", window.positions(1)[1] == -1, f"positions {window.positions(1)}")
    talk.message("user", "Tell me what a feed pump is for.", prompt=True)
    before, got = list(talk.ops), talk.answer(32, through=True)
    stage.compare("the neighbour's answer", window, before, got)
    stage.measure("repeated 4-grams", repeated(got.tokens))
