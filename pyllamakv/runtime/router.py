"""The router of a mixture of experts, as ``ctx.router``: a guard against NaN, and rows of what it chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, NonFiniteError, RefusedError
from . import checks
from .router_rows import RouterRows

if TYPE_CHECKING:
    from .batch import Batch
    from .context import Context

__all__ = ["NON_FINITE", "Router"]

#: What ``llama_decode`` of the patched library returns where routing was not finite.
NON_FINITE = -4

_GUARDS = ("auto", "on", "off")


class Router:
    """The router of one context.

    **Guard.** A token that is routed by NaN or infinity makes ``decode`` raise NonFiniteError, which names sequence,
    position and layer. What the batch added to the sequence is taken out again; other sequences of the batch are
    decoded as if it had not been in it. By default it is on where experts are chosen on the CPU.

    **Rows.** With ``enabled``, the experts and weights of each token are kept beside its memory cell. They follow
    copies and shifts, and go with the cell. Off, nothing is done and nothing is kept.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ffi, self._lib = context.library.ffi, context.library.lib

    def __repr__(self) -> str:
        return f"<Router of {self._context!r}>"

    @property
    def guard(self) -> str:
        """``"auto"``: where experts are chosen on the CPU; ``"on"``: also on a device, which every decode then waits
        for; ``"off"``.

        Raises:
            RefusedError: setting it on a model without experts, or a stock library.
        """
        with self._context._locked() as ctx:
            return _GUARDS[int(self._own("pkv_get_router_guard")(ctx))]

    @guard.setter
    def guard(self, mode: str) -> None:
        with self._context._locked() as ctx:
            word = checks.as_choice(mode, "guard", _GUARDS)
            self._strict(self._own("pkv_set_router_guard")(ctx, _GUARDS.index(word)), f"router guard {word}")

    @property
    def enabled(self) -> bool:
        """Whether rows are kept, of what is decoded from now on. Switching them off forgets them.

        Raises:
            RefusedError: setting it on a model without experts or without attention, or a stock library.
        """
        with self._context._locked() as ctx:
            return bool(self._own("pkv_get_router")(ctx))

    @enabled.setter
    def enabled(self, on: bool) -> None:
        with self._context._locked() as ctx:
            on = checks.as_bool(on, "enabled")
            self._strict(self._own("pkv_set_router")(ctx, on), f"router rows {'on' if on else 'off'}")

    def rows(self, seq: int = 0) -> RouterRows:
        """What was chosen for the tokens that a sequence holds.

        Raises:
            RefusedError: rows are not kept; set ``enabled`` before the decode.
        """
        return RouterRows.from_bytes(self.save(seq))

    def save(self, seq: int = 0) -> bytes:
        """The rows of a sequence as bytes, to go with ``memory.save``, whose bytes are upstream's and hold none.

        Raises:
            RefusedError: rows are not kept.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            get = self._own("pkv_router_get")
            size = int(get(ctx, seq, self._ffi.NULL, 0))
            self._strict(size >= 0, f"router rows of sequence {seq}")
            buffer = self._ffi.new("uint8_t[]", size)
            self._strict(int(get(ctx, seq, buffer, size)) == size, f"router rows of sequence {seq}")
            return bytes(self._ffi.buffer(buffer, size))

    def load(self, seq: int, blob: Any) -> None:
        """Give saved rows to the tokens of a sequence, by position; after ``memory.load``.

        Raises:
            RefusedError: rows are not kept, or these are damaged or of another model; nothing changed.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            try:
                source = self._ffi.from_buffer("uint8_t[]", memoryview(blob))
            except (TypeError, ValueError, BufferError) as err:
                raise ArgumentError(f"blob is of type {type(blob).__name__}; it has to be bytes ({err})") from None
            done = self._own("pkv_router_set")(ctx, seq, source, len(source))
            self._strict(done, f"router rows into sequence {seq}")

    # What follows is for this package: the lock is held by the caller.

    def _error(self, ctx: Any, what: str, batch: Batch, seqs: Sequence[int], outputs: bool) -> NonFiniteError:
        """The exception for ``NON_FINITE``, with the logits of the sequences that came through."""
        reason = self._context.library.reason()
        room = self._ffi.new("struct pkv_router_fault[]", 256)
        count = min(int(self._own("pkv_router_faults")(ctx, room, 256)), 256)
        faults = tuple((int(f.seq), int(f.pos), int(f.layer)) for f in self._ffi.unpack(room, count))
        logits: dict[int, npt.NDArray[np.float32]] = {}
        bad = {seq for seq, _, _ in faults}
        for seq in bad.difference(seqs):  # had no part in the batch, and lost what was not finite
            self._context._held.agree(seq, self._context.memory._highest(seq))
        for i, owner, wanted in batch.owners() if outputs else ():
            if wanted and owner not in bad and owner in seqs:
                row = self._lib.llama_get_logits_ith(ctx, i)
                if row != self._ffi.NULL:
                    logits[owner] = self._context._floats(row, self._context.model.n_vocab).copy()
        return NonFiniteError(f"{what}: {reason or 'routing is not finite'}", faults=faults, logits=logits)

    def _strict(self, done: bool, what: str) -> None:
        if not done:
            raise RefusedError(f"{what}: refused: {self._context.library.reason() or 'no reason was given'}")

    def _own(self, name: str) -> Any:
        function = self._context.library.optional(name)
        if function is None:
            raise RefusedError(f"{self._context.library.path} has no {name}: use the patched library")
        return function
