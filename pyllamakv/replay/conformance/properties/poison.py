"""Poison and residue: NaN that one request brought in must end with it, by whatever way its cells are freed."""

from __future__ import annotations

import numpy as np

from ..case import Case
from ..outcome import NotApplicable, Wrong
from ..registry import prop
from ..subject import Subject


@prop(
    "poison-removed",
    "A sequence decoded after a poisoned one was removed is like any other.",
    defects=("C1", "C2", "C4"),
)
def poison_removed(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0)
    subject.remove(0)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after a poisoned sequence was removed")


@prop("poison-overflow", "Inf from values that f16 cannot hold ends with the sequence.", defects=("C1", "C4"))
def poison_overflow(case: Case) -> None:
    subject = Subject(case)
    rows = np.full((48, case.engine.n_embd), 3e38, dtype=np.float32)
    if subject.window.try_embed(rows, 0):
        raise NotApplicable("embeddings cannot be decoded")
    subject.reads[0] = ((-1,) * 48,)
    subject.remove(0)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after an overflowing sequence was removed")


@prop("poison-tail", "Removing a poisoned tail leaves the sequence as it was.", defects=("C1",))
def poison_tail(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(0)
    subject.remove(0, 30)
    subject.check(0, "after a poisoned tail was removed")


@prop("poison-token", "Removing one poisoned token leaves the sequence as it was.", defects=("C1", "A4"))
def poison_token(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(0, 1)
    subject.remove(0, 30)
    subject.check(0, "after a poisoned token was removed")


@prop(
    "poison-neighbour", "A neighbour decoded after a poisoned sequence was removed is like any other.", defects=("C1",)
)
def poison_neighbour(case: Case) -> None:
    subject = Subject(case)
    subject.poison(1)
    subject.remove(1)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "beside a removed poisoned sequence")


@prop(
    "poison-neighbour-before",
    "A neighbour that was there before is untouched once the poison is removed.",
    defects=("C1",),
)
def poison_neighbour_before(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(1)
    subject.remove(1)
    subject.check(0, "beside a removed poisoned sequence")


@prop("poison-live-neighbour", "A neighbour is untouched while the poisoned sequence is still there.", defects=("C1",))
def poison_live_neighbour(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(1)
    subject.check(0, "beside a poisoned sequence")


@prop("poison-clear", "clear(data=false) ends poison.", defects=("C1", "C2"))
def poison_clear(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0)
    subject.clear(data=False)
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after a clear")


@prop("poison-keep", "seq_keep ends the poison of the others.", defects=("C1", "C3"))
def poison_keep(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(1)
    subject.keep(0)
    subject.check(0, "the sequence that was kept")
    subject.read(1, case.tokens(30, 4))
    subject.check(1, "a new sequence in place of the poisoned one")


@prop("poison-shift", "Poison that a shift pushed below zero is gone.", defects=("C1", "C3"), needs=("shift",))
def poison_shift(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0, 16)
    subject.window.seq_add(0, 0, -1, -16)
    if subject.window.positions(0) != (-1, -1):
        raise NotApplicable("the shift is refused")
    subject.reads[0] = ()
    subject.read(0, case.tokens(30, 3))
    subject.check(0, "after poison was shifted away")


@prop(
    "poison-window",
    "Poison that left the sliding window, and is then removed, is gone.",
    defects=("C3",),
    needs=("window",),
)
def poison_window(case: Case) -> None:
    subject = Subject(case)
    subject.poison(0)
    subject.window.try_decode(case.tokens(100), 48)
    subject.reads[0] = ((-1,) * 148,)
    subject.remove(0)
    subject.read(0, case.tokens(60, 3))
    subject.check(0, "after poison that left the window")


@prop("poison-restored-over", "A restore over a poisoned sequence ends the poison.", defects=("C1", "C2", "C3"))
def poison_restored_over(case: Case) -> None:
    source, subject = Subject(case), Subject(case)
    source.read(0, case.tokens(30, 3))
    subject.read(0, case.tokens(30, 4))
    subject.poison(1)
    subject.load(1, source.save(0), source.reads[0])
    subject.check(1, "the restored sequence")
    subject.check(0, "the neighbour")


@prop("poison-copied-over", "A copy over a poisoned sequence ends the poison.", defects=("C1", "C2", "C3"))
def poison_copied_over(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(30, 3))
    subject.poison(1)
    subject.copy(0, 1)
    subject.check(1, "the copy")
    subject.check(0, "the sequence that was copied")


@prop("residue", "With eager scrubbing no way of freeing cells leaves a byte.", defects=("C3",), needs=("pkv",))
def residue(case: Case) -> None:
    lib = case.engine.lib

    def freed(how: str) -> None:
        left = window.residue()
        if left:
            raise Wrong(f"{left} bytes are left after {how}")

    subject = Subject(case)
    window = subject.window
    if not lib.pkv_set_scrub(window.ctx, lib.PKV_SCRUB_EAGER):
        raise NotApplicable("no eager scrubbing")
    blob = Subject(case).window.save(0)
    for seq in (0, 1):
        subject.read(seq, case.tokens(100, 1 + seq))
    if window.seq_rm(0, 90, -1):
        freed("a removal of the end")
    if case.facts.attention and window.seq_rm(0, 70, 80):
        freed("a removal of a middle")
    if case.can_shift():
        window.seq_add(0, 0, -1, -8)
        freed("a shift below zero")
    window.seq_keep(1)
    freed("seq_keep")
    window.load(1, blob)
    freed("a restore of nothing")
    subject.reads = {}
    subject.read(0, case.tokens(150, 3))
    window.seq_rm(0, -1, -1)
    freed("a removal of all")
    subject.read(1, case.tokens(60, 4))
    window.try_load(1, blob[: len(blob) // 2])
    window.clear(False)
    freed("a clear")
