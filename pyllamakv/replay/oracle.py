"""What the answer should have been: a fresh context in the same library, the same tokens, the same batch split.

Bounds are what stock itself does where nothing is wrong. The same cells in the same places give equal bits: a copy, a
restored state, a removal at the end. Cells in other places change the order of the sums in attention by a last bit; the
models quantise activations before each product, and a flipped rounding makes that bit visible. Measured on stock with
300 to 600 dead cells before the live ones, FA on and off, 24 tokens each (error per token, logits less their mean):

    SmolLM2 135M Q4_1   median 1.0e-3, largest 3.5e-3; greedy choices differ by at most 0.13
    Gemma 3 270M Q4_K   median 1.3e-3, largest 7.6e-3; greedy choices differ by at most 0.49
    tiny f32 models     below 1e-11 (f32 K/V, FA off); another history moves their logits by 1e-7 to 1e-4

What the defects do is far beyond: a stale copy 1.3 to 4.2, an unapplied shift 0.1 to 1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .engine import Engine, Logits, Window

__all__ = [
    "BOUND",
    "BOUND_F32",
    "TIE",
    "Answer",
    "Cut",
    "Op",
    "Oracle",
    "Read",
    "bound_for",
    "flatten",
    "forced",
    "greedy",
    "length",
    "nmse",
    "perform",
    "truncate",
]

#: Largest error of one token's logits that counts as the same answer: quantised weights, f32 weights.
BOUND, BOUND_F32 = 3e-2, 1e-9

#: A greedy choice counts as the oracle's if the oracle's own best logit is at most this much higher.
TIE = 1.0


def bound_for(engine: Engine) -> float:
    """The bound for this model's weights."""
    return BOUND if engine.has_text else BOUND_F32


def nmse(got: Logits, want: Logits) -> float:
    """Normalised mean squared error ``sum((got - want)^2) / sum(want^2)`` of logits less their mean; NaN where either
    holds NaN or Inf.

    The mean is taken off because a softmax never sees it, while in ``want^2`` it would hide a large error.
    """
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    return float(np.square(a - b).sum() / max(np.square(b).sum(), 1e-300))


@dataclass(frozen=True)
class Read:
    """Tokens that one call decoded behind what was there; several batches where they exceed ``n_batch``."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """Positions [p0, p1) removed and the rest moved down: llama.cpp's context shift."""

    p0: int
    p1: int


Op = Read | Cut


def length(ops: Sequence[Op]) -> int:
    """Tokens that the sequence holds after ``ops``."""
    return sum(len(op.tokens) if isinstance(op, Read) else op.p0 - op.p1 for op in ops)


def truncate(ops: Sequence[Op], keep: int) -> list[Op]:
    """The history without everything from position ``keep`` on, as if it had never been decoded."""
    out = list(ops)
    excess = length(out) - keep
    while excess > 0:
        last = out.pop()
        if isinstance(last, Read):
            if len(last.tokens) > excess:
                out.append(Read(last.tokens[: len(last.tokens) - excess]))
            excess -= min(excess, len(last.tokens))
        elif keep > last.p0:
            # what is left of this history was moved by the cut: take the rest off the tokens before it, and cut again
            return [*truncate(out, keep + last.p1 - last.p0), last]
        else:
            return truncate(out, keep)
    return out


def flatten(ops: Sequence[Op]) -> list[Op]:
    """The history of one who never decoded what was cut: the same batches without the tokens of the cuts."""
    pieces: list[list[int]] = []
    for op in ops:
        if isinstance(op, Read):
            pieces.append(list(op.tokens))
            continue
        start = 0
        for piece in pieces:
            end = start + len(piece)
            del piece[max(op.p0 - start, 0) : max(op.p1 - start, 0)]
            start = end
    return [Read(tuple(piece)) for piece in pieces if piece]


def perform(window: Window, ops: Sequence[Op], seq: int = 0, at: int = 0) -> tuple[int, Logits | None]:
    """``ops`` done on a window whose sequence holds ``at`` tokens; the new length and the last token's logits."""
    logits: Logits | None = None
    for op in ops:
        if isinstance(op, Read):
            logits = window.decode(op.tokens, at, seq)
            at += len(op.tokens)
        else:
            window.seq_rm(seq, op.p0, op.p1)
            window.seq_add(seq, op.p1, -1, op.p0 - op.p1)
            at -= op.p1 - op.p0
    return at, logits


