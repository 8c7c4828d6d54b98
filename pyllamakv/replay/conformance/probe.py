"""A context with the calls that only properties need: batches of several sequences, aborts, flags of states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllamakv.errors import DecodeError
from pyllamakv.native import AbortFlag

from ..engine import Engine, Logits, Window

__all__ = ["ON_DEVICE", "PARTIAL_ONLY", "Probe"]

#: ``LLAMA_STATE_SEQ_FLAGS_*``.
PARTIAL_ONLY, ON_DEVICE = 1, 2

# M-RoPE reads four positions of an embedding, every other model the first alone
_POSITIONS = 4


class Probe(Window):
    """One context, called as C would call it."""

    def __init__(self, engine: Engine, settings: Mapping[str, Any]) -> None:
        super().__init__(engine, settings)
        self._asked = 0
        self._limit: int | None = None
        self._flag: AbortFlag | None = None

    def __enter__(self) -> Probe:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    # decode

    def try_embed(self, rows: npt.NDArray[np.float32], pos: int, seq: int = 0) -> int:
        """One ``llama_decode`` of ``rows``, float32 [n, n_embd], in place of tokens; its return code."""
        data = np.ascontiguousarray(rows, dtype=np.float32)
        positions = np.tile(np.arange(pos, pos + len(rows), dtype=np.int32), _POSITIONS)
        return self._run([(seq,)] * len(rows), positions, embd=self.ffi.from_buffer("float[]", data))

    def try_batch(self, rows: Sequence[tuple[int, int, int | tuple[int, ...]]], *, outputs: bool = False) -> int:
        """One ``llama_decode`` of (token, position, sequence or sequences) rows; its return code.

        Logits are asked for the last row of each sequence, for every row with ``outputs``.
        """
        ids = np.array([token for token, _, _ in rows], dtype=np.int32)
        positions = np.array([pos for _, pos, _ in rows], dtype=np.int32)
        owners = [(owner,) if isinstance(owner, int) else owner for _, _, owner in rows]
        return self._run(owners, positions, token=self.ffi.from_buffer("llama_token[]", ids), outputs=outputs)

    def _run(
        self,
        owners: Sequence[tuple[int, ...]],
        positions: npt.NDArray[np.int32],
        *,
        token: Any = None,
        embd: Any = None,
        outputs: bool = False,
    ) -> int:
        ffi = self.ffi
        batch = ffi.new("struct llama_batch *")
        batch.n_tokens = len(owners)
        batch.token = ffi.NULL if token is None else token
        batch.embd = ffi.NULL if embd is None else embd
        last = {seq: row for row, each in enumerate(owners) for seq in each}
        keep = np.array([outputs or row in last.values() for row in range(len(owners))], dtype=np.int8)
        arrays = [ffi.new("llama_seq_id[]", list(each)) for each in owners]
        pointers = ffi.new("llama_seq_id *[]", arrays)
        counts = ffi.new("int32_t[]", [len(each) for each in owners])
        batch.pos, batch.n_seq_id, batch.seq_id = ffi.from_buffer("llama_pos[]", positions), counts, pointers
        batch.logits = ffi.from_buffer("int8_t[]", keep)
        return int(self.lib.llama_decode(self.ctx, batch[0]))

    def logits_at(self, row: int) -> Logits:
        """A copy of the logits of the batch's row, float32 [n_vocab]."""
        return self._floats(self.lib.llama_get_logits_ith(self.ctx, row), self.engine.n_vocab)

    def pooled(self, seq: int) -> Logits:
        """A copy of the sequence's pooled embedding, float32 [n_embd_out]."""
        return self._floats(
            self.lib.llama_get_embeddings_seq(self.ctx, seq), self.lib.llama_model_n_embd_out(self.engine.model)
        )

    def _floats(self, pointer: Any, count: int) -> Logits:
        if pointer == self.ffi.NULL:
            raise DecodeError("the library has no output for what was decoded")
        copy: Logits = np.frombuffer(self.ffi.buffer(pointer, 4 * count), dtype=np.float32).copy()
        return copy

    # abort

    def abort_after(self, count: int | None) -> None:
        """Sets the abort callback: it says no ``count`` times and then yes; None: it only counts."""
        if self._flag is None:
            self._flag = AbortFlag(self.ffi, self._ask)
            self.lib.llama_set_abort_callback(self.ctx, self._flag.callback, self.ffi.NULL)
        self._asked, self._limit = 0, count

    @property
    def asked(self) -> int:
        """How often the callback was asked since it was set."""
        return self._asked

    def _ask(self) -> bool:
        self._asked += 1
        return self._limit is not None and self._asked > self._limit

    # states

    def save_ext(self, seq: int, flags: int) -> bytes:
        """``llama_state_seq_get_data_ext``."""
        size = self.lib.llama_state_seq_get_size_ext(self.ctx, seq, flags)
        buffer = self.ffi.new("uint8_t[]", max(size, 1))
        written = self.lib.llama_state_seq_get_data_ext(self.ctx, buffer, size, seq, flags)
        return bytes(self.ffi.buffer(buffer, written))

    def try_load(self, seq: int, blob: bytes, flags: int = 0) -> int:
        """``llama_state_seq_set_data_ext``: bytes read, 0 for a failure."""
        data = self.ffi.from_buffer("uint8_t[]", blob)
        return int(self.lib.llama_state_seq_set_data_ext(self.ctx, data, len(blob), seq, flags))

    def save_whole(self) -> bytes:
        """``llama_state_get_data``."""
        size = self.lib.llama_state_get_size(self.ctx)
        buffer = self.ffi.new("uint8_t[]", size)
        return bytes(self.ffi.buffer(buffer, self.lib.llama_state_get_data(self.ctx, buffer, size)))

    def try_load_whole(self, blob: bytes) -> int:
        """``llama_state_set_data``: bytes read, 0 for a failure."""
        return int(self.lib.llama_state_set_data(self.ctx, self.ffi.from_buffer("uint8_t[]", blob), len(blob)))
