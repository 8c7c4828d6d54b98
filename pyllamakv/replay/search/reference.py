"""What the answer should have been: fresh contexts that do a history and nothing else, kept warm while it grows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pyllamakv.replay.engine import Engine, Logits

from .history import History, poisoned
from .window import SearchWindow

__all__ = ["OracleError", "Reference"]

#: Contexts that stay open, to be continued by a history that goes on from theirs.
WARM = 4


class OracleError(RuntimeError):
    """The fresh context could not do what the sequence under test did."""


class _Run:
    """One context and how far it has come; ``logits`` of the last decode."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        self.window = SearchWindow(engine, settings)
        self.done: History = ()
        self.logits: Logits | None = None

    def go(self, history: History) -> None:
        for step in history[len(self.done) :]:
            found = self._step(step, 0)
            self.logits = found if found is not None else self.logits
        self.done = history

    def _step(self, step: tuple[Any, ...], seq: int) -> Logits | None:
        window, kind = self.window, step[0]
        if kind == "decode":
            code = window.decode_parts([(seq, step[1], step[2])])
            if code:
                raise OracleError(f"a fresh context answers {code} to {len(step[2])} tokens at {step[1]}")
            return window.rows(1)[0]
        if kind == "remove":
            if not window.seq_rm(seq, step[1], step[2]):
                raise OracleError(f"a fresh context refuses to remove [{step[1]}, {step[2]})")
        elif kind == "shift":
            window.seq_add(seq, step[1], step[2], step[3])
        elif kind == "divide":
            window.seq_div(seq, step[1], step[2], step[3])
        elif kind == "merge":
            for inner in step[1]:
                self._step(inner, seq + 1)
            window.seq_rm(seq, step[2], step[3])
            window.seq_cp(seq + 1, seq, step[2], step[3])
            window.seq_rm(seq + 1, -1, -1)
        return None


def _depth(history: History) -> int:
    return max((1 + _depth(step[1]) for step in history if step[0] == "merge"), default=0)


class Reference:
    """Logits of histories. An edit in the history asks for cells that a sliding window may have let go, so a context
    that performs one keeps them all (``swa_full``); the attention masks are the same."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        self.engine = engine
        self.settings = {**settings, "n_rs_seq": 0}
        self._known: dict[History, Logits] = {}
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        self._count = 0

    def logits(self, history: History) -> Logits:
        """float32 [n_vocab] of the last token of ``history``, whose last step is a decode."""
        if poisoned(history) or not history or history[-1][0] != "decode":
            raise ValueError("an answer needs a decode at its end, and no poison")
        if history not in self._known:
            run = self._run(history)
            run.go(history)
            assert run.logits is not None
            self._known[history] = run.logits
        return self._known[history]

    def _run(self, history: History) -> _Run:
        edited = any(step[0] != "decode" for step in history)
        depth = _depth(history)
        best: int | None = None
        for key, run in self._runs.items():
            same = run.window.settings["edited"] == edited and run.window.settings["n_seq_max"] == 1 + depth
            longer = best is None or len(run.done) > len(self._runs[best].done)
            if same and longer and run.done == history[: len(run.done)]:
                best = key
        if best is not None:
            self._runs.move_to_end(best)
            return self._runs[best]
        settings = {**self.settings, "n_seq_max": 1 + depth, "kv_unified": depth > 0, "edited": edited}
        settings["n_ctx"] = self.settings["n_ctx"] * (1 + depth)
        if edited:
            settings["swa_full"] = True
        self._count += 1
        self._runs[self._count] = _Run(self.engine, settings)
        while len(self._runs) > WARM:
            self._runs.popitem(last=False)[1].window.close()
        return self._runs[self._count]

    def close(self) -> None:
        for run in self._runs.values():
            run.window.close()
        self._runs.clear()
