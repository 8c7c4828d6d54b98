"""Is this library the one that the binding describes? Answered before anything of it is trusted.

cffi works out the layout of every struct by the platform's rules; the binding carries what the compiler found. Where
the two differ, or the library lacks a function, or the parameter structs that it fills in make no sense, loading stops
with the name of the struct, field or function. The alternative is a crash later, somewhere else.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import LibraryMismatchError

__all__ = ["check_defaults", "check_functions", "check_layout"]

# Fields of the default parameters with the values that they can have: an inserted or removed field moves them all.
_PLAUSIBLE: dict[str, dict[str, tuple[float, float]]] = {
    "model_params": {
        "n_gpu_layers": (-2, 1 << 20),
        "split_mode": (0, 3),
        "load_mode": (-1, 4),
        "lazy_mode": (0, 2),
        "main_gpu": (0, 0),
    },
    "context_params": {
        "n_ctx": (0, 1 << 20),
        "n_batch": (1, 1 << 20),
        "n_ubatch": (1, 1 << 20),
        "n_seq_max": (1, 1 << 12),
        "n_rs_seq": (0, 1 << 12),
        "n_outputs_max": (0, 1 << 20),
        "n_outputs_max_per_seq": (0, 1 << 20),
        "n_threads": (1, 1 << 12),
        "n_threads_batch": (1, 1 << 12),
        "ctx_type": (0, 1),
        "rope_scaling_type": (-1, 3),
        "pooling_type": (-1, 4),
        "attention_type": (-1, 1),
        "flash_attn_type": (-1, 1),
        "rope_freq_base": (0, 0),
        "rope_freq_scale": (0, 0),
        "yarn_ext_factor": (-1, -1),
        "yarn_attn_factor": (-1, 1),
        "yarn_beta_fast": (-1, 64),
        "yarn_beta_slow": (-1, 64),
        "yarn_orig_ctx": (0, 0),
        "type_k": (1, 1),
        "type_v": (1, 1),
        "n_samplers": (0, 0),
    },
}


def check_layout(binding: Any) -> None:
    """Compare cffi's view of every struct with the compiler's.

    Raises:
        LibraryMismatchError: naming the first struct and field that differ.
    """
    ffi = binding.ffi
    for name, layout in binding.LAYOUT.items():
        ctype = ffi.typeof(name)
        fields = dict(ctype.fields)
        for member, (offset, size) in layout["fields"].items():
            if member not in fields:
                raise LibraryMismatchError(f"the binding has no field {member} in {name}, the compiler saw one")
            seen = (fields[member].offset, ffi.sizeof(fields[member].type))
            if seen != (offset, size):
                raise LibraryMismatchError(
                    f"{name}.{member} lies at byte {seen[0]} with {seen[1]} bytes for Python and at byte {offset} with "
                    f"{size} bytes for the compiler: the binding was made for another platform; build again"
                )
        if ffi.sizeof(ctype) != layout["size"]:
            raise LibraryMismatchError(
                f"{name} has {ffi.sizeof(ctype)} bytes for Python and {layout['size']} for the compiler: the binding "
                "was made for another platform; build again"
            )


def check_functions(binding: Any, functions: Any, path: object) -> None:
    """Every function that the pin's ``llama.h`` declares must be exported.

    Raises:
        LibraryMismatchError: naming those that are missing.
    """
    missing = [name for name in binding.REQUIRED if not hasattr(functions, name)]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise LibraryMismatchError(
            f"{path} does not export {shown}: it is not a llama.cpp of the pinned version {binding.PIN[:12]}; "
            "use a library that this package built, or build this package against that version"
        )


def check_defaults(binding: Any, functions: Any, path: object) -> None:
    """Look at the default parameters that the library fills in.

    The structs are returned into a larger buffer, so that a library with longer structs overwrites nothing.

    Raises:
        LibraryMismatchError: naming the struct and the first field whose value cannot be right.
    """
    ffi = binding.ffi
    for short, ranges in _PLAUSIBLE.items():
        struct = f"struct llama_{short}"
        default = ffi.cast(f"pyllamakv_default_{short}", getattr(functions, f"llama_{short[:-7]}_default_params"))
        returned = default()
        value = returned.value
        raw = bytes(ffi.buffer(ffi.addressof(returned, "value")))
        for field, ctype in ffi.typeof(struct).fields:
            kind = ctype.type
            if kind.cname in ("_Bool", "bool"):
                got: Any = raw[ctype.offset]
                good = got in (0, 1)
            elif kind.kind in ("pointer", "function"):
                got = getattr(value, field)
                good = got == ffi.NULL or field in ("devices", "tensor_buft_overrides", "kv_overrides", "tensor_split")
            else:
                # As a number, whatever cffi would call it: an enum out of range must not raise here.
                got = float(ffi.cast("double", getattr(value, field)))
                low, high = ranges.get(field, (-math.inf, math.inf))
                good = math.isfinite(got) and low <= got <= high
            if not good:
                raise LibraryMismatchError(
                    f"{path} fills {struct}.{field} with {got}, which cannot be its default: its structs are laid out "
                    f"otherwise than those of the pinned version {binding.PIN[:12]}; use a library of that version"
                )
