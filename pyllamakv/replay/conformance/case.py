"""One check's world: the model, the setting, what is known of them, oracles, and the comparison of logits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pyllamakv.errors import DecodeError

from ..engine import Engine, Logits, Window
from ..oracle import BOUND, nmse
from .outcome import NonFinite, NotApplicable, Wrong
from .probe import Probe
from .settings import Setting

__all__ = ["NEEDS", "PARAMS", "ROUNDINGS", "TAIL", "Case", "Facts", "Reads", "Trace", "Warnings", "facts_of"]

#: Contexts of every check: room for two sequences of 512 cells, several micro-batches in a batch.
PARAMS: dict[str, Any] = {"n_ctx": 1024, "n_seq_max": 2, "n_batch": 256, "n_ubatch": 64}

#: Tokens decoded after an edit: the first alone (a hole in the last layer's window shows there only), then the rest.
TAIL: tuple[tuple[int, ...], ...] = ((5,), (6, 7))

#: Tokens of each ``llama_decode`` call of a sequence, in order.
Reads = tuple[tuple[int, ...], ...]

#: Logits, float32 [n_vocab], after each decode of a tail.
Trace = tuple[Logits, ...]

#: What a few roundings more may add, as a multiple of one rounding's error (seen: a little above 10).
ROUNDINGS = 30.0

# Their position table has n_ctx_train rows, and what a token's key holds depends on the row.
_LEARNED = frozenset({"bert", "gpt2", "mpt", "starcoder"})


@dataclass(frozen=True)
class Facts:
    """What a model is, as far as properties ask."""

    architecture: str
    memory: bool
    recurrent: bool
    attention: bool
    n_swa: int
    learned_positions: bool
    n_ctx_train: int
    pkv: bool

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def facts_of(engine: Engine) -> Facts:
    """Opens a small context to see what the model's memory is."""
    lib, model = engine.lib, engine.model
    recurrent = bool(lib.llama_model_is_recurrent(model))
    with engine.open(**PARAMS) as window:
        memory = window.memory != engine.ffi.NULL
        return Facts(
            architecture=engine.architecture,
            memory=memory,
            recurrent=recurrent or bool(lib.llama_model_is_hybrid(model)),
            attention=not recurrent,
            n_swa=int(lib.llama_model_n_swa(model)),
            learned_positions=engine.architecture in _LEARNED,
            n_ctx_train=engine.n_ctx_train,
            pkv=getattr(lib, "pkv_abi_version", None) is not None,
        )


class Warnings:
    """The library's warnings and errors, in place of the package's own log.

    That one makes a Python record of every line; a context writes a hundred, which takes longer than a small graph.
    """

    def __init__(self, engine: Engine) -> None:
        self.lines: list[str] = []
        ffi = engine.ffi

        def receive(level: int, text: Any, _: Any) -> None:
            if level in _LOUD:
                self.lines.append(ffi.string(text).decode("utf-8", "replace").strip())

        self._callback = ffi.callback("ggml_log_callback", receive)
        engine.lib.llama_log_set(self._callback, ffi.NULL)


# ggml_log_level: WARN, ERROR
_LOUD = frozenset({3, 4})


