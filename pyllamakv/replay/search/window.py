"""A context with the calls that the search makes beyond the replay's: batches of several sequences, the abort callback,
whole states, and the truthful ``pkv_*`` calls where the library has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyllamakv.native import AbortFlag
from pyllamakv.replay.engine import Engine, Logits, Window

__all__ = ["Part", "SearchWindow"]

#: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
PARTIAL_ONLY = 1

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
        self.n_pos = 4  # of an embedding: M-RoPE reads four, every other model the first alone

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
        batch, held = self._batch([[parts[i][0]] for i, _ in order], positions, keep)
        batch.token = self.ffi.from_buffer("llama_token[]", ids)
        if auto:
            batch.pos = self.ffi.NULL
        return self._run(batch, held, abort_after)

    def decode_shared(self, seqs: Sequence[int], pos: int, tokens: Sequence[int]) -> int:
        """One ``llama_decode`` of tokens that belong to each of ``seqs``; its return code."""
        ids = np.array(tokens, dtype=np.int32)
        positions = np.arange(pos, pos + len(ids), dtype=np.int32)
        keep = np.zeros(len(ids), dtype=np.int8)
        keep[-1] = 1
        self._last = {0: len(ids) - 1}
        batch, held = self._batch([list(seqs)] * len(ids), positions, keep)
        batch.token = self.ffi.from_buffer("llama_token[]", ids)
        return self._run(batch, held, None)

    def decode_nan(self, seq: int, pos: int, count: int) -> int:
        """One ``llama_decode`` of ``count`` rows of NaN in place of token embeddings; its return code."""
        rows = np.full((count, self.engine.n_embd), np.nan, dtype=np.float32)
        positions = np.tile(np.arange(pos, pos + count, dtype=np.int32), self.n_pos)
        keep = np.zeros(count, dtype=np.int8)
        keep[-1] = 1
        batch, held = self._batch([[seq]] * count, positions, keep)
        batch.embd = self.ffi.from_buffer("float[]", rows)
        return self._run(batch, held, None)

    def _batch(self, owners: Sequence[list[int]], positions: Any, keep: Any) -> tuple[Any, list[Any]]:
        ffi, count = self.ffi, len(owners)
        batch = ffi.new("struct llama_batch *")
        cells = [ffi.new("llama_seq_id[]", owner) for owner in owners]
        counts = ffi.new("int32_t[]", [len(owner) for owner in owners])
        held = [cells, ffi.new("llama_seq_id *[]", cells), counts, positions, keep]
        batch.n_tokens, batch.token, batch.embd = count, ffi.NULL, ffi.NULL
        batch.seq_id, batch.n_seq_id = held[1], held[2]
        batch.pos = ffi.from_buffer("llama_pos[]", positions)
        batch.logits = ffi.from_buffer("int8_t[]", keep)
        return batch, held

    def _run(self, batch: Any, held: list[Any], abort_after: int | None) -> int:
        assert held
        if abort_after is None:
            return int(self.lib.llama_decode(self.ctx, batch[0]))
        self._left = abort_after
        self.lib.llama_set_abort_callback(self.ctx, self._flag.callback, self.ffi.NULL)
        try:
            return int(self.lib.llama_decode(self.ctx, batch[0]))
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

    # states

    def try_load(self, seq: int, blob: bytes) -> bool:
        """``llama_state_seq_set_data``: whether it read anything."""
        data = self.ffi.from_buffer("uint8_t[]", blob)
        return bool(self.lib.llama_state_seq_set_data(self.ctx, data, len(blob), seq))

    def save_part(self, seq: int) -> bytes:
        """``llama_state_seq_get_data_ext``: windows and recurrent states alone."""
        size = self.lib.llama_state_seq_get_size_ext(self.ctx, seq, PARTIAL_ONLY)
        buffer = self.ffi.new("uint8_t[]", size)
        written = self.lib.llama_state_seq_get_data_ext(self.ctx, buffer, size, seq, PARTIAL_ONLY)
        return bytes(self.ffi.buffer(buffer, written))

    def try_load_part(self, seq: int, blob: bytes) -> bool:
        """``llama_state_seq_set_data_ext``: whether it read anything."""
        data = self.ffi.from_buffer("uint8_t[]", blob)
        return bool(self.lib.llama_state_seq_set_data_ext(self.ctx, data, len(blob), seq, PARTIAL_ONLY))

    def save_all(self) -> bytes:
        """``llama_state_get_data``."""
        size = self.lib.llama_state_get_size(self.ctx)
        buffer = self.ffi.new("uint8_t[]", size)
        written = self.lib.llama_state_get_data(self.ctx, buffer, size)
        return bytes(self.ffi.buffer(buffer, written))

    def try_load_all(self, blob: bytes) -> bool:
        """``llama_state_set_data``: whether it read anything."""
        return bool(self.lib.llama_state_set_data(self.ctx, self.ffi.from_buffer("uint8_t[]", blob), len(blob)))
