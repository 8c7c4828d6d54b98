"""The only room that touches cffi: finding, loading and checking llama.cpp, and turning its answers into errors."""

from __future__ import annotations

from .callbacks import AbortFlag, captured_log
from .library import Library, load, loaded
from .locate import find_binding, find_library

__all__ = ["AbortFlag", "Library", "captured_log", "find_binding", "find_library", "load", "loaded"]
