"""One example in the making: the context under test, what its sequences must be, and the verdict of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pyllamakv.replay.engine import Engine
from pyllamakv.replay.oracle import nmse

from . import history as h
from .bounds import bound_of
from .history import History
from .memories import memory_of
from .reference import OracleError, Reference
from .script import Failure, Op, tokens_of
from .window import Part, SearchWindow

__all__ = ["Broken", "Slot", "World"]

#: What a checked sequence has to go on with: one token, then one more (a hole in the last window shows in the first).
TAIL = ((5,), (6,))


class Broken(Exception):  # noqa: N818 - it is the result of a step, not an accident
    """A step went wrong."""

    def __init__(self, kind: str, detail: str, seq: int | None = None, history: History | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.seq, self.history = kind, detail, seq, history


class Slot:
    """A saved state: the bytes, and the history of each sequence in it."""

    def __init__(self, blob: bytes, histories: dict[int, History]) -> None:
        self.blob, self.histories = blob, histories


class World:
    """The operations themselves are in ``decodes``, ``edits`` and ``states``; here is what they have in common."""

    def __init__(self, engine: Engine, settings: dict[str, Any], bounds: dict[str, float]) -> None:
        self.engine = engine
        self.settings = dict(settings)
        self.memory = memory_of(engine.architecture)
        self.bound = bound_of(bounds, settings)
        self.n_seq: int = settings.get("n_seq_max", 1)
        self.window = SearchWindow(engine, settings)
        # cells that one sequence can have: all of them in a unified cache, its stream's otherwise
        self.n_cells = int(self.window.lib.llama_n_ctx(self.window.ctx))
        if not settings.get("kv_unified"):
            self.n_cells = int(self.window.lib.llama_n_ctx_seq(self.window.ctx))
        self.reference = Reference(engine, {**settings, "n_ctx": self.n_cells})
        self.histories: list[History] = [()] * self.n_seq
        self.slots: dict[int, Slot] = {}
        self.checkpoints: dict[int, tuple[int, Slot]] = {}
        self.eager = False
        self.worst = 0.0
        self.compared = self.refusals = 0

    def close(self) -> None:
        self.window.close()
        self.reference.close()

    # a step

    def play(self, op: Op) -> Failure | None:
        """Carries out one operation; what is wrong with the outcome."""
        from .steps import STEPS

        try:
            STEPS[op["op"]](self, op)
            self.check_positions()
            self.check_residue()
        except Broken as broken:
            return Failure(
                broken.kind, op["op"], broken.detail, broken.seq, list(broken.history) if broken.history else None
            )
        except OracleError as error:
            return Failure("oracle", op["op"], str(error))
        return None

    def next_pos(self, seq: int) -> int:
        return max(h.positions(self.histories[seq]), default=-1) + 1

    def parts(self, op: Op) -> list[Part]:
        """Where the tokens of a decode go; sequences that hold poison are left out."""
        out: list[Part] = []
        for i, (seq, count) in enumerate(op["parts"]):
            if seq < self.n_seq and not h.poisoned(self.histories[seq]) and seq not in [part[0] for part in out]:
                tokens = tokens_of(op["seed"] + 7919 * i, count, self.engine.n_vocab)
                out.append((seq, self.next_pos(seq), tokens))
        return out

    def cells_used(self, seq: int) -> int:
        """Cells taken in the sequence's stream, at most: shared cells of a unified cache count for each owner."""
        if self.settings.get("kv_unified"):
            return sum(len(h.positions(history)) for history in self.histories)
        return len(h.positions(self.histories[seq]))

    # verdicts

    def compare(self, seq: int, what: str, got: Any, history: History) -> None:
        """Logits of the last token of ``history`` against the oracle's. Raises ``Broken``."""
        self.compared += 1
        what = f"sequence {seq}{what}"
        error = nmse(got, self.reference.logits(history))
        if math.isnan(error):
            raise Broken("nan", f"{what}: NaN or Inf in the logits", seq, history)
        if error > self.bound:
            raise Broken("wrong", f"{what}: error {error:.1e}, bound {self.bound:.0e}", seq, history)
        self.worst = max(self.worst, error)

    def check_positions(self) -> None:
        """seq_pos_min and seq_pos_max of every sequence against the histories."""
        for seq, history in enumerate(self.histories):
            found, cells = self.window.positions(seq), h.positions(history)
            if not cells:
                good = found == (-1, -1)
            else:
                low, high = min(cells), max(cells)
                lowest = found[0] == low if self.memory.exact_min else low <= found[0] <= high
                good = found[1] == high and lowest
            if not good:
                want = (min(cells), max(cells)) if cells else (-1, -1)
                raise Broken("positions", f"sequence {seq} says {found}, it has {want}", seq)

    def check_residue(self) -> None:
        """With eager scrubbing nothing is left in a free cell."""
        if self.eager:
            left = self.window.residue()
            if left:
                raise Broken("residue", f"{left} bytes of free cells are not zero although scrubbing is eager")

    def refused(self, told: bool | None, needless: Callable[[], str | None]) -> bool:
        """Whether the library says that it did nothing; ``Broken`` where exactness did not ask for that."""
        if told is not False:
            return False
        self.refusals += 1
        if why := needless():
            raise Broken("needless", f"refused although {why}: {self.window.reason() or 'no reason given'}")
        return True

    def check(self, seq: int) -> None:
        """Saved, restored into a fresh context, and two tokens more: the oracle's logits?"""
        history = self.histories[seq]
        if not h.positions(history) or h.poisoned(history):
            return
        blob = self.window.save(seq)
        if not blob:
            raise Broken("call", f"the state of sequence {seq} cannot be saved")
        if self.next_pos(seq) + len(TAIL) > self.last_pos:
            return
        with SearchWindow(self.engine, self.settings) as scratch:
            other = (seq + 1) % self.n_seq
            if not scratch.try_load(other, blob):
                raise Broken("call", f"the saved state of sequence {seq} cannot be restored into a fresh context")
            self.follow(scratch, other, history, seq, ", saved and restored")

    @property
    def last_pos(self) -> int:
        """Positions end here: the model's, or the cells of a fresh context."""
        return min(self.n_cells, self.engine.n_ctx_train)

    def follow(self, window: SearchWindow, at: int, history: History, seq: int, what: str) -> History:
        """Two tokens more for the sequence ``at`` of ``window``, which holds what ``seq`` holds."""
        for tokens in TAIL:
            pos = max(h.positions(history)) + 1
            code = window.decode_parts([(at, pos, tokens)])
            if code == 1 and window is self.window and self.cells_used(seq) + len(TAIL) > self.n_cells:
                break  # full
            if code:
                raise Broken("call", f"sequence {seq}{what}: llama_decode answers {code}", seq)
            history = h.decoded(history, pos, tokens)
            self.compare(seq, what, window.rows(1)[0], history)
        return history

    def finish(self) -> None:
        """Every sequence against its oracle: in a scratch context, then where it is."""
        for seq in range(self.n_seq):
            self.check(seq)
        self.check_positions()
        for seq in range(self.n_seq):
            history = self.histories[seq]
            if history and not h.poisoned(history) and self.next_pos(seq) + len(TAIL) <= self.last_pos:
                self.histories[seq] = self.follow(self.window, seq, history, seq, ", continued")
