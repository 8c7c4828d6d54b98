"""What goes into ``llama_decode``: arrays that live as long as their context and are filled through NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "Entry", "Prepared", "cut"]


@dataclass(frozen=True)
class Entry:
    """Tokens of one sequence in a batch of several.

    Args:
        tokens: token ids.
        seq: the sequence, or several that share these tokens.
        pos: as in ``Context.decode``.
        logits: ``"last"``, ``"all"`` or ``"none"``.
    """

    tokens: Sequence[int] | npt.NDArray[np.integer[Any]]
    seq: int | Sequence[int] = 0
    pos: int | Sequence[int] | None = None
    logits: str = "last"


class Batch:
    """A ``struct llama_batch`` with room for ``capacity`` tokens, used over and over.

    Args:
        n_pos: positions for each token where embeddings go in (4 for M-RoPE models).
    """

    def __init__(self, ffi: Any, capacity: int, n_pos: int) -> None:
        self.capacity = capacity
        self._ffi = ffi
        self._n_pos = n_pos
        self._token: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self._pos: npt.NDArray[np.int32] = np.zeros(capacity * n_pos, np.int32)
        self._output: npt.NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._n_seq: npt.NDArray[np.int32] = np.ones(capacity, np.int32)
        self._seq: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        # llama_seq_id **: one address for each token, into _seq as long as every token has one sequence.
        self._own_seq: npt.NDArray[np.uintp] = (self._seq.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        self._seq_ptr: npt.NDArray[np.uintp] = self._own_seq.copy()
        self._shared: list[npt.NDArray[np.int32]] = []
        self._tokens_at = ffi.from_buffer("llama_token[]", self._token)
        self._struct = ffi.new("struct llama_batch *")
        self._struct.pos = ffi.from_buffer("llama_pos[]", self._pos)
        self._struct.n_seq_id = ffi.from_buffer("int32_t[]", self._n_seq)
        self._struct.seq_id = ffi.cast("llama_seq_id **", self._seq_ptr.ctypes.data)
        self._struct.logits = ffi.from_buffer("int8_t[]", self._output)
        self._embd: Any = None
        self.size = 0

    @property
    def outputs(self) -> int:
        """Tokens that have logits."""
        return int(np.count_nonzero(self._output[: self.size]))

    def owners(self) -> list[tuple[int, int, bool]]:
        """(index, sequence, has logits) of each token; of several sequences the first."""
        first = [int(self._ffi.cast("llama_seq_id *", int(p))[0]) for p in self._seq_ptr[: self.size]]
        return [(i, seq, bool(self._output[i])) for i, seq in enumerate(first)]

    @property
    def value(self) -> Any:
        """The struct, by value, for ``llama_decode``."""
        self._struct.n_tokens = self.size
        return self._struct[0]

    def one(self, token: int, pos: int, seq: int, output: int) -> None:
        """A batch of one token: the step of a generation, without array operations."""
        self._tokens_only()
        self.size = 1
        self._token[0] = token
        self._pos[0] = pos
        self._seq[0] = seq
        self._output[0] = output

    def tokens(self, tokens: npt.NDArray[np.int32], pos: npt.NDArray[np.int32], seq: int, output: int) -> None:
        """A batch of one sequence's tokens; the last one has ``output``, the others 1 where ``output`` is 2."""
        self._tokens_only()
        n = self.size = len(tokens)
        self._token[:n] = tokens
        self._pos[:n] = pos
        self._seq[:n] = seq
        self._output[:n] = output == 2
        self._output[n - 1] = output != 0

    def embeddings(self, values: npt.NDArray[np.float32], pos: npt.NDArray[np.int32], seq: int, output: int) -> None:
        """A batch of input embeddings (contiguous float32 [n, n_embd]); M-RoPE gets text positions: p, p, p, 0."""
        self._one_seq_each()
        n = self.size = len(values)
        self._embd = self._ffi.from_buffer("float[]", values)  # keeps the array alive until the next batch
        self._struct.token = self._ffi.NULL
        self._struct.embd = self._embd
        for section in range(self._n_pos):
            self._pos[section * n : (section + 1) * n] = pos if section < 3 else 0
        self._seq[:n] = seq
        self._output[:n] = output == 2
        self._output[n - 1] = output != 0

    def clear(self) -> None:
        """Empty it, for ``append``."""
        self._tokens_only()
        self.size = 0

    def append(
        self,
        tokens: npt.NDArray[np.int32],
        pos: npt.NDArray[np.int32],
        seqs: Sequence[int],
        output: npt.NDArray[np.int8],
    ) -> None:
        """Add tokens that belong to every sequence in ``seqs``; they have to fit."""
        a, b = self.size, self.size + len(tokens)
        self.size = b
        self._token[a:b] = tokens
        self._pos[a:b] = pos
        self._output[a:b] = output
        if len(seqs) == 1:
            self._seq[a:b] = seqs[0]
        else:
            shared = np.asarray(seqs, np.int32)
            self._shared.append(shared)
            self._n_seq[a:b] = len(seqs)
            self._seq_ptr[a:b] = shared.ctypes.data

    def _tokens_only(self) -> None:
        if self._embd is not None or self._struct.token == self._ffi.NULL:
            self._embd = None
            self._struct.embd = self._ffi.NULL
            self._struct.token = self._tokens_at
        self._one_seq_each()

    def _one_seq_each(self) -> None:
        if self._shared:
            self._shared.clear()
            self._n_seq[:] = 1
            self._seq_ptr[:] = self._own_seq


class Prepared(NamedTuple):
    """An Entry with everything checked."""

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    seqs: list[int]
    output: npt.NDArray[np.int8]
    last: bool


def cut(prepared: Sequence[Prepared], room: int, apart: bool) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces of at most ``room`` tokens, and of one entry each where they have to be ``apart``: (entry, from, to)."""
    piece: list[tuple[int, int, int]] = []
    free = room
    for i, entry in enumerate(prepared):
        at = 0
        while at < len(entry.tokens):
            take = min(free, len(entry.tokens) - at)
            piece.append((i, at, at + take))
            at, free = at + take, free - take
            if not free or (apart and at == len(entry.tokens)):
                yield piece
                piece, free = [], room
    if piece:
        yield piece
