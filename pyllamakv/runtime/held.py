"""Which positions each sequence holds, by our own books.

The C API tells the lowest and the highest position of a sequence only. Counting what remains after a cut needs the
holes as well, and on a sliding window the part that left the window still counts as held: the sequence goes
on after it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Held"]

Runs = list[tuple[int, int]]
_END = 2**31


class Held:
    """Sorted, disjoint, half-open runs of positions for every sequence."""

    def __init__(self, n_seq: int) -> None:
        self._runs: list[Runs] = [[] for _ in range(n_seq)]

    def count(self, seq: int) -> int:
        """Number of positions held."""
        return sum(b - a for a, b in self._runs[seq])

    def total(self) -> int:
        """The same over all sequences."""
        return sum(map(self.count, range(len(self._runs))))

    def add(self, seq: int, positions: npt.NDArray[np.int32]) -> None:
        """Positions of decoded tokens (ascending, as C demands)."""
        first, last = int(positions[0]), int(positions[-1]) + 1
        runs = self._runs[seq]
        if last - first == len(positions):
            if runs and runs[-1][1] == first:  # the ordinary case
                runs[-1] = (runs[-1][0], last)
            else:
                self._runs[seq] = _merged([*runs, (first, last)])
            return
        self._runs[seq] = _merged(runs + [(int(p), int(p) + 1) for p in np.unique(positions)])

    def remove(self, seq: int, p0: int, p1: int) -> None:
        """Cut [p0, p1) out; p1 < 0 is the end."""
        end = _END if p1 < 0 else p1
        cut = [(a, min(b, p0)) for a, b in self._runs[seq]] + [(max(a, end), b) for a, b in self._runs[seq]]
        self._runs[seq] = _merged(cut)

    def remove_all(self, p0: int, p1: int) -> None:
        """Cut [p0, p1) out of every sequence."""
        for seq in range(len(self._runs)):
            self.remove(seq, p0, p1)

    def copy(self, src: int, dst: int, p0: int, p1: int, *, replaces: bool) -> None:
        """What a copy of [p0, p1) from src leaves in dst; ``replaces`` when dst loses what it had."""
        end = _END if p1 < 0 else p1
        part = [(max(a, p0), min(b, end)) for a, b in self._runs[src]]
        self._runs[dst] = _merged(([] if replaces else self._runs[dst]) + part)

    def keep(self, seq: int) -> None:
        """Only ``seq`` stays."""
        self._runs = [runs if i == seq else [] for i, runs in enumerate(self._runs)]

    def clear(self) -> None:
        """Nothing stays."""
        self._runs = [[] for _ in self._runs]

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move [p0, p1) by delta; what falls below zero is gone."""
        self._map(seq, p0, p1, lambda a, b: (max(0, a + delta), b + delta))

    def divide(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide the positions in [p0, p1) by d."""
        self._map(seq, p0, p1, lambda a, b: (a // d, (b - 1) // d + 1))

    def agree(self, seq: int, highest: int) -> None:
        """Follow the library where it knows better (a failed decode, a restored state): its highest position counts."""
        mine = self._runs[seq][-1][1] - 1 if self._runs[seq] else -1
        if highest < mine:
            self.remove(seq, highest + 1, -1)
        elif highest > mine:
            self._runs[seq] = [(0, highest + 1)]

    def _map(self, seq: int, p0: int, p1: int, change: Callable[[int, int], tuple[int, int]]) -> None:
        end = _END if p1 < 0 else p1
        inside = [(max(a, p0), min(b, end)) for a, b in self._runs[seq]]
        self.remove(seq, p0, p1)
        self._runs[seq] = _merged(self._runs[seq] + [change(a, b) for a, b in inside if a < b])


def _merged(runs: Runs) -> Runs:
    out: Runs = []
    for a, b in sorted(run for run in runs if run[0] < run[1]):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return out
