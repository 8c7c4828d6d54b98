"""Long documents: read in blocks, asked about, dropped, and the next one read."""

from __future__ import annotations

import time

from ..oracle import Oracle
from ..scenario import scenario
from ..stage import Stage, repeated
from ..talk import Talk
from ..texts import manual, paper, remarks

_ORDERS = (
    "You read reports about shore birds. Answer in one sentence. Never guess: say that you do not know. Names and "
    "years are quoted as they stand in the report. "
)


@scenario(
    "second-document",
    story="the first paper works, the second is paralysed: after the first was dropped, answers make no sense",
    right="the second paper is answered as by a fresh process, as fast, in the same memory",
    models=("gemma3-270m",),
    defects=("B1", "B2"),
    seconds=60,
)
def second_document(stage: Stage) -> None:
    window = stage.open(n_ctx=8192, swa_full=False)
    talk = Talk(window)
    talk.message("user", _ORDERS + " ".join(remarks("orders", 2)))
    keep = talk.at
    first, second = paper(1), paper(2, sections=3, chars=6_000)
    stage.step("read the first paper, 20,000 characters, and sum it up")
    start = time.perf_counter()
    for page in first.pages:
        talk.message("user", page)
    rate = (talk.at - keep) / (time.perf_counter() - start)
    talk.turn("Sum up the paper.", 12)
    stage.step(f"drop all but the first {keep} of {talk.at} positions, read the second paper")
    talk.rewind(keep)
    last = window.positions(0)[1]
    stage.hold("positions tell the truth", last == keep - 1, f"the last position is {last}, not {keep - 1}")
    before, got = talk.turn("Repeat your orders.", 12)
    stage.compare("the first answer after the removal", window, before, got)
    start, at = time.perf_counter(), talk.at
    for page in second.pages:
        talk.message("user", page)
    again = (talk.at - at) / (time.perf_counter() - start)
    for fact in second.facts:
        before, got = talk.turn(fact.question, 10)
        stage.compare(fact.question, window, before, got)
    stage.measure("tokens per second, second paper / first", again / rate)


@scenario(
    "manual-23-pages",
    story="I fed it a manual of 23 pages block by block, dropped the first turns, the app saved the chat: now it raves",
    right="the same answers as a chat that kept running; page 12 is still known",
    models=("smollm2-135m", "smollm2-moe"),
    defects=("A3",),
    seconds=120,
    limit=600,
)
def manual_23_pages(stage: Stage) -> None:
    book = manual()
    fact = book.facts[1]
    settings = {"n_ctx": 3072}
    window = stage.open(**settings)
    talk = Talk(window)
    said: list[int] = []
    for page, text in enumerate(book.pages, start=1):
        if page > 8:
            # the context holds some ten pages: the oldest page goes before the next one comes
            talk.cut(talk.marks[0], talk.marks[1])
        talk.message("user", text)
        if page == 12:
            talk.message("user", fact.question, prompt=True)
            said += talk.answer(12).tokens
            talk.end_turn()
    stage.step("drop the first three turns, save the chat, resume it")
    control = Oracle.resumed(window, talk.seq, talk.ops)
    for _ in range(3):
        talk.cut(talk.marks[0], talk.marks[1])
    blob = window.save(talk.seq)
    resumed = stage.open(**settings)
    resumed.load(talk.seq, blob)
    talk = talk.twin(talk.seq, resumed)
    for question in (fact.question, book.facts[2].question):
        before, got = talk.turn(question, 14)
        stage.compare(question, resumed, before, got, control=control)
        said += got.tokens
    stage.measure("repeated 4-grams in the answers", repeated(said))
    control.close()
