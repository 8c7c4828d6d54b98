"""What C answers, as exceptions: the one place where codes become classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import DecodeError, MemoryFullError, PyllamakvError

__all__ = ["decode_error", "log_text"]

_FATAL = "the parts of the batch that were already processed remain in the memory; look at memory.positions()"


def log_text(lines: Sequence[tuple[int, str]], *, level: int = logging.WARNING) -> str:
    """The library's own words for an error message: its last lines of at least ``level``, errors first choice."""
    errors = [line for at, line in lines if at >= logging.ERROR]
    chosen = errors or [line for at, line in lines if at >= level]
    return "; ".join(chosen[-4:])


def decode_error(code: int, what: str, lines: Sequence[tuple[int, str]] = ()) -> PyllamakvError:
    """The exception for a return code of ``llama_decode`` or ``llama_encode`` that is not 0.

    ``what`` says what was asked (``decode of 12 tokens, sequences [0]``), ``lines`` is what the library logged.
    """
    said = log_text(lines)
    said = f" ({said})" if said else ""
    if code == 1:
        return MemoryFullError(
            f"{what}: the memory has no free slot for it{said}; remove a sequence or a range, "
            "or make the context with a larger n_ctx"
        )
    if code == 2:
        return DecodeError(f"{what}: aborted by the abort callback; {_FATAL}", code=code)
    if code == -1:
        return DecodeError(f"{what}: the library calls the batch invalid{said}; nothing was decoded", code=code)
    return DecodeError(f"{what}: failed with code {code}{said}; {_FATAL}", code=code)
