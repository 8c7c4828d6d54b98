"""What a scenario plays on: engines, windows, the oracle, and the checks it hands back one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .engine import Engine, LibraryLike, Window
from .oracle import TIE, Answer, Op, Oracle, bound_for, nmse

__all__ = ["F32", "Check", "Stage", "repeated"]


#: Context settings for the tiny f32 models, whose small differences f16 keys and values would drown.
F32 = {"type_k": 0, "type_v": 0}


@dataclass(frozen=True)
class Check:
    """One comparison. ``nmse`` is the largest error over the answer's tokens, ``first`` that of its first one; both
    are None where the check compares something else. ``same`` of ``tokens`` are the oracle's own choice."""

    label: str
    ok: bool
    finite: bool = True
    nmse: float | None = None
    first: float | None = None
    bound: float | None = None
    tokens: int = 0
    same: int = 0
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object; an error that is not a number becomes None (``finite`` tells)."""
        data = asdict(self)
        for name in ("nmse", "first"):
            if data[name] is not None and not math.isfinite(data[name]):
                data[name] = None
        return data


def repeated(tokens: Sequence[int], size: int = 4) -> float:
    """Share of the ``size``-grams that occurred before in ``tokens``."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


class Stage:
    """One scenario on one model in one library.

    ``model_path`` finds a model's file, ``emit`` gets each check at once, so that what was seen before a death is kept,
    and ``step`` announces what comes next, so that the death has a place.
    """

    def __init__(
        self,
        library: LibraryLike,
        model: str,
        model_path: Callable[[str], Path],
        emit: Callable[[dict[str, Any]], None],
        *,
        threads: int = 1,
    ) -> None:
        self.library, self.model, self.threads = library, model, threads
        self._path, self._emit = model_path, emit
        self._engines: dict[str, Engine] = {}
        self._windows: list[Window] = []
        self._oracles: dict[str, Oracle] = {}
        self._explained = False
        self.measures: dict[str, float] = {}

    @property
    def engine(self) -> Engine:
        """The scenario's model, loaded on first use."""
        return self.other(self.model)

    def other(self, model: str) -> Engine:
        """Another model, loaded on first use."""
        if model not in self._engines:
            self._engines[model] = Engine(self.library, self._path(model), threads=self.threads)
        return self._engines[model]

    def open(self, **settings: Any) -> Window:
        """A fresh window of the scenario's model, closed when the scenario ends."""
        window = self.engine.open(**settings)
        self._windows.append(window)
        return window

    def step(self, text: str) -> None:
        """Says what is done next."""
        self._emit({"step": text})

    def measure(self, name: str, value: float) -> None:
        """A number for the report, beside the checks."""
        self.measures[name] = value
        self._emit({"measure": name, "value": value})

    def hold(self, label: str, ok: bool, detail: str = "") -> bool:
        """Something that must hold."""
        self._emit({"check": Check(label, ok, detail="" if ok else detail).to_json()})
        return ok

    def oracle(self, settings: dict[str, Any], model: str | None = None) -> Oracle:
        """The oracle for windows with ``settings``; one for each model and settings."""
        key = f"{model or self.model} {sorted(settings.items())}"
        if key not in self._oracles:
            self._oracles[key] = Oracle(self.other(model or self.model), settings)
        return self._oracles[key]

    def compare(
        self, label: str, window: Window, ops: Sequence[Op], got: Answer, *, control: Oracle | None = None
    ) -> bool:
        """``got``, answered in ``window`` on the history ``ops``, against the oracle: the logits before each token of
        the same answer, and whether the oracle would have chosen those tokens (ties within ``TIE`` count)."""
        oracle = control or self.oracle(window.settings)
        want = oracle.follow(ops, got.tokens)
        errors = [nmse(a, b) for a, b in zip(got.logits, want.logits, strict=True)]
        same = sum(float(row.max() - row[token]) <= TIE for token, row in zip(got.tokens, want.logits, strict=False))
        worst = max(errors, key=lambda e: math.inf if math.isnan(e) else e)
        bound = bound_for(self.engine)
        ok = got.finite and worst <= bound and same == len(got.tokens)
        detail = ""
        if not ok and self.engine.has_text and not self._explained:
            self._explained = True
            right = oracle.answer(ops, max(len(got.tokens), 12))
            detail = f"said “{_short(got.text)}”, right is “{_short(right.text)}”"
        self._emit(
            {"check": Check(label, ok, got.finite, worst, errors[0], bound, len(got.tokens), same, detail).to_json()}
        )
        return ok

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        """Tokens for a model without a tokenizer: any will do, the same on every machine."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return [int(t) for t in rng.integers(3, self.engine.n_vocab, count)]

    def close(self) -> None:
        """Frees everything."""
        for window in self._windows:
            window.close()
        for oracle in self._oracles.values():
            oracle.close()
        for engine in self._engines.values():
            engine.close()


def _short(text: str, limit: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
