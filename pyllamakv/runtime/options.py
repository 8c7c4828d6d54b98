"""Options of a context: llama.cpp's names, checked together, because several of its asserts are about two at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import ArgumentError
from ..native import Library
from . import checks, quirks

__all__ = ["KV_TYPES", "POOLING_TYPES", "ContextOptions"]

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POOLING_TYPES = ("none", "mean", "cls", "last", "rank")
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_ATTENTION = ("causal", "non_causal")
_MAX_THREADS = 512  # GGML_MAX_N_THREADS
_MAX_CTX = 2**31 - 2**16  # room for upstream's rounding up to 256


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """What a context is made with. None takes llama.cpp's default (``n_ctx=0``: what the model was trained with)."""

    n_ctx: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    n_seq_max: int | None = None
    n_rs_seq: int | None = None
    n_threads: int | None = None
    n_threads_batch: int | None = None
    kv_unified: bool | None = None
    swa_full: bool | None = None
    offload_kqv: bool | None = None
    op_offload: bool | None = None
    embeddings: bool | None = None
    flash_attn: bool | None = None
    type_k: str | None = None
    type_v: str | None = None
    pooling_type: str | None = None
    attention_type: str | None = None
    rope_scaling_type: str | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    yarn_orig_ctx: int | None = None

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return ", ".join(f"{name}={value!r}" for name, value in given.items()) or "default options"

    @classmethod
    def from_keywords(cls, options: dict[str, Any]) -> ContextOptions:
        """Raises ArgumentError for an unknown name, with the known ones."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ArgumentError(f"unknown context option {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**options)

    def fill(self, library: Library, params: Any, n_ctx_train: int, architecture: str) -> None:
        """Write the options into ``struct llama_context_params``.

        Raises:
            ArgumentError: an option, or two of them together, would make the library assert.
        """
        for name, low, high in (
            ("n_ctx", 0, _MAX_CTX),
            ("n_batch", 1, _MAX_CTX),
            ("n_ubatch", 0, _MAX_CTX),
            ("n_seq_max", 1, int(library.lib.llama_max_parallel_sequences())),
            ("n_rs_seq", 0, 1 << 16),
            ("n_threads", 1, _MAX_THREADS),
            ("n_threads_batch", 1, _MAX_THREADS),
            ("yarn_orig_ctx", 0, _MAX_CTX),
        ):
            if getattr(self, name) is not None:
                setattr(params, name, checks.as_int(getattr(self, name), name, low, high))
        if self.n_threads is not None and self.n_threads_batch is None:
            params.n_threads_batch = params.n_threads
        for name in ("kv_unified", "swa_full", "offload_kqv", "op_offload", "embeddings"):
            if getattr(self, name) is not None:
                setattr(params, name, checks.as_bool(getattr(self, name), name))
        for name, most in (
            ("rope_freq_base", 1e12),
            ("rope_freq_scale", 1e6),
            ("yarn_ext_factor", 1e6),
            ("yarn_attn_factor", 1e6),
            ("yarn_beta_fast", 1e6),
            ("yarn_beta_slow", 1e6),
        ):
            if getattr(self, name) is not None:
                setattr(params, name, checks.as_float(getattr(self, name), name, 0.0, most))
        if self.flash_attn is not None:
            params.flash_attn_type = int(checks.as_bool(self.flash_attn, "flash_attn"))
        for name, prefix, choices in (
            ("type_k", "GGML_TYPE_", KV_TYPES),
            ("type_v", "GGML_TYPE_", KV_TYPES),
            ("pooling_type", "LLAMA_POOLING_TYPE_", POOLING_TYPES),
            ("attention_type", "LLAMA_ATTENTION_TYPE_", _ATTENTION),
            ("rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_", _ROPE_SCALING),
        ):
            if getattr(self, name) is not None:
                word = checks.as_choice(getattr(self, name), name, choices)
                setattr(params, name, getattr(library.lib, prefix + word.upper()))
        if params.embeddings and not quirks.token_embeddings(architecture):
            raise ArgumentError(f"embeddings=True, but llama.cpp cannot compute the embeddings of {architecture}")
        self._check_batch(params, n_ctx_train, architecture, library.has_pkv)

    def _check_batch(self, params: Any, n_ctx_train: int, architecture: str, patched: bool) -> None:
        n_ctx = int(params.n_ctx) or n_ctx_train
        if n_ctx <= 0:
            raise ArgumentError("the model does not say how long its context is; give n_ctx")
        # With causal attention, upstream cuts the batch to the context; and it reserves one output for each sequence.
        n_batch = min(n_ctx, int(params.n_batch))
        if int(params.n_seq_max) > n_batch:
            raise ArgumentError(
                f"n_seq_max is {params.n_seq_max} and the batch has room for {n_batch} tokens "
                f"(n_batch={params.n_batch}, n_ctx={n_ctx}); a batch must hold one token of every sequence: "
                "raise n_batch, or lower n_seq_max"
            )
        n_ubatch = min(n_batch, int(params.n_ubatch) or n_batch)
        uneven = n_ubatch % int(params.n_seq_max)
        if uneven and quirks.even_ubatch(architecture) and not patched:
            if self.n_ubatch:
                raise ArgumentError(
                    f"n_ubatch comes to {n_ubatch}, but {architecture} needs a multiple of "
                    f"n_seq_max={params.n_seq_max}: {n_ubatch - uneven}, for one"
                )
            params.n_ubatch = n_ubatch - uneven