@dataclass(frozen=True)
class Answer:
    """A greedy continuation: the tokens, the logits each came from, and the text."""

    tokens: tuple[int, ...]
    logits: tuple[Logits, ...]
    text: str

    @property
    def finite(self) -> bool:
        """Whether no logit is NaN or Inf."""
        return all(bool(np.isfinite(row).all()) for row in self.logits)


def greedy(window: Window, logits: Logits, at: int | None, seq: int, count: int, *, through: bool = False) -> Answer:
    """The greedy answer of at most ``count`` tokens, each of them decoded.

    An end-of-turn token ends it and is not part of it, unless it goes ``through``. ``at`` None leaves the positions to
    llama.cpp.
    """
    engine = window.engine
    tokens: list[int] = []
    rows = [logits]
    while len(tokens) < count:
        token = int(np.argmax(rows[-1]))  # of NaNs: token 0, which is what llama.cpp's greedy sampler picks too
        if engine.has_text and not through and engine.is_end(token):
            break
        tokens.append(token)
        rows.append(window.decode([token], at, seq))
        at = None if at is None else at + 1
    text = engine.detokenize(tokens) if engine.has_text else " ".join(map(str, tokens))
    return Answer(tuple(tokens), tuple(rows), text.strip())


def forced(window: Window, logits: Logits, at: int, seq: int, tokens: Sequence[int]) -> Answer:
    """``tokens`` decoded one by one, with the logits before each and after the last."""
    rows = [logits, *(window.decode([token], at + i, seq) for i, token in enumerate(tokens))]
    text = window.engine.detokenize(tokens) if window.engine.has_text else " ".join(map(str, tokens))
    return Answer(tuple(tokens), tuple(rows), text.strip())


class Oracle:
    """A context that decodes forward, and otherwise only cuts what is cut from the history: a shift changes no key that
    was computed before it, so its oracle is a run that is never forked, saved, restored or poisoned.

    A history that goes on from the last one is continued, any other starts a fresh context.
    """

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        self.engine = engine
        # one sequence needs one stream; its share of the cells stays as it is
        cells = settings.get("n_ctx", 0) // (1 if settings.get("kv_unified") else settings.get("n_seq_max", 1))
        self.settings = {**settings, "n_ctx": cells, "n_seq_max": 1, "kv_unified": False}
        self.window: Window | None = None
        self.done: list[Op] = []
        self.at = 0
        self.last: Logits | None = None

    @classmethod
    def resumed(cls, window: Window, seq: int, ops: Sequence[Op]) -> Oracle:
        """An oracle that starts from the state of ``seq``, for histories that are too long to decode twice.

        Only right after a decode: nothing is queued then, and a state is bit-equal on stock too.
        """
        oracle = cls(window.engine, window.settings)
        oracle.window = window.engine.open(**oracle.settings)
        oracle.window.load(0, window.save(seq))
        oracle.done, oracle.at = list(ops), length(ops)
        return oracle

    def answer(self, ops: Sequence[Op], count: int, *, through: bool = False) -> Answer:
        """The oracle's own greedy answer of at most ``count`` tokens after ``ops``."""
        return self._continue(ops, lambda window, logits, at: greedy(window, logits, at, 0, count, through=through))

    def follow(self, ops: Sequence[Op], tokens: Sequence[int]) -> Answer:
        """The logits after ``ops`` and after each of ``tokens``: what the oracle thinks of somebody else's answer."""
        return self._continue(ops, lambda window, logits, at: forced(window, logits, at, 0, tokens))

    def _continue(self, ops: Sequence[Op], go: Callable[[Window, Logits, int], Answer]) -> Answer:
        ops = list(ops)
        if self.window is None or ops[: len(self.done)] != self.done:
            self.close()
            # a cut asks a sliding-window cache for positions that it may have let go: the control keeps them all
            settings = {**self.settings, "swa_full": True} if any(isinstance(op, Cut) for op in ops) else self.settings
            self.window, self.done, self.at, self.last = self.engine.open(**settings), [], 0, None
        at, logits = perform(self.window, ops[len(self.done) :], at=self.at)
        self.at, self.last, self.done = at, self.last if logits is None else logits, ops
        if self.last is None or isinstance(ops[-1], Cut):
            raise ValueError("an answer needs a read before it")
        found = go(self.window, self.last, self.at)
        self.done = [*ops, *(Read((token,)) for token in found.tokens)]
        self.at += len(found.tokens)
        self.last = found.logits[-1]
        return found

    def close(self) -> None:
        """Frees the context."""
        if self.window is not None:
            self.window.close()
            self.window = None
