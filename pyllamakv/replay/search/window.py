"""A context with the calls that the search makes beyond the replay's: batches of several sequences, the abort callback,
and the truthful ``pkv_*`` calls where the library has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyllamakv.native import AbortFlag
from pyllamakv.replay.engine import Engine, Logits, Window

__all__ = ["Part", "SearchWindow"]

#: Sequence, position of the first token, tokens (None: rows of NaN, as many as ``count`` says).
Part = tuple[int, int, tuple[int, ...]]


class SearchWindow(Window):
    """``settings`` as llama_context_params; ``edited`` is the reference's own mark."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        super().__init__(engine, {name: value for name, value in settings.items() if name != "edited"})
        self.settings = dict(settings)
        self.pkv = hasattr(self.lib, "pkv_memory_remove")
        self._left: int | None = None
        self._last: dict[int, int] = {}
        self._flag = AbortFlag(self.ffi, self._asked)

    def __enter__(self) -> SearchWindow:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def _asked(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0

    # decode

    def decode_parts(
        self, parts: Sequence[Part], *, mix: bool = False, auto: bool = False, abort_after: int | None = None
    ) -> int:
        """One ``llama_decode``: tokens of several sequences, one after the other or taking turns; its return code.

        Logits are asked for the last token of each part. ``auto``: the positions are left to llama.cpp.
        ``abort_after``: the callback says no that often.
        """
        order = [(i, k) for i, (_, _, tokens) in enumerate(parts) for k in range(len(tokens))]
        if mix:
            order.sort(key=lambda pair: (pair[1], pair[0]))
        ids = np.array([parts[i][2][k] for i, k in order], dtype=np.int32)
        positions = np.array([parts[i][1] + k for i, k in order], dtype=np.int32)
        keep = np.array([k == len(parts[i][2]) - 1 for i, k in order], dtype=np.int8)
        self._last = {i: at for at, (i, k) in enumerate(order) if k == len(parts[i][2]) - 1}
        owners = [(parts[i][0],) for i, _ in order]
        token = self.ffi.from_buffer("llama_token[]", ids)
        with self._stopping(abort_after):
            return self.submit(owners, None if auto else positions, keep, token=token)

    def decode_shared(self, seqs: Sequence[int], pos: int, tokens: Sequence[int]) -> int:
        """One ``llama_decode`` of tokens that belong to each of ``seqs``; its return code."""
        ids = np.array(tokens, dtype=np.int32)
        positions = np.arange(pos, pos + len(ids), dtype=np.int32)
        keep = np.zeros(len(ids), dtype=np.int8)
        keep[-1] = 1
        self._last = {0: len(ids) - 1}
        return self.submit([seqs] * len(ids), positions, keep, token=self.ffi.from_buffer("llama_token[]", ids))

    def decode_nan(self, seq: int, pos: int, count: int) -> int:
        """One ``llama_decode`` of ``count`` rows of NaN in place of token embeddings; its return code."""
        return self.try_embed(np.full((count, self.engine.n_embd), np.nan, dtype=np.float32), pos, seq)

    @contextlib.contextmanager
    def _stopping(self, abort_after: int | None) -> Iterator[None]:
        if abort_after is None:
            yield
            return
        self._left = abort_after
        self.lib.llama_set_abort_callback(self.ctx, self._flag.callback, self.ffi.NULL)
        try:
            yield
        finally:
            self._left = None
            self.lib.llama_set_abort_callback(self.ctx, self.ffi.NULL, self.ffi.NULL)

    def rows(self, count: int) -> list[Logits]:
        """float32 [n_vocab] for the last token of each part of the last decode, in the order of the parts."""
        out = [np.full(self.engine.n_vocab, np.nan, dtype=np.float32) for _ in range(count)]
        for part, at in self._last.items():
            row = self.lib.llama_get_logits_ith(self.ctx, at)
            if row != self.ffi.NULL:
                out[part] = np.frombuffer(self.ffi.buffer(row, 4 * self.engine.n_vocab), dtype=np.float32).copy()
        return out

    # edits that tell: True made, False refused, None not told (stock returns nothing)

    def _told(self, before: bool = True) -> bool | None:
        if not self.pkv:
            return None
        return before and not self.reason()

    def reason(self) -> str:
        """Why the last edit was refused; "" where it was made or the library does not tell."""
        if not self.pkv:
            return ""
        return bytes(self.ffi.string(self.lib.pkv_last_reason())).decode("utf-8", "replace")

    def remove(self, seq: int, p0: int, p1: int, *, strict: bool) -> bool:
        if strict and self.pkv:
            return bool(self.lib.pkv_memory_remove(self.ctx, seq, p0, p1))
        return self.seq_rm(seq, p0, p1)

    def copy(self, src: int, dst: int, p0: int, p1: int, *, strict: bool) -> bool | None:
        if strict and self.pkv:
            return bool(self.lib.pkv_memory_copy(self.ctx, src, dst, p0, p1))
        self.seq_cp(src, dst, p0, p1)
        return self._told()

    def keep(self, seq: int, *, strict: bool) -> bool | None:
        if strict and self.pkv:
            return bool(self.lib.pkv_memory_keep(self.ctx, seq))
        self.seq_keep(seq)
        return self._told()

    def shift(self, seq: int, p0: int, p1: int, delta: int, *, strict: bool) -> bool | None:
        if strict and self.pkv:
            return bool(self.lib.pkv_memory_shift(self.ctx, seq, p0, p1, delta))
        self.seq_add(seq, p0, p1, delta)
        return self._told()

    def divide(self, seq: int, p0: int, p1: int, by: int, *, strict: bool) -> bool | None:
        if strict and self.pkv:
            return bool(self.lib.pkv_memory_divide(self.ctx, seq, p0, p1, by))
        self.seq_div(seq, p0, p1, by)
        return self._told()
