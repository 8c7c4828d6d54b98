"""Every error that pyllamakv raises: one tree, standard library only.

Each class is also the builtin that a caller would expect to catch (``ValueError``, ``OSError``…). A message says what
was asked, what is true, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "ArgumentError",
    "BuildError",
    "ClosedError",
    "DecodeError",
    "DigestError",
    "DownloadError",
    "LibraryMismatchError",
    "LibraryNotFoundError",
    "MemoryFullError",
    "ModelLoadError",
    "NonFiniteError",
    "PatchError",
    "PyllamakvError",
    "RefusedError",
    "SourceError",
    "StateError",
]


class PyllamakvError(Exception):
    """Root of the tree: ``except PyllamakvError`` catches everything that is ours."""


class ClosedError(PyllamakvError, ValueError):
    """A freed ``Model``, ``Context``, ``Session`` or ``Sampler`` was used."""


class ArgumentError(PyllamakvError, ValueError):
    """An argument that the C side would assert on, or could not mean anything."""


class DecodeError(PyllamakvError, RuntimeError):
    """``llama_decode`` or ``llama_encode`` returned an error code; ``code`` holds it (0 when none applies)."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class MemoryFullError(PyllamakvError, MemoryError):
    """The memory has no slot for the batch: remove a sequence, or make the context larger."""


class RefusedError(PyllamakvError, RuntimeError):
    """A memory operation was refused and changed nothing, where the caller asked for an exception."""


class ModelLoadError(PyllamakvError, OSError):
    """A model file is missing, damaged, or of an architecture that the library does not know."""


class LibraryNotFoundError(PyllamakvError, OSError):
    """No llama.cpp library was found."""


class LibraryMismatchError(PyllamakvError, ImportError):
    """The library was built from another source than the binding: the message names the struct and field."""


class StateError(PyllamakvError, ValueError):
    """A saved state is damaged, cut short, or belongs to another model or other settings."""


class NonFiniteError(PyllamakvError, ArithmeticError):
    """Logits, embeddings or routing hold NaN or Inf.

    ``faults`` has (sequence, position, layer) for each sequence that was taken out of the memory: the first token that
    is not finite, the first layer that saw it (-1: it was in the input, or in what the sequence held before). ``seq``,
    ``pos`` and ``layer`` are those of the first fault. Other sequences of the same decode came through: ``logits`` has
    float32 [n_vocab] of the last token of each whose logits were asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        faults: Sequence[tuple[int, int, int]] = (),
        logits: Mapping[int, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.faults = tuple(faults)
        self.seq, self.pos, self.layer = self.faults[0] if self.faults else (-1, -1, -1)
        self.logits = dict(logits or {})


class SourceError(PyllamakvError, OSError):
    """The llama.cpp tree is missing, incomplete, or is not the pinned one."""


class DownloadError(PyllamakvError, OSError):
    """Something that had to be fetched could not be."""


class DigestError(PyllamakvError, ValueError):
    """A file's SHA-256 is not the pinned one."""


class PatchError(PyllamakvError, ValueError):
    """A patch is malformed or does not apply.

    ``patch``, ``file`` and ``hunk`` (its text) say where, ``repair`` holds the commands that mend it; each is empty
    where it does not apply. ``str(error)`` shows them all.
    """

    def __init__(self, message: str, *, patch: str = "", file: str = "", hunk: str = "", repair: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.patch = patch
        self.file = file
        self.hunk = hunk
        self.repair = repair

    def __str__(self) -> str:
        lines = [self.message]
        if self.patch:
            lines.append(f"  patch: {self.patch}")
        if self.file:
            lines.append(f"  file:  {self.file}")
        if self.hunk:
            lines += ["  hunk:", *(f"    {line}" for line in self.hunk.splitlines())]
        if self.repair:
            lines += ["  repair:", *(f"    {line}" for line in self.repair.splitlines())]
        return "\n".join(lines)


class BuildError(PyllamakvError, RuntimeError):
    """A tool is missing or a build command failed.

    ``command``, ``exit_code``, ``output`` (what the command printed) and ``log`` (the whole log's path) are kept for
    programs; ``str(error)`` shows the command, its exit code and the first errors of its output, indented.
    """

    def __init__(
        self,
        message: str,
        *,
        command: Sequence[str] = (),
        exit_code: int | None = None,
        output: str = "",
        log: Path | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.command = tuple(command)
        self.exit_code = exit_code
        self.output = output
        self.log = log

    def __str__(self) -> str:
        lines = [self.message]
        if self.command:
            lines.append(f"  command:   {' '.join(self.command)}")
        if self.exit_code is not None:
            lines.append(f"  exit code: {self.exit_code}")
        if self.output:
            lines += ["  output:", *(f"    {line}" for line in self.output.splitlines())]
        if self.log is not None:
            lines.append(f"  log:       {self.log}")
        return "\n".join(lines)
