"""What the pinned llama.cpp asserts on for single architectures: known here, so that it is refused and not died of.

Each entry was seen to end the process, most with the tiny models that upstream's own ``test-llama-archs`` writes. All
but the learned positions and the narrow embeddings concern stock libraries: the patched one does not die of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "even_ubatch",
    "learned_positions",
    "one_sequence_batches",
    "shift_obstacle",
    "token_embeddings",
    "whole_copies_only",
]

# Positions are rows of a table with n_ctx_train rows; ggml_get_rows asserts beyond it.
_LEARNED_POSITIONS = frozenset({"bert", "gpt2", "mpt", "starcoder"})
# n_embd_out is the width of several streams, the tensor that is read has one: "tensor read out of bounds".
_NARROW_EMBEDDINGS = frozenset({"deepseek4", "qwen4exp"})
# llm_build_delta_net_base::build_chunking at the reserve: "ggml_can_repeat(b, a)" unless every sequence has as many
# tokens of the micro-batch.
_EVEN_UBATCH = frozenset({"kimi-linear"})
# models/plamo2.cpp writes the states of several sequences at kv_head * n_seqs instead of kv_head: into those of others,
# or beyond the buffer ("data_size + view_offs <= ggml_nbytes(view_src)").
_ONE_SEQUENCE = frozenset({"plamo2"})
# llama_kv_cache_dsv4::seq_cp: "DSV4 only supports full sequence copies".
_WHOLE_COPIES = frozenset({"deepseek4"})

# A context's caches, by the library's log.
_NO_LAYERS = re.compile(r"^llama_kv_cache: size = .*\s0 layers\b")
_NO_ROTATION = re.compile(r"^llama_kv_cache: attn_rot_k = 0, n_embd_head_k_all = (?!0\b)")


def learned_positions(architecture: str) -> bool:
    """Whether positions from ``n_ctx_train`` on cannot be decoded."""
    return architecture in _LEARNED_POSITIONS


def token_embeddings(architecture: str) -> bool:
    """Whether contexts with ``embeddings=True`` can decode."""
    return architecture not in _NARROW_EMBEDDINGS


def even_ubatch(architecture: str) -> bool:
    """Whether ``n_ubatch`` has to be a multiple of ``n_seq_max``."""
    return architecture in _EVEN_UBATCH


def one_sequence_batches(architecture: str) -> bool:
    """Whether a batch must not hold several sequences."""
    return architecture in _ONE_SEQUENCE


def whole_copies_only(architecture: str) -> bool:
    """Whether a stock library copies nothing but whole sequences, in one stream too."""
    return architecture in _WHOLE_COPIES


def shift_obstacle(lines: Sequence[tuple[int, str]], type_k: str, partial_rotary: bool) -> str:
    """Why the next decode after a shift would end the process; empty where nothing stands against it.

    Args:
        lines: what the library logged when it made the context.
        type_k: how K is stored.
        partial_rotary: whether positions turn only a part of each head.

    A cache without layers (a sliding-window pattern that covers all of them, or none) sets an input that no layer uses;
    there is no bf16 rotary kernel; quantised K is shifted through a rotation that some head sizes do not have, and of a
    part of a head is either the wrong part or "not implemented".
    """
    if type_k == "bf16":
        return "the library cannot rotate K that is stored as bf16; use type_k='f16'"
    quantized_k = type_k not in ("f32", "f16")
    if quantized_k and partial_rotary:
        return f"K is stored as {type_k} and positions turn only a part of each head; use type_k='f16'"
    if any(_NO_LAYERS.match(line) for _, line in lines):
        return "one of this model's caches has no layers, which the library cannot shift"
    if quantized_k and any(_NO_ROTATION.match(line) for _, line in lines):
        return "K is quantised without a rotation (for its head size, or by LLAMA_ATTN_ROT_DISABLE); use type_k='f16'"
    return ""
