"""The memory of a context: what its sequences remember, cut, copied, moved, saved.

Where the library has our ``pkv_*`` functions, they do the work: strict, all or nothing, with a reason for a refusal.
A stock library has ``llama_memory_*``: what those would assert on is refused here first, but what they get wrong
silently, they get wrong (``pyllamakv replay`` shows it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import native
from ..errors import ArgumentError, RefusedError, StateError
from ..native.status import log_text
from . import checks
from .quirks import whole_copies_only

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Memory", "Removal"]

_SCRUB_MODES = ("lazy", "eager")
_STATE_MAGIC = (0xAF143CD8).to_bytes(4, "little")


@dataclass(frozen=True)
class Removal:
    """What ``Memory.remove`` did. True when the range is gone, false when it was refused and nothing changed.

    Attributes:
        removed: the same as the truth value.
        kept: positions that the sequence still has (of all sequences for ``seq=-1``). On a sliding window, positions
            that left the window count: the sequence goes on after them.
        reason: why it was refused; empty otherwise.
    """

    removed: bool
    kept: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.removed


class Memory:
    """Memory of one context, as ``ctx.memory``. Ranges are half open, [p0, p1); None is the beginning or the end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._library = context.library
        self._ffi, self._lib = context.library.ffi, context.library.lib
        self._pkv = context.library.has_pkv

    def __repr__(self) -> str:
        return f"<Memory of {self._context!r}>"

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved (not with M-RoPE, not on a short sliding window…)."""
        with self._context._locked() as ctx:
            return bool(self._lib.llama_memory_can_shift(self._handle(ctx)))

    def positions(self, seq: int) -> tuple[int, int]:
        """Lowest and highest position of a sequence; (-1, -1) when it is empty.

        On a sliding window the lowest is that of the window.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            handle = self._handle(ctx)
            low = int(self._lib.llama_memory_seq_pos_min(handle, seq))
            return low, int(self._lib.llama_memory_seq_pos_max(handle, seq))

    def remove(self, seq: int, p0: int | None = None, p1: int | None = None) -> Removal:
        """Forget positions [p0, p1) of a sequence, or of every sequence (``seq=-1``).

        A refusal (a recurrent state cannot forget its middle, a sliding window has lost what came before) is no error:
        look at the result, and decode the sequence again from its tokens where it is false.

        Raises:
            ArgumentError: the sequence or the range is impossible.
        """
        with self._context._locked() as ctx:
            held = self._context._held
            seq = checks.as_int(seq, "seq", -1, self._context.n_seq_max - 1)
            start, end = checks.as_range(p0, p1)
            handle = self._handle(ctx)
            count = held.total if seq < 0 else lambda: held.count(seq)
            if start == end:
                return Removal(True, count())
            if self._pkv:
                done = self._lib.pkv_memory_remove(ctx, seq, start, end)
            else:
                done = self._lib.llama_memory_seq_rm(handle, seq, start, end)
            if not done:
                reason = self._library.reason() or "the library cannot remove this range from this kind of memory"
                return Removal(False, count(), reason)
            if seq < 0:
                held.remove_all(start, end)
            else:
                held.remove(seq, start, end)
            self._agree(range(self._context.n_seq_max) if seq < 0 else (seq,))
            return Removal(True, count())

    def copy(self, src: int, dst: int, p0: int | None = None, p1: int | None = None) -> None:
        """Give positions [p0, p1) of ``src`` to ``dst`` as well.

        Raises:
            ArgumentError: a sequence or the range is impossible.
            RefusedError: this memory cannot; nothing changed.
        """
        with self._context._locked() as ctx:
            context = self._context
            src, dst = context._seq(src), context._seq(dst)
            start, end = checks.as_range(p0, p1)
            handle = self._handle(ctx)
            if src == dst or start == end:
                return
            lowest, highest = self.positions(src)
            whole = start <= max(lowest, 0) and (end < 0 or end > highest)
            if self._pkv:
                self._strict(self._lib.pkv_memory_copy(ctx, src, dst, start, end), f"copy {src} to {dst}")
            else:
                if not whole and (not context.kv_unified or whole_copies_only(context.model.architecture)):
                    raise RefusedError(
                        f"copy of [{start}, {'end' if end < 0 else end}) of sequence {src} to {dst}: a stock library "
                        "copies whole sequences only between streams; copy all and remove the rest, use "
                        "kv_unified=True, or the patched library"
                    )
                # A whole copy is asked for as such: stock asserts on bounds that it takes for a part.
                self._lib.llama_memory_seq_cp(handle, src, dst, *((-1, -1) if whole else (start, end)))
            # Ours replaces what dst had, whole or in that range; stock adds to it where both share a stream.
            context._held.copy(src, dst, start, end, replaces=whole if self._pkv else not context.kv_unified)
            self._agree((dst,))

    def keep(self, seq: int) -> None:
        """Forget every other sequence.

        Raises:
            RefusedError: this memory cannot; nothing changed.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            handle = self._handle(ctx)
            if self._pkv:
                self._strict(self._lib.pkv_memory_keep(ctx, seq), f"keep only sequence {seq}")
            else:
                self._lib.llama_memory_seq_keep(handle, seq)
            self._context._held.keep(seq)
            self._agree(range(self._context.n_seq_max))

    def shift(self, seq: int, p0: int | None, p1: int | None, delta: int) -> None:
        """Move positions [p0, p1) by ``delta``; what falls below 0 is forgotten.

        Raises:
            ArgumentError: the result does not fit 32 bits.
            RefusedError: this memory cannot be shifted; nothing changed.
        """
        with self._context._locked() as ctx:
            context = self._context
            seq = context._seq(seq)
            start, end = checks.as_range(p0, p1)
            delta = checks.as_int(delta, "delta", -checks.INT32_MAX, checks.INT32_MAX)
            handle = self._handle(ctx)
            highest = self._highest(seq)
            if delta == 0 or start == end or start > highest:
                return
            if highest + delta >= checks.INT32_MAX:
                raise ArgumentError(f"position {highest} moved by {delta} does not fit 32 bits")
            self._need_shift(handle, f"shift of sequence {seq}")
            if self._pkv:
                self._strict(self._lib.pkv_memory_shift(ctx, seq, start, end, delta), f"shift sequence {seq}")
            else:
                self._lib.llama_memory_seq_add(handle, seq, start, end, delta)
            context._held.shift(seq, start, end, delta)
            self._agree((seq,))

    def divide(self, seq: int, p0: int | None, p1: int | None, d: int) -> None:
        """Divide positions in [p0, p1) by ``d`` (self-extend).

        Raises:
            RefusedError: this memory cannot be shifted; nothing changed.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            start, end = checks.as_range(p0, p1)
            d = checks.as_int(d, "d", 1, checks.INT32_MAX)
            handle = self._handle(ctx)
            if d == 1 or start == end or start > self._highest(seq):
                return
            self._need_shift(handle, f"division of sequence {seq}")
            if self._pkv:
                self._strict(self._lib.pkv_memory_divide(ctx, seq, start, end, d), f"divide sequence {seq}")
            else:
                self._lib.llama_memory_seq_div(handle, seq, start, end, d)
            self._context._held.divide(seq, start, end, d)
            self._agree((seq,))

    def clear(self, data: bool = True) -> None:
        """Forget everything; ``data=True`` zeroes the buffers as well."""
        with self._context._locked() as ctx:
            data = checks.as_bool(data, "data")
            handle = self._handle(ctx)
            if self._pkv:
                self._strict(self._lib.pkv_memory_clear(ctx, data), "clear")
            else:
                self._lib.llama_memory_clear(handle, data)
            self._context._held.clear()

    def save(self, seq: int) -> bytes:
        """The state of a sequence as bytes: for ``load`` on a context of the same model and the same K/V settings.

        Raises:
            StateError: the library cannot save it; with its own words.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            self._handle(ctx)
            self._need_weights("save")
            with native.captured_log() as lines:
                size = int(self._lib.llama_state_seq_get_size(ctx, seq))
                # Written in place before anybody else has seen the object: a session may be gigabytes, once is enough.
                blob = bytes(max(size, 16))
                target = self._ffi.cast("uint8_t *", self._ffi.from_buffer(blob))
                written = int(self._lib.llama_state_seq_get_data(ctx, target, size, seq)) if size else 0
            if written != size or size < 16:
                raise StateError(f"sequence {seq} could not be saved: {log_text(lines) or 'nothing was written'}")
            return blob

    def load(self, seq: int, blob: Any) -> None:
        """Restore a saved state into a sequence, in place of what it has. All or nothing.

        Args:
            blob: what ``save`` returned, or a view of it (bytes, bytearray, memoryview, mmap); it is not copied.

        Raises:
            StateError: it is damaged, or of another model or other settings; the sequence is as before.
            RefusedError: it failed, and the sequence could not be put back: it is empty now.
        """
        with self._context._locked() as ctx:
            seq = self._context._seq(seq)
            handle = self._handle(ctx)
            self._need_weights("load")
            try:
                view = memoryview(blob)
                source = self._ffi.from_buffer("uint8_t[]", view)
            except (TypeError, ValueError, BufferError) as err:
                raise ArgumentError(f"blob is of type {type(blob).__name__}; it has to be bytes ({err})") from None
            if len(source) < 16 or bytes(source[0:4]) != _STATE_MAGIC:
                raise StateError(f"the {len(source)} bytes are no saved sequence: they do not begin like one")
            before = self.save(seq) if self._highest(seq) >= 0 else None
            with native.captured_log() as lines:
                read = int(self._lib.llama_state_seq_set_data(ctx, source, len(source), seq))
            if read == len(source):
                self._context._held.agree(seq, -1)
                self._agree((seq,))
                return
            said = log_text(lines) or f"{read} of {len(source)} bytes were read"
            # A failed restore may leave the sequence half filled: empty it, then bring back what was there.
            self._lib.llama_memory_seq_rm(handle, seq, -1, -1)
            if before is not None:
                again = self._ffi.from_buffer("uint8_t[]", before)
                if int(self._lib.llama_state_seq_set_data(ctx, again, len(before), seq)) != len(before):
                    self._agree((seq,))
                    raise RefusedError(f"the state could not be restored ({said}), nor what sequence {seq} held before")
            self._agree((seq,))
            raise StateError(f"the state could not be restored into sequence {seq}, which is as before: {said}")

    @property
    def scrub_mode(self) -> str:
        """``"lazy"``: freed cells hold nothing that a later graph can read; ``"eager"``: nothing of them remains."""
        with self._context._locked() as ctx:
            return _SCRUB_MODES[int(self._own("pkv_get_scrub")(ctx))]

    @scrub_mode.setter
    def scrub_mode(self, mode: str) -> None:
        with self._context._locked() as ctx:
            word = checks.as_choice(mode, "scrub_mode", _SCRUB_MODES)
            self._strict(self._own("pkv_set_scrub")(ctx, _SCRUB_MODES.index(word)), f"scrub mode {word}")

    def sync(self) -> None:
        """Apply copies and shifts that are queued for the next decode."""
        with self._context._locked() as ctx:
            self._strict(self._own("pkv_memory_sync")(ctx), "sync")

    def scrub(self) -> int:
        """Clear every free cell now; returns the bytes cleared."""
        with self._context._locked() as ctx:
            return self._bytes(self._own("pkv_memory_scrub")(ctx), "scrub")

    def residue(self) -> int:
        """Bytes in free cells that are not zero (an audit: reads the whole memory)."""
        with self._context._locked() as ctx:
            return self._bytes(self._own("pkv_memory_residue")(ctx), "residue")

    def _handle(self, ctx: Any) -> Any:
        handle = self._lib.llama_get_memory(ctx)
        if handle == self._ffi.NULL:
            raise RefusedError(f"{self._context.model.architecture} keeps no memory: every decode stands alone")
        return handle

    def _highest(self, seq: int) -> int:
        """Highest position of a sequence, -1 when it is empty or the model keeps no memory."""
        handle = self._lib.llama_get_memory(self._context._use())
        return -1 if handle == self._ffi.NULL else int(self._lib.llama_memory_seq_pos_max(handle, seq))

    def _agree(self, seqs: Any) -> None:
        for seq in seqs:
            self._context._held.agree(seq, self._highest(seq))

    def _need_shift(self, handle: Any, what: str) -> None:
        if self._pkv:
            return  # the library asks each part itself, and says why not
        if not self._lib.llama_memory_can_shift(handle):
            raise RefusedError(f"{what}: this memory cannot move positions (M-RoPE, or caches of unlike size)")
        if self._context._shift_obstacle:
            raise RefusedError(f"{what}: {self._context._shift_obstacle}")

    def _need_weights(self, what: str) -> None:
        if self._context.model.no_alloc:
            raise RefusedError(f"{what}: the model was loaded with no_alloc=True, its contexts hold no data")

    def _strict(self, done: bool, what: str) -> None:
        if not done:
            raise RefusedError(f"{what}: refused, nothing changed: {self._library.reason() or 'no reason was given'}")

    def _bytes(self, count: int, what: str) -> int:
        self._strict(int(count) >= 0, what)
        return int(count)

    def _own(self, name: str) -> Any:
        function = self._library.optional(name)
        if function is None:
            raise RefusedError(f"{self._library.path} is a stock library: it has no {name}; use the patched one")
        return function
