"""llama.cpp with a KV memory that stays right.

    import pyllamakv as kv
    model = kv.Model("model.gguf")
    with model.context(n_ctx=4096) as ctx:
        logits = ctx.decode(model.tokenize("Hello"), seq=0)

Names are resolved on first use (PEP 562), so that ``pyllamakv.build`` runs before anything is compiled or installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import (
    ArgumentError,
    BuildError,
    ClosedError,
    DecodeError,
    DigestError,
    DownloadError,
    LibraryMismatchError,
    LibraryNotFoundError,
    MemoryFullError,
    ModelLoadError,
    NonFiniteError,
    PatchError,
    PyllamakvError,
    RefusedError,
    SourceError,
    StateError,
)

if TYPE_CHECKING:
    from .runtime import Context, Entry, Memory, Model, Removal, Sampler

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BuildError",
    "ClosedError",
    "Context",
    "DecodeError",
    "DigestError",
    "DownloadError",
    "Entry",
    "LibraryMismatchError",
    "LibraryNotFoundError",
    "Memory",
    "MemoryFullError",
    "Model",
    "ModelLoadError",
    "NonFiniteError",
    "PatchError",
    "PyllamakvError",
    "RefusedError",
    "Removal",
    "Sampler",
    "SourceError",
    "StateError",
    "__version__",
    "errors",
]

_RUNTIME = frozenset({"Context", "Entry", "Memory", "Model", "Removal", "Sampler"})


def __getattr__(name: str) -> Any:
    if name in _RUNTIME:
        value = getattr(import_module(".runtime", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