class Case:
    """What a property gets."""

    def __init__(
        self,
        engine: Engine,
        setting: Setting,
        facts: Facts,
        oracles: dict[Any, Trace] | None = None,
        warnings: Warnings | None = None,
    ) -> None:
        self.engine = engine
        self.setting = setting
        self.facts = facts
        #: Oracles known from earlier checks, and those that this check added.
        self.oracles = {} if oracles is None else oracles
        self.added: dict[Any, Trace] = {}
        self.warnings = warnings or Warnings(engine)
        #: Largest error seen.
        self.error: float | None = None

    def open(self, **over: Any) -> Probe:
        """A fresh context with the setting, and ``over`` over it.

        Raises:
            NotApplicable: the library makes none.
        """
        try:
            return Probe(self.engine, {**PARAMS, **self.setting.params(), **over})
        except DecodeError as error:
            raise NotApplicable(f"no context: {error}") from error

    def can_shift(self) -> bool:
        """``llama_memory_can_shift`` of a context with the setting."""
        with self.open() as window:
            return window.can_shift()

    def tokens(self, count: int, seed: int = 1) -> tuple[int, ...]:
        """``count`` random tokens, the same in every run."""
        random = np.random.RandomState(seed)
        return tuple(int(token) for token in random.randint(1, self.engine.n_vocab - 1, size=count))

    def oracle(self, reads: Reads, tail: Reads = TAIL, start: int = 0, **over: Any) -> Trace:
        """What a fresh context with nothing else in it says after ``reads`` from position ``start``, per read of tail.

        Raises:
            NotApplicable: not even that can be decoded.
        """
        # a property may set what the library reads of the environment
        switches = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("LLAMA_")))
        key = (self.setting, tuple(sorted(over.items())), switches, start, reads, tail)
        found = self.oracles.get(key)
        if found is None:
            with self.open(**over) as window:
                try:
                    at = start
                    for read in reads:
                        window.decode(read, at)
                        at += len(read)
                    found = self.tail(window, 0, at, tail)
                except DecodeError as error:
                    raise NotApplicable(f"a fresh context cannot decode this: {error}") from error
            self.oracles[key] = self.added[key] = found
        return found

    @staticmethod
    def tail(window: Window, seq: int, at: int, tail: Reads = TAIL) -> Trace:
        """Decodes ``tail`` from position ``at`` on; the logits after each read."""
        rows = []
        for read in tail:
            rows.append(window.decode(read, at, seq))
            at += len(read)
        return tuple(rows)

    def same(self, got: Sequence[Logits], want: Sequence[Logits], what: str, *, bound: float | None = None) -> None:
        """Holds ``got`` against ``want``, row by row.

        Raises:
            NotApplicable: what is wanted is NaN itself.
            NonFinite, Wrong: they are not the same.
        """
        bound = self.bound() if bound is None else bound
        worst = 0.0
        for row, (a, b) in enumerate(zip(got, want, strict=True)):
            if not np.isfinite(b).all():
                raise NotApplicable("the oracle itself is not finite")
            if not np.isfinite(a).all():
                raise NonFinite(f"{what}: NaN in decode {row + 1} of {len(want)} after it")
            worst = max(worst, nmse(a, b))
        self.error = max(worst, self.error or 0.0)
        if not worst <= bound or math.isnan(worst):
            raise Wrong(f"{what}: off by {worst:.1e} (bound {bound:.0e})")

    def bound(self, placed: bool = True) -> float:
        """Largest error that counts as equal; see ``settings``. A model with a vocabulary has quantised weights."""
        if placed and self.engine.has_text:
            return BOUND
        exact = self.setting.bound(placed)
        return max(exact, ROUNDINGS * self.rounding()) if placed else exact

    def rounding(self, start: int = 0, **over: Any) -> float:
        """What the setting's rounding costs this model: its logits' error against f32 K/V without flash attention.

        Tiny random models hardly look at their keys, some 1e-5 and some 1e-10 of what others do; a bound that serves
        them all would see nothing in most.
        """
        mine = {**self.setting.params(), **over}
        plain: dict[str, Any] = {"type_k": 0, "type_v": 0, "flash_attn": False}
        if all(mine[name] == value for name, value in plain.items()):
            return 0.0
        reads = (self.tokens(40),)
        pairs = zip(
            self.oracle(reads, start=start, **over), self.oracle(reads, start=start, **over | plain), strict=True
        )
        return max(nmse(a, b) for a, b in pairs)

    def needs(self, names: Sequence[str]) -> None:
        """Raises ``NotApplicable`` where the model or the setting lacks one of ``names``."""
        for name in names if "no-memory" in names else ("memory", *names):
            holds, why = NEEDS[name]
            if not holds(self):
                raise NotApplicable(why)


#: What a property may need: whether a check has it, and why it does not apply without.
NEEDS: dict[str, tuple[Callable[[Case], bool], str]] = {
    "memory": (lambda c: c.facts.memory, "the model has no memory"),
    "no-memory": (lambda _: True, ""),
    "attention": (lambda c: c.facts.attention, "the memory is a recurrent state alone"),
    "recurrent": (lambda c: c.facts.recurrent, "the memory has no recurrent state"),
    "attention-only": (lambda c: not c.facts.recurrent, "the memory has a recurrent state"),
    "hybrid": (lambda c: c.facts.recurrent and c.facts.attention, "the memory is not a hybrid one"),
    "window": (lambda c: c.facts.n_swa > 0 and not c.setting.swa_full, "no sliding window, or all of it kept"),
    "rollback": (lambda c: c.facts.recurrent and c.setting.n_rs_seq > 0, "no rollback planes"),
    # a sliding window may be shifted whatever the library announces
    "shift": (lambda c: c.facts.n_swa > 0 or c.can_shift(), "llama_memory_can_shift says no"),
    "no-shift": (lambda c: not c.can_shift(), "llama_memory_can_shift says yes"),
    "unified": (lambda c: c.setting.unified, "sequences do not share cells"),
    "streams": (lambda c: not c.setting.unified, "there is one stream only"),
    "plain": (
        lambda c: c.setting == Setting(c.setting.kv, c.setting.flash_attn),
        "independent of the setting: checked at the plain ones",
    ),
    "once": (lambda c: c.setting == Setting(), "independent of the setting: checked at f32"),
    "learned": (lambda c: c.facts.learned_positions, "no learned position table"),
    "pkv": (lambda c: c.facts.pkv, "the library has no pkv_* functions"),
}
