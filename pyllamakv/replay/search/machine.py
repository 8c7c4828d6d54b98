"""The Hypothesis rule machine: it draws operations, has a player carry them out, and fails where the player says so."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .player import Player
from .script import FINISH, Failure, Op, Script

__all__ = ["FailedExampleError", "Log", "machine_for", "settings_for"]

#: Cells of a stream: llama.cpp pads to this.
PAD = 256

F32, F16, Q8_0 = 0, 1, 8


class FailedExampleError(AssertionError):
    """An example went wrong."""


class Log:
    """What the examples of one run did, and the shortest script of the failure that was found first.

    Others than that one, and the ``known`` ones, end their example without a word: shrinking must not slip from one
    failure to another. ``avoid`` leaves operations out, to look behind a failure that is not mended yet.
    """

    def __init__(
        self,
        known: Collection[tuple[str, str]] = (),
        avoid: Callable[[Op, dict[str, Any]], bool] = lambda _op, _settings: False,
    ) -> None:
        self.known, self.avoid = known, avoid
        self.examples = self.steps = self.passed_over = 0
        self.failure: Failure | None = None
        self.script: Script | None = None

    def wants(self, failure: Failure) -> bool:
        return failure.key not in self.known and (self.failure is None or failure.key == self.failure.key)

    def take(self, failure: Failure, script: Script) -> None:
        if self.script is None or len(script.ops) <= len(self.script.ops):
            self.failure, self.script = failure, Script(script.model, script.settings, list(script.ops))


@st.composite
def settings_for(draw: Any, *, plain: bool = False) -> dict[str, Any]:
    """Settings of a context; ``plain``: f32 and no flash attention, where the bound is tightest."""
    n_seq = draw(st.integers(1, 4), label="sequences")
    unified = draw(st.booleans(), label="unified")
    flash = False if plain else draw(st.booleans(), label="flash attention")
    kv = F32 if plain else draw(st.sampled_from([F32, F16, Q8_0] if flash else [F32, F16]), label="KV type")
    n_ubatch = draw(st.sampled_from([8, 16, 64]), label="ubatch")
    snapshots = draw(st.sampled_from([0, 8]), label="snapshots")
    return {
        "n_ctx": PAD if unified else PAD * n_seq,
        "n_batch": 64,
        "n_ubatch": n_ubatch,
        "n_seq_max": n_seq,
        "kv_unified": unified,
        "flash_attn": flash,
        "type_k": kv,
        "type_v": kv,
        "swa_full": draw(st.booleans(), label="swa_full"),
        "n_rs_seq": snapshots if n_ubatch > snapshots + 1 else 0,
    }


_COUNT = st.one_of(st.integers(1, 4), st.integers(1, 40), st.integers(1, 64))
_SEED = st.integers(0, 99)
_SEQ = st.integers(0, 3)
_SLOT = st.integers(0, 1)
_STRICT = st.booleans()


def machine_for(player: Player, log: Log, *, plain: bool = False) -> type[RuleBasedStateMachine]:
    """The machine that plays on ``player`` and writes to ``log``."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.script = Script(player.model.name, {})
            self.over = True

        @initialize(settings=settings_for(plain=plain))
        def open(self, settings: dict[str, Any]) -> None:
            self.script.settings = settings
            self.n_seq: int = settings["n_seq_max"]
            log.examples += 1
            self.over = False
            self.judge(player.begin(settings))
            self.next: list[int] = [0] * self.n_seq

        def do(self, **op: Any) -> None:
            if self.over or log.avoid(op, self.script.settings):
                return
            self.script.ops.append(op)
            log.steps += 1
            self.judge(player.do(op))
            self.next = player.lengths or self.next

        def judge(self, failure: Failure | None) -> None:
            if failure is None:
                return
            self.over = True
            player.end()
            if log.wants(failure):
                log.take(failure, self.script)
                raise FailedExampleError(f"{failure.operation}: {failure.kind}: {failure.detail}")
            log.passed_over += 1

        def teardown(self) -> None:
            if not self.over:
                self.judge(player.do(FINISH))
            player.end()

        def range_of(self, data: Any, seq: int) -> tuple[int, int]:
            """Positions [p0, p1) that mean something in a sequence, open ends among them."""
            end = self.next[seq]
            p0 = data.draw(st.one_of(st.just(-1), st.integers(0, end)), label="p0")
            p1 = data.draw(st.one_of(st.just(-1), st.integers(max(p0, 0), end)), label="p1")
            return p0, p1

        @rule(seq=_SEQ, count=_COUNT, seed=_SEED, auto=st.booleans())
        def decode(self, seq: int, count: int, seed: int, auto: bool) -> None:
            self.do(op="decode", parts=[[seq % self.n_seq, count]], seed=seed, mix=False, auto=auto)

        @rule(seqs=st.lists(_SEQ, min_size=2, max_size=4, unique=True), count=st.integers(1, 20), seed=_SEED)
        def share(self, seqs: list[int], count: int, seed: int) -> None:
            self.do(op="share", seqs=seqs, count=count, seed=seed)

        @rule(
            parts=st.lists(st.tuples(_SEQ, st.integers(1, 16)), min_size=2, max_size=4), seed=_SEED, mix=st.booleans()
        )
        def decode_together(self, parts: list[tuple[int, int]], seed: int, mix: bool) -> None:
            self.do(op="decode", parts=[[seq % self.n_seq, count] for seq, count in parts], seed=seed, mix=mix)

        @rule(
            parts=st.lists(st.tuples(_SEQ, st.integers(1, 30)), min_size=1, max_size=2),
            seed=_SEED,
            mix=st.booleans(),
            after=st.one_of(st.integers(0, 8), st.integers(0, 400)),
        )
        def abort(self, parts: list[tuple[int, int]], seed: int, mix: bool, after: int) -> None:
            parts_of = [[seq % self.n_seq, count] for seq, count in parts]
            self.do(op="abort", parts=parts_of, seed=seed, mix=mix, after=after)

        @rule(
            seq=_SEQ,
            count=st.integers(1, 20),
            how=st.sampled_from(["whole", "tail", "clear", "keep", "copy", "leave"]),
        )
        def poison(self, seq: int, count: int, how: str) -> None:
            self.do(op="poison", seq=seq % self.n_seq, count=count, how=how)

        @rule(seq=st.integers(-1, 3), data=st.data(), strict=_STRICT)
        def remove(self, seq: int, data: Any, strict: bool) -> None:
            seq = seq if seq < 0 else seq % self.n_seq
            p0, p1 = self.range_of(data, max(seq, 0))
            self.do(op="remove", seq=seq, p0=p0, p1=p1, strict=strict)

        @rule(seq=_SEQ, count=st.integers(1, 9), strict=_STRICT)
        def roll_back(self, seq: int, count: int, strict: bool) -> None:
            end = self.next[seq % self.n_seq]
            self.do(op="remove", seq=seq % self.n_seq, p0=max(end - count, 0), p1=-1, strict=strict)

        @rule(src=_SEQ, dst=_SEQ, strict=_STRICT, data=st.data(), whole=st.booleans())
        def copy(self, src: int, dst: int, strict: bool, data: Any, whole: bool) -> None:
            src, dst = src % self.n_seq, dst % self.n_seq
            p0, p1 = (-1, -1) if whole else self.range_of(data, src)
            self.do(op="copy", src=src, dst=dst, p0=p0, p1=p1, strict=strict)

        @rule(seq=_SEQ, strict=_STRICT)
        def keep(self, seq: int, strict: bool) -> None:
            self.do(op="keep", seq=seq % self.n_seq, strict=strict)

        @rule(seq=_SEQ, data=st.data(), delta=st.integers(-20, 20), strict=_STRICT)
        def shift(self, seq: int, data: Any, delta: int, strict: bool) -> None:
            p0, p1 = self.range_of(data, seq % self.n_seq)
            self.do(op="shift", seq=seq % self.n_seq, p0=p0, p1=p1, delta=delta, strict=strict)

        @rule(seq=_SEQ, data=st.data(), strict=_STRICT)
        def cut(self, seq: int, data: Any, strict: bool) -> None:
            """What programs do: a piece goes, and the rest moves down over it."""
            seq = seq % self.n_seq
            p0, p1 = self.range_of(data, seq)
            if 0 <= p0 < p1 < self.next[seq]:
                self.do(op="remove", seq=seq, p0=p0, p1=p1, strict=strict)
                self.do(op="shift", seq=seq, p0=p1, p1=-1, delta=p0 - p1, strict=strict)

        @rule(seq=_SEQ, data=st.data(), by=st.integers(2, 4), strict=_STRICT)
        def divide(self, seq: int, data: Any, by: int, strict: bool) -> None:
            p0, p1 = self.range_of(data, seq % self.n_seq)
            self.do(op="divide", seq=seq % self.n_seq, p0=p0, p1=p1, by=by, strict=strict)

        @rule(data=st.booleans())
        def clear(self, data: bool) -> None:
            self.do(op="clear", data=data)

        @rule(seq=_SEQ, slot=_SLOT)
        def save(self, seq: int, slot: int) -> None:
            self.do(op="save", seq=seq % self.n_seq, slot=slot)

        @rule(slot=_SLOT, seq=_SEQ)
        def restore(self, slot: int, seq: int) -> None:
            self.do(op="restore", slot=slot, seq=seq % self.n_seq)

        @rule(slot=_SLOT, seq=_SEQ, at=st.integers(0, 99), how=st.sampled_from(["cut", "flip"]))
        def damage(self, slot: int, seq: int, at: int, how: str) -> None:
            self.do(op="damage", slot=slot, seq=seq % self.n_seq, at=(at / 100) ** 2, how=how)

        @rule(seq=_SEQ, slot=_SLOT)
        def checkpoint(self, seq: int, slot: int) -> None:
            self.do(op="checkpoint", seq=seq % self.n_seq, slot=slot)

        @rule(slot=_SLOT)
        def rewind(self, slot: int) -> None:
            self.do(op="rewind", slot=slot)

        @rule(slot=_SLOT)
        def save_all(self, slot: int) -> None:
            self.do(op="save_all", slot=slot + 2)

        @rule(slot=_SLOT, fresh=st.booleans())
        def restore_all(self, slot: int, fresh: bool) -> None:
            self.do(op="restore_all", slot=slot + 2, fresh=fresh)

        @rule()
        def move(self) -> None:
            self.do(op="move")

        @rule(eager=st.booleans())
        def scrub(self, eager: bool) -> None:
            self.do(op="scrub", eager=eager)

        @rule()
        def sync(self) -> None:
            self.do(op="sync")

        @rule()
        def compact(self) -> None:
            self.do(op="compact")

        @precondition(lambda self: len(self.script.ops) > 3)
        @rule(seq=_SEQ)
        def check(self, seq: int) -> None:
            self.do(op="check", seq=seq % self.n_seq)

    return Machine
