"""Sampling through llama.cpp's sampler chain."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import native
from ..errors import ArgumentError, NonFiniteError, RefusedError
from ..native.status import log_text
from . import checks
from .context import Context
from .grammar import check_grammar
from .handle import Handle, Owner
from .model import Model

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Sampler"]

_MAX_SEED = 2**32 - 1
_MAX_LAST_N = 1 << 20
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler(Handle):
    """A chain of samplers, built step by step; the last one chooses.

        sampler = Sampler(model).top_k(40).top_p(0.95).temp(0.8).dist(seed=1)
        token = sampler.sample(ctx)

    ``greedy``, ``dist``, ``mirostat`` and ``mirostat_v2`` choose. ``sample`` also tells the chain what it chose, which
    ``penalties`` and ``grammar`` need; tokens of the prompt are told with ``accept``.

    Threads may share a sampler: calls wait for each other.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model, Model):
            raise ArgumentError(f"model is of type {type(model).__name__}; it has to be a Model")
        model._use()
        assert model._owner is not None
        self.model = model
        self._ffi, self._lib = model.library.ffi, model.library.lib
        self._lock = threading.RLock()
        self._take(self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params()))
        self._steps: list[str] = []
        self._grammars: list[int] = []  # places in the chain
        self._chooses = False

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Sampler {' > '.join(self._steps) or 'empty'}{state}>"

    def close(self) -> None:
        """Free the chain."""
        with self._lock:
            super().close()

    # Steps that choose

    def greedy(self) -> Self:
        """Choose the most likely token."""
        return self._add("greedy", self._lib.llama_sampler_init_greedy(), chooses=True)

    def dist(self, seed: int | None = None) -> Self:
        """Choose by probability; None takes a new seed each time."""
        return self._add(f"dist({seed})", self._lib.llama_sampler_init_dist(_seed(seed)), chooses=True)

    def mirostat(self, tau: float = 5.0, eta: float = 0.1, *, m: int = 100, seed: int | None = None) -> Self:
        """Mirostat 1.0: choose at a steady surprise of ``tau`` bits."""
        tau, eta = checks.as_float(tau, "tau", 0.0, 1e6), checks.as_float(eta, "eta", 0.0, 1e6)
        m = checks.as_int(m, "m", 2, 1 << 20)
        made = self._lib.llama_sampler_init_mirostat(self.model.n_vocab, _seed(seed), tau, eta, m)
        return self._add(f"mirostat({tau:g}, {eta:g})", made, chooses=True)

    def mirostat_v2(self, tau: float = 5.0, eta: float = 0.1, *, seed: int | None = None) -> Self:
        """Mirostat 2.0."""
        tau, eta = checks.as_float(tau, "tau", 0.0, 1e6), checks.as_float(eta, "eta", 0.0, 1e6)
        made = self._lib.llama_sampler_init_mirostat_v2(_seed(seed), tau, eta)
        return self._add(f"mirostat_v2({tau:g}, {eta:g})", made, chooses=True)

    # Steps that narrow

    def temp(self, t: float) -> Self:
        """Divide the logits by ``t``; 0 leaves only the most likely token."""
        t = checks.as_float(t, "t", 0.0)
        # Logits divided by less overflow to Inf; the limit of small temperatures is the most likely token.
        return self._add(f"temp({t:g})", self._lib.llama_sampler_init_temp(t if t >= 1e-6 else 0.0))

    def top_k(self, k: int) -> Self:
        """Keep the ``k`` most likely tokens; 0 keeps all."""
        k = checks.as_int(k, "k", 0, checks.INT32_MAX)
        return self._add(f"top_k({k})", self._lib.llama_sampler_init_top_k(k))

    def top_p(self, p: float, min_keep: int = 1) -> Self:
        """Keep the likeliest tokens that together have probability ``p``."""
        p, keep = checks.as_float(p, "p", 0.0, 1.0), self._keep(min_keep)
        return self._add(f"top_p({p:g})", self._lib.llama_sampler_init_top_p(p, keep))

    def min_p(self, p: float, min_keep: int = 1) -> Self:
        """Keep tokens at least ``p`` times as likely as the likeliest."""
        p, keep = checks.as_float(p, "p", 0.0, 1.0), self._keep(min_keep)
        return self._add(f"min_p({p:g})", self._lib.llama_sampler_init_min_p(p, keep))

    def typical(self, p: float, min_keep: int = 1) -> Self:
        """Locally typical sampling."""
        p, keep = checks.as_float(p, "p", 0.0, 1.0), self._keep(min_keep)
        return self._add(f"typical({p:g})", self._lib.llama_sampler_init_typical(p, keep))

    def top_n_sigma(self, n: float) -> Self:
        """Keep tokens within ``n`` standard deviations of the best logit."""
        n = checks.as_float(n, "n", 0.0)
        return self._add(f"top_n_sigma({n:g})", self._lib.llama_sampler_init_top_n_sigma(n))

    def xtc(self, p: float, threshold: float, *, min_keep: int = 1, seed: int | None = None) -> Self:
        """Exclude top choices: with probability ``p`` drop all but the least likely above ``threshold``."""
        p, t = checks.as_float(p, "p", 0.0, 1.0), checks.as_float(threshold, "threshold", 0.0, 1.0)
        made = self._lib.llama_sampler_init_xtc(p, t, self._keep(min_keep), _seed(seed))
        return self._add(f"xtc({p:g}, {t:g})", made)

    def penalties(self, last_n: int = 64, *, repeat: float = 1.0, freq: float = 0.0, present: float = 0.0) -> Self:
        """Make tokens of the last ``last_n`` accepted ones less likely."""
        last_n = checks.as_int(last_n, "last_n", 0, _MAX_LAST_N)
        repeat = checks.as_float(repeat, "repeat", 1e-6, 1e6)
        freq, present = checks.as_float(freq, "freq", -1e6, 1e6), checks.as_float(present, "present", -1e6, 1e6)
        made = self._lib.llama_sampler_init_penalties(self.model.n_vocab, last_n, repeat, freq, present)
        return self._add(f"penalties({last_n}, {repeat:g}, {freq:g}, {present:g})", made)

    def logit_bias(self, bias: Mapping[int, float]) -> Self:
        """Add to the logits of single tokens; ``-math.inf`` forbids one."""
        if not isinstance(bias, Mapping):
            raise ArgumentError(f"bias is of type {type(bias).__name__}; it has to be a dict of token: float")
        pairs = [
            (
                checks.as_int(token, "token", 0, self.model.n_vocab - 1),
                -math.inf if _is_minus_inf(value) else checks.as_float(value, "bias"),
            )
            for token, value in bias.items()
        ]
        array = self._ffi.new("llama_logit_bias[]", pairs or 1)
        made = self._lib.llama_sampler_init_logit_bias(self.model.n_vocab, len(pairs), array)
        return self._add(f"logit_bias({len(pairs)})", made)

    def grammar(self, text: str, root: str = "root") -> Self:
        """Allow only what a GBNF grammar can still become.

        Raises:
            ArgumentError: it does not parse; upstream writes where to standard error.
        """
        raw, root_raw = checks.as_text(text, "the grammar"), checks.as_text(root, "root")
        if not raw.strip() or not root_raw:
            raise ArgumentError("the grammar or the name of its root is empty")
        if not self.model.vocabulary.has_tokenizer:
            raise ArgumentError("this model's file has no tokenizer, which a grammar needs")
        check_grammar(text)
        self._use()
        with native.captured_log() as lines:
            made = self._lib.llama_sampler_init_grammar(self._vocabulary(), raw, root_raw)
        if made == self._ffi.NULL:
            said = log_text(lines) or f"is there a rule {root!r}?"
            raise ArgumentError(f"the grammar does not parse: {said} (the library writes where to standard error)")
        place = len(self._steps)
        self._add("grammar", made)
        self._grammars.append(place)
        return self

    # Use

    def sample(self, source: Context | npt.ArrayLike) -> int:
        """Choose a token, and ``accept`` it.

        Args:
            source: a context (the last logits it computed), or logits, float32 [n_vocab].

        Raises:
            NonFiniteError: the logits hold NaN or +Inf, which has no order to choose by.
            RefusedError: nothing is left to choose from, or there are no logits.
        """
        with self._lock:
            chain = self._use()
            if not self._chooses:
                raise ArgumentError(f"{self!r} chooses nothing: end it with greedy(), dist() or mirostat()")
            if isinstance(source, Context):
                with source._lock:
                    data = self._candidates(source.logits_view()[-1])
            else:
                data = self._candidates(source)
            array, keep = self._array(data)
            self._lib.llama_sampler_apply(chain, array)
            del keep
            if not 0 <= array.selected < array.size:
                raise RefusedError(f"{self!r} chose nothing")
            chosen = array.data[array.selected]
            token = int(chosen.id)
            if not math.isfinite(chosen.logit):
                raise RefusedError("every token that is left is forbidden (by the grammar, or a bias of -inf)")
            self._accept(chain, token)
            return token

    def accept(self, token: int | Sequence[int]) -> Self:
        """Tell the chain about a token that came from elsewhere (the prompt, a draft), or several.

        Raises:
            RefusedError: the grammar does not allow it here; nothing changed (tokens before it count).
        """
        with self._lock:
            chain = self._use()
            for one in checks.as_tokens(token, self.model.n_vocab).tolist():
                self._accept(chain, one)
            return self

    def reset(self) -> Self:
        """Forget what was accepted."""
        with self._lock:
            self._lib.llama_sampler_reset(self._use())
            return self

    def clone(self) -> Sampler:
        """A copy in the same state."""
        with self._lock:
            chain = self._use()
            twin = Sampler.__new__(Sampler)
            twin.model, twin._ffi, twin._lib, twin._lock = self.model, self._ffi, self._lib, threading.RLock()
            twin._take(self._lib.llama_sampler_clone(chain), self._owner)
            twin._steps, twin._grammars, twin._chooses = list(self._steps), list(self._grammars), self._chooses
            return twin

    def _take(self, pointer: Any, other: Owner | None = None) -> None:
        parents = [self.model._owner] if self.model._owner is not None else []
        self._owner = Owner(pointer, self._lib.llama_sampler_free, *parents, *([other] if other else []))

    def _vocabulary(self) -> Any:
        return self.model.vocabulary._pointer

    def _add(self, step: str, made: Any, *, chooses: bool = False) -> Self:
        with self._lock:
            try:
                chain = self._use()
                if self._chooses:
                    raise ArgumentError(f"{self!r} has chosen already: put {step} before the last step")
            except Exception:
                self._lib.llama_sampler_free(made)
                raise
            self._lib.llama_sampler_chain_add(chain, made)
            self._steps.append(step)
            self._chooses = chooses
            return self

    def _keep(self, min_keep: Any) -> int:
        return checks.as_int(min_keep, "min_keep", 0, self.model.n_vocab)

    def _candidates(self, logits: Any) -> npt.NDArray[Any]:
        """``llama_token_data`` of every token; refuses what the library's sorting cannot order."""
        try:
            array = np.asarray(logits)
        except (TypeError, ValueError, OverflowError) as err:
            raise ArgumentError(f"the logits cannot be read as an array: {err}") from None
        n_vocab = self.model.n_vocab
        if array.shape != (n_vocab,) or array.dtype.kind not in "fiu":
            raise ArgumentError(f"the logits have shape {array.shape} and type {array.dtype}, not float32 [{n_vocab}]")
        with np.errstate(over="ignore"):
            values = array.astype(np.float32, copy=False)
        top = float(values.max())  # NaN if there is any
        if math.isnan(top) or top == math.inf:
            bad = int(np.count_nonzero(~np.isfinite(values) & (values != -np.inf)))
            raise NonFiniteError(
                f"{bad} of {n_vocab} logits are NaN or Inf: the model computed nonsense, most often from poisoned "
                "memory; clear it (ctx.memory.clear()) and decode again"
            )
        if top == -math.inf:
            raise RefusedError("every logit is -inf: every token is forbidden")
        data = np.empty(n_vocab, _CANDIDATE)
        data["id"] = np.arange(n_vocab, dtype=np.int32)
        data["logit"] = values
        data["p"] = 0.0
        return data

    def _array(self, data: npt.NDArray[Any]) -> tuple[Any, Any]:
        array = self._ffi.new("llama_token_data_array *")
        keep = self._ffi.from_buffer("llama_token_data[]", data)
        array.data, array.size, array.selected, array.sorted = keep, len(data), -1, False
        return array, keep

    def _accept(self, chain: Any, token: int) -> None:
        """Accept, after asking every grammar: one that is told a token it does not allow ends the process."""
        for place in self._grammars:
            one = np.array([(token, 0.0, 0.0)], _CANDIDATE)
            array, keep = self._array(one)
            self._lib.llama_sampler_apply(self._lib.llama_sampler_chain_get(chain, place), array)
            del keep
            if one["logit"][0] == -np.inf:
                raise RefusedError(f"the grammar does not allow token {token} here")
        self._lib.llama_sampler_accept(chain, token)


def _seed(seed: int | None) -> int:
    return _MAX_SEED if seed is None else checks.as_int(seed, "seed", 0, _MAX_SEED)


def _is_minus_inf(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and value == -math.inf
