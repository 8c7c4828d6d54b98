"""One conversation in one sequence, kept as a llama.cpp program keeps it: a list of tokens, and calls to match."""

from __future__ import annotations

from collections.abc import Sequence

from .engine import Logits, Window
from .oracle import Answer, Cut, Op, Read, flatten, greedy, length, perform, truncate

__all__ = ["Talk"]


class Talk:
    """A conversation: what it reads and answers goes into sequence ``seq`` of ``window``.

    ``ops`` is the history that the memory should hold, in the form that the oracle decodes. ``refusals`` counts
    removals that the library refused; the conversation was then decoded again, as a careful program does. A program
    that does not count (``counts=False``) leaves the positions of what it reads to llama.cpp.
    """

    def __init__(self, window: Window, seq: int = 0, ops: Sequence[Op] = (), *, counts: bool = True) -> None:
        self.window, self.seq = window, seq
        self.counts = counts
        self.ops: list[Op] = list(ops)
        self.marks: list[int] = []
        self.refusals = 0
        self.last: Logits | None = None

    @property
    def at(self) -> int:
        """Tokens held, the next position."""
        return length(self.ops)

    def read(self, tokens: Sequence[int]) -> Logits:
        """Decodes ``tokens``; the last one's logits."""
        self.last = self.window.decode(tokens, self.at if self.counts else None, self.seq)
        self.ops.append(Read(tuple(tokens)))
        return self.last

    def read_text(self, text: str) -> Logits:
        """Decodes ``text``, tokenised on its own, with BOS where the conversation begins and the model wants one."""
        return self.read(self.window.engine.tokenize(text, start=not self.ops))

    def message(self, role: str, text: str, *, prompt: bool = False) -> Logits:
        """Decodes one message in the model's chat template; its first position is appended to ``marks``."""
        self.marks.append(self.at)
        return self.read_text(self.window.engine.format(role, text, prompt=prompt))

    def answer(self, count: int, *, through: bool = False) -> Answer:
        """The greedy answer of at most ``count`` tokens to what was read last; it stays in the memory."""
        if self.last is None:
            raise ValueError("an answer needs a read before it")
        at = self.at if self.counts else None
        found = greedy(self.window, self.last, at, self.seq, count, through=through)
        self.ops += [Read((token,)) for token in found.tokens]
        self.last = found.logits[-1]
        return found

    def listen(self, texts: Sequence[str], *, role: str = "user") -> None:
        """Decodes messages one after another, without answering."""
        for text in texts:
            self.message(role, text)

    def end_turn(self) -> None:
        """Decodes what the chat template puts behind an answer."""
        tail = self.window.engine.format("assistant", "@").rpartition("@")[2]
        if tail:
            self.read_text(tail)

    def turn(self, question: str, count: int) -> tuple[list[Op], Answer]:
        """A question and its answer; also the history that the answer was given on, for the oracle."""
        self.message("user", question, prompt=True)
        before = list(self.ops)
        found = self.answer(count)
        self.end_turn()
        return before, found

    def rewind(self, keep: int) -> bool:
        """Removes everything from position ``keep`` on. Where that is refused: empties the sequence, decodes again."""
        done = self.window.seq_rm(self.seq, keep, -1)
        self.ops = truncate(self.ops, keep)
        self.marks = [mark for mark in self.marks if mark < keep]
        self.last = None
        if not done:
            self.refusals += 1
            self.window.seq_rm(self.seq, -1, -1)
            _, self.last = perform(self.window, self.ops, self.seq)
        return done

    def cut(self, p0: int, p1: int) -> bool:
        """Removes positions [p0, p1) and moves the rest down: llama.cpp's context shift. Where the memory cannot shift,
        or refuses: empties the sequence, decodes what is left again."""
        done = self.window.can_shift() and self.window.seq_rm(self.seq, p0, p1)
        self.ops.append(Cut(p0, p1))
        self.marks = [m if m < p0 else m - (p1 - p0) for m in self.marks if not p0 <= m < p1]
        self.last = None
        if done:
            self.window.seq_add(self.seq, p1, -1, p0 - p1)
        else:
            self.refusals += 1
            self.ops = flatten(self.ops)
            self.window.seq_rm(self.seq, -1, -1)
            _, self.last = perform(self.window, self.ops, self.seq)
        return done

    def fork(self, seq: int) -> Talk:
        """A twin in sequence ``seq``, made with ``seq_cp``; whatever ``seq`` held is replaced."""
        self.window.seq_rm(seq, -1, -1)
        self.window.seq_cp(self.seq, seq)
        return self.twin(seq)

    def twin(self, seq: int, window: Window | None = None) -> Talk:
        """The same history under another sequence or window; touches no memory."""
        other = Talk(window or self.window, seq, self.ops, counts=self.counts)
        other.marks, other.last = list(self.marks), self.last
        return other
