"""A context with the calls that only properties need: batches of several sequences, aborts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyllamakv.errors import DecodeError
from pyllamakv.native import AbortFlag

from ..engine import Engine, Logits, Window

__all__ = ["Probe"]


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

    def try_batch(self, rows: Sequence[tuple[int, int, int | tuple[int, ...]]], *, outputs: bool = False) -> int:
        """One ``llama_decode`` of (token, position, sequence or sequences) rows; its return code.

        Logits are asked for the last row of each sequence, for every row with ``outputs``.
        """
        ids = np.array([token for token, _, _ in rows], dtype=np.int32)
        positions = np.array([pos for _, pos, _ in rows], dtype=np.int32)
        owners = [(owner,) if isinstance(owner, int) else owner for _, _, owner in rows]
        last = {seq: row for row, each in enumerate(owners) for seq in each}
        keep = np.array([outputs or row in last.values() for row in range(len(owners))], dtype=np.int8)
        return self.submit(owners, positions, keep, token=self.ffi.from_buffer("llama_token[]", ids))

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
