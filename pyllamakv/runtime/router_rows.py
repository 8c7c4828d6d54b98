"""What a router of experts chose, as arrays, and what can be read off it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, StateError

__all__ = ["RouterRows", "drift"]

Floats = npt.NDArray[np.float64]

_HEADER = struct.Struct("=6I")
_MAGIC, _VERSION = 0x52564B50, 1


@dataclass(frozen=True)
class RouterRows:
    """The router's choices for the tokens of a sequence, ordered by position.

    Attributes:
        ids: experts chosen, best first, int32 [token, layer, k]; -1 where there was no choice: the token was decoded
            before rows were kept, or its output was not asked for and the last layer left it out.
        weights: what the experts' results were multiplied by, float32 [token, layer, k]; 0 where there was no choice.
        positions: int32 [token].
        layers: the model's layer behind each index of the second axis, int32 [layer]. Layers without experts are left
            out; a layer that routes twice is there twice.
        n_expert: experts in a layer.
    """

    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int32]
    layers: npt.NDArray[np.int32]
    n_expert: int

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def from_bytes(cls, blob: bytes) -> RouterRows:
        """What ``pkv_router_get`` wrote.

        Raises:
            StateError: it is something else, or cut short.
        """
        if len(blob) < _HEADER.size:
            raise StateError(f"{len(blob)} bytes are too short for router rows")
        magic, version, n, n_layers, k, n_expert = _HEADER.unpack_from(blob)
        if (magic, version) != (_MAGIC, _VERSION):
            raise StateError("these bytes are no router rows, or of another version")
        if len(blob) != _HEADER.size + 4 * (n_layers + n) + 6 * n * n_layers * k:
            raise StateError("the router rows are cut short")
        at = _HEADER.size

        def take(kind: Any, count: int) -> npt.NDArray[Any]:
            nonlocal at
            array = np.frombuffer(blob, kind, count, at)
            at += array.nbytes
            return array

        layers, positions = take(np.int32, n_layers), take(np.int32, n)
        weights = take(np.float32, n * n_layers * k).reshape(n, n_layers, k)
        ids = take(np.int16, n * n_layers * k).reshape(n, n_layers, k)
        return cls(ids.astype(np.int32), weights.copy(), positions.copy(), layers.copy(), n_expert)

    def between(self, p0: int, p1: int | None = None) -> RouterRows:
        """The rows of positions [p0, p1), such as those of one turn; None is the end."""
        keep = self.positions >= p0
        if p1 is not None:
            keep &= self.positions < p1
        return RouterRows(self.ids[keep], self.weights[keep], self.positions[keep], self.layers, self.n_expert)

    def frequencies(self) -> Floats:
        """Share of the choices that fell on each expert, float64 [layer, expert].

        A row adds up to 1, or is 0 where no token has a choice.
        """
        counts = np.zeros((len(self.layers), self.n_expert))
        for layer in range(len(self.layers)):
            chosen = self.ids[:, layer]
            counts[layer] = np.bincount(chosen[chosen >= 0], minlength=self.n_expert)[: self.n_expert]
        total: Floats = counts.sum(axis=1, keepdims=True)
        return np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)

    def hit_curve(self) -> Floats:
        """Hit rate of a cache that keeps the N most recently used experts of each layer: float64 [layer, n_expert].

        Column N-1 is for a cache of N experts. Choices come token by token in the order of positions, and best first
        within a token; the first use of an expert is a miss. By Mattson's stack distances: a use hits in every cache
        that is larger than the number of other experts used since the last use of the same one.
        """
        hits = np.zeros((len(self.layers), self.n_expert))
        for layer in range(len(self.layers)):
            stack: list[int] = []
            chosen = self.ids[:, layer]
            sequence = chosen[chosen >= 0].tolist()
            for expert in sequence:
                if expert in stack:
                    distance = stack.index(expert)
                    hits[layer, distance] += 1
                    del stack[distance]
                stack.insert(0, expert)
            if sequence:
                hits[layer] = hits[layer].cumsum() / len(sequence)
        return hits


def drift(a: RouterRows, b: RouterRows) -> Floats:
    """How far the choice of experts moved from ``a`` to ``b``, for example between two turns: float64 [layer], 0 to 1.

    Total variation distance of the frequencies: half the sum over experts of |f_a - f_b|. 0: the same shares; 1: no
    expert in common.

    Raises:
        ArgumentError: they are of models with other layers or experts.
    """
    if a.n_expert != b.n_expert or not np.array_equal(a.layers, b.layers):
        raise ArgumentError("the router rows are of models with different layers or numbers of experts")
    moved: Floats = np.abs(a.frequencies() - b.frequencies()).sum(axis=1) / 2
    return moved
