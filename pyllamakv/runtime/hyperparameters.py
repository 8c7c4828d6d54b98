"""Numbers in a model file that llama.cpp asserts on while it loads the model, read before.

These are the checks that every architecture shares (``llama_model_base::load_hparams``). What single architectures
assert on beyond them (a head size that does not fit the tensors, say) still ends the process: a file whose header was
altered on purpose is not safe to load.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError
from ..native import Library

__all__ = ["check_hyperparameters"]

_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_FEW_EXPERTS_ARE_NONE = frozenset({"hunyuan_vl", "hunyuan-dense"})

Number = Callable[[str], float | None]


def check_hyperparameters(library: Library, path: Path) -> None:
    """Raise ModelLoadError where the header asks for what cannot be; one that cannot be read is the loader's to report.

    Takes as long as reading the header: 10 ms for 50,000 tokens.
    """
    ffi, lib = library.ffi, library.lib
    params = ffi.new("struct gguf_init_params *")
    params.no_alloc = True
    gguf = lib.gguf_init_from_file(os.fsencode(path), params[0])
    if gguf == ffi.NULL:
        return
    try:
        place = lib.gguf_find_key(gguf, b"general.architecture")
        if place < 0 or lib.gguf_get_kv_type(gguf, place) != lib.GGUF_TYPE_STRING:
            return
        architecture = library.text(lib.gguf_get_val_str(gguf, place))
        wrong = _wrong(architecture, lambda key: _number(lib, gguf, f"{architecture}.{key}"))
    finally:
        lib.gguf_free(gguf)
    if wrong:
        raise ModelLoadError(f"{path} is damaged, or was made by a faulty converter: {architecture}.{wrong}")


def _wrong(architecture: str, number: Number) -> str:
    """What is wrong with the numbers; empty if nothing is."""
    layers, next_layers = number("block_count"), number("nextn_predict_layers") or 0
    if layers is not None and not 0 < layers <= _MAX_LAYERS:
        return f"block_count is {layers:g}; it has to be from 1 to {_MAX_LAYERS}"
    if layers is not None and next_layers > layers:
        return f"nextn_predict_layers is {next_layers:g}, of {layers:g} layers"
    for key in ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon"):
        epsilon = number(f"attention.{key}")
        if epsilon is not None and not (math.isfinite(epsilon) and epsilon >= 0):
            return f"attention.{key} is {epsilon}; it has to be finite and at least 0"
    experts, used, groups = (number(f"expert_{key}") for key in ("count", "used_count", "group_count"))
    experts, groups = experts or 0, groups or 0
    if architecture in _FEW_EXPERTS_ARE_NONE and experts <= 1:
        return ""
    if experts > _MAX_EXPERTS:
        return f"expert_count is {experts:g}; it has to be at most {_MAX_EXPERTS}"
    # Where layers differ, there is an array, and no number here.
    if used is not None and (used > experts or (experts > 0 and used == 0)):
        return f"expert_used_count is {used:g}, of {experts:g} experts"
    if groups > 0 and groups >= experts:
        return f"expert_group_count is {groups:g}, of {experts:g} experts"
    if groups > 1:
        groups_used = number("expert_group_used_count") or 0
        if experts % groups or not 0 < groups_used < groups:
            return f"expert_group_count is {groups:g} ({groups_used:g} used), of {experts:g} experts"
    return ""


def _number(lib: Any, gguf: Any, key: str) -> float | None:
    """A number in the metadata, None where the key is missing or is none."""
    place = lib.gguf_find_key(gguf, key.encode())
    if place < 0:
        return None
    kind = lib.gguf_get_kv_type(gguf, place)
    for name, getter in (
        ("UINT32", lib.gguf_get_val_u32),
        ("INT32", lib.gguf_get_val_i32),
        ("FLOAT32", lib.gguf_get_val_f32),
        ("UINT64", lib.gguf_get_val_u64),
        ("INT64", lib.gguf_get_val_i64),
        ("UINT16", lib.gguf_get_val_u16),
        ("FLOAT64", lib.gguf_get_val_f64),
    ):
        if kind == getattr(lib, f"GGUF_TYPE_{name}"):
            return float(getter(gguf, place))
    return None
