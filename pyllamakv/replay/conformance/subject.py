"""A context under test whose sequences' histories are written down, so that each can be held against its oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyllamakv.errors import StateError

from .case import TAIL, Case, Reads
from .outcome import NotApplicable, Refused, Wrong
from .probe import Probe

__all__ = ["Subject", "cut", "size"]


def size(reads: Reads) -> int:
    """Tokens of a history."""
    return sum(len(read) for read in reads)


def cut(reads: Reads, keep: int) -> Reads:
    """The history without everything from position ``keep`` on, as if it had never been decoded."""
    out: list[tuple[int, ...]] = []
    for read in reads:
        if keep <= 0:
            break
        out.append(read[:keep])
        keep -= len(read)
    return tuple(out)


# PKV_NON_FINITE of pyllamakv.h
_NON_FINITE = -4


class Subject:
    """A window and, for each sequence, the reads that its memory must be equal to.

    Every operation that a library may refuse checks that a refusal has changed nothing, and then ends the property with
    ``Refused`` and the reason.
    """

    def __init__(self, case: Case, **over: Any) -> None:
        self.case = case
        self.over = over
        self.window: Probe = case.open(**over)
        self.reads: dict[int, Reads] = {}
        #: Whether cells may lie elsewhere than in a fresh context.
        self.placed = True

    # what is there

    def size(self, seq: int) -> int:
        """Tokens that the sequence must hold."""
        return size(self.reads.get(seq, ()))

    def read(self, seq: int, *reads: Sequence[int]) -> None:
        """Decodes ``reads``, one ``llama_decode`` each, behind what the sequence holds."""
        for tokens in reads:
            self.window.decode(tokens, self.size(seq), seq)
            self.reads[seq] = (*self.reads.get(seq, ()), tuple(tokens))

    def check(self, seq: int, what: str, *, bound: float | None = None, tail: Reads = TAIL) -> None:
        """The sequence's positions tell the truth, and decoding on gives what the oracle gives."""
        self.holds_positions(seq, what)
        reads, at = self.reads.get(seq, ()), self.size(seq)
        got = self.case.tail(self.window, seq, at, tail)
        want = self.case.oracle(reads, tail, **self.over)
        self.case.same(got, want, what, bound=self.case.bound(self.placed) if bound is None else bound)
        self.reads[seq] = (*reads, *tail)

    def holds_positions(self, seq: int, what: str) -> None:
        """The highest position is the history's last one."""
        wanted = self.size(seq) - 1
        low, high = self.window.positions(seq)
        if high != wanted or (low < 0) != (wanted < 0):
            raise Wrong(f"{what}: positions of sequence {seq} are {low}..{high}, the last one must be {wanted}")

    # operations

    def remove(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """``llama_memory_seq_rm`` of a suffix, a whole sequence, or (-1) everything."""
        ok = self._call(lambda: self.window.seq_rm(seq, p0, p1))
        if not ok:
            self.refused(f"llama_memory_seq_rm({seq}, {p0}, {p1})")
        for each in [seq] if seq >= 0 else [*self.reads]:
            self.reads[each] = cut(self.reads.get(each, ()), max(p0, 0))

    def remove_middle(self, seq: int, p0: int, p1: int) -> None:
        """``llama_memory_seq_rm`` of what has no fresh-context oracle: the property says what it must be equal to."""
        if not self._call(lambda: self.window.seq_rm(seq, p0, p1)):
            self.refused(f"llama_memory_seq_rm({seq}, {p0}, {p1})")

    def shift(self, seq: int, p0: int, p1: int, delta: int, without: Callable[[], Subject] | None = None) -> None:
        """``llama_memory_seq_add``; ``without`` makes the same context less this call: histories may have no oracle."""
        before = self.window.positions(seq)
        self._call(lambda: self.window.seq_add(seq, p0, p1, delta))
        if self.window.positions(seq) != before:
            return
        what = f"llama_memory_seq_add({seq}, {p0}, {p1}, {delta})"
        if without is None:
            self.refused(what)
            return
        why, twin = self.reason(), without()
        if twin.window.positions(seq) != before:
            raise Wrong(f"{what} was refused but positions changed")
        got, want = self.case.tail(self.window, seq, before[1] + 1), self.case.tail(twin.window, seq, before[1] + 1)
        self.case.same(got, want, f"{what} was refused but something changed", bound=self.case.bound())
        raise Refused(why)

    def copy(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """``llama_memory_seq_cp`` of the start of a sequence (or all) to an empty one."""
        before = self.window.positions(dst)
        self._call(lambda: self.window.seq_cp(src, dst, p0, p1))
        if self.window.positions(dst) == before and self.reads.get(src) != self.reads.get(dst):
            self.refused(f"llama_memory_seq_cp({src}, {dst}, {p0}, {p1})")
        self.reads[dst] = self.reads.get(src, ()) if p1 < 0 else cut(self.reads.get(src, ()), p1)

    def keep(self, seq: int) -> None:
        """``llama_memory_seq_keep``."""
        self.window.seq_keep(seq)
        self.reads = {seq: self.reads.get(seq, ())}

    def clear(self, data: bool = True) -> None:
        """``llama_memory_clear``."""
        self.window.clear(data)
        self.reads = {}

    def save(self, seq: int) -> bytes:
        """``llama_state_seq_get_data``; an empty answer is a refusal."""
        blob: bytes = self._call(lambda: self.window.save(seq))
        if not blob:
            self.refused(f"llama_state_seq_get_data({seq})")
        return blob

    def load(self, seq: int, blob: bytes, reads: Reads) -> None:
        """``llama_state_seq_set_data`` of a state whose history is ``reads``."""
        try:
            self._call(lambda: self.window.load(seq, blob))
        except StateError:
            # a failed restore may leave the sequence empty; the others it must not touch
            if self.window.positions(seq) == (-1, -1):
                self.reads.pop(seq, None)
            self.refused(f"llama_state_seq_set_data({seq})")
        self.reads[seq] = reads

    def poison(self, seq: int, count: int = 48) -> None:
        """Decodes ``count`` rows of NaN behind the sequence, through ``batch.embd``.

        A library that notices answers with an error, and leaves the sequence as it was or empty.
        """
        rows = np.full((count, self.case.engine.n_embd), np.nan, dtype=np.float32)
        code = self.window.try_embed(rows, self.size(seq), seq)
        if code == _NON_FINITE:
            if self.window.positions(seq) == (-1, -1):
                self.reads[seq] = ()
            self.holds_positions(seq, "after NaN was refused")
            return
        if code:
            raise NotApplicable(f"embeddings cannot be decoded: llama_decode returned {code}")
        self.reads[seq] = (*self.reads.get(seq, ()), (-1,) * count)

    def refusable(self, call: Callable[[], Any], what: str) -> Any:
        """A call whose falsehood is a refusal."""
        value = self._call(call)
        if not value:
            self.refused(what)
        return value

    def unchanged(self, what: str) -> None:
        """Every sequence is what it must be."""
        for seq in [*self.reads]:
            self.check(seq, what)

    # refusals

    def _call(self, call: Any) -> Any:
        self.case.warnings.lines.clear()
        return call()

    def reason(self) -> str:
        """Why the last call was refused: the library's own word, or the last warning that it logged."""
        own = self.case.engine.lib
        last = getattr(own, "pkv_last_reason", None)
        told = "" if last is None else bytes(self.case.engine.ffi.string(last())).decode("utf-8", "replace")
        if told:
            return told
        lines = self.case.warnings.lines
        return lines[-1] if lines else "no reason given"

    def refused(self, what: str) -> None:
        """Shows that nothing has changed and ends the property.

        Raises:
            Refused: nothing has changed.
            Wrong: something has.
        """
        why = self.reason()
        told = f"{what} was refused but something changed"
        for seq in self.reads:
            self.holds_positions(seq, told)
        for seq, reads in list(self.reads.items()):
            if not any(token < 0 for read in reads for token in read):  # what is poisoned has no oracle
                self.check(seq, told)
        raise Refused(why)
