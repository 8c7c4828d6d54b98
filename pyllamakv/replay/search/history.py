"""What a sequence must be: the calls that made it, as a value. Two sequences with equal histories answer equally.

A history is a tuple of steps; each one is a call on the sequence alone:

    ("decode", pos, tokens)      ("poison", pos, count)      ("remove", p0, p1)
    ("shift", p0, p1, delta)     ("divide", p0, p1, by)      ("merge", history, p0, p1): those positions of another one

A removal of what was decoded last takes the tokens out of the history: they never happened. Any other removal stays in
it as a step, since the tokens behind it have seen what is gone: no fresh context that never decoded it can be its
oracle, only one that did the same.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

__all__ = ["END", "History", "Step", "copied", "decoded", "divided", "poisoned", "positions", "removed", "shifted"]

Step = tuple[Any, ...]
History = tuple[Step, ...]

#: An open end.
END = 2**31 - 1


def _closed(p0: int, p1: int) -> tuple[int, int]:
    return max(p0, 0), END if p1 < 0 else p1


@lru_cache(maxsize=4096)
def _cells(history: History) -> tuple[tuple[int, int, int], ...]:
    """(position, step, offset in the step) of each token that is still there, in the order of decoding."""
    cells: list[tuple[int, int, int]] = []
    for index, step in enumerate(history):
        kind = step[0]
        if kind == "decode":
            cells += [(step[1] + i, index, i) for i in range(len(step[2]))]
        elif kind == "poison":
            cells += [(step[1] + i, index, i) for i in range(step[2])]
        elif kind == "merge":
            cells = [cell for cell in cells if not step[2] <= cell[0] < step[3]]
            cells += [(pos, index, i) for i, pos in enumerate(positions(step[1])) if step[2] <= pos < step[3]]
        elif kind == "remove":
            cells = [cell for cell in cells if not step[1] <= cell[0] < step[2]]
        elif kind == "shift":
            moved = [(pos + step[3] if step[1] <= pos < step[2] else pos, at, i) for pos, at, i in cells]
            cells = [cell for cell in moved if cell[0] >= 0]
        elif kind == "divide":
            cells = [(pos // step[3] if step[1] <= pos < step[2] else pos, at, i) for pos, at, i in cells]
    return tuple(cells)


def positions(history: History) -> tuple[int, ...]:
    """Positions of the tokens that are still there, in the order of decoding."""
    return tuple(cell[0] for cell in _cells(history))


def poisoned(history: History) -> bool:
    """Whether NaN is among what the sequence has seen."""
    return any(step[0] == "poison" or (step[0] == "merge" and poisoned(step[1])) for step in history)


def decoded(history: History, pos: int, tokens: tuple[int, ...]) -> History:
    return (*history, ("decode", pos, tokens))


def removed(history: History, p0: int, p1: int) -> History:
    """Without positions [p0, p1)."""
    p0, p1 = _closed(p0, p1)
    cells = _cells(history)
    kept = [cell for cell in cells if not p0 <= cell[0] < p1]
    if len(kept) == len(cells):
        return history
    if not kept:
        return ()
    last, gone = kept[-1], cells[len(kept) :]
    if kept != list(cells[: len(kept)]) or any(history[at][0] == "merge" for _, at, _ in gone):
        return (*history, ("remove", p0, p1))
    # the newest tokens alone: they never happened, and the edits of the others stay
    out: list[Step] = []
    for index, step in enumerate(history):
        if step[0] not in ("decode", "poison") or index < last[1]:
            out.append(step)
        elif index == last[1]:
            count = last[2] + 1
            out.append((*step[:2], step[2][:count] if step[0] == "decode" else count))
    return _tidy(tuple(out))


def _tidy(history: History) -> History:
    """Without edits that no token of the history feels."""
    out: History = ()
    for step in history:
        longer = (*out, step)
        if step[0] in ("decode", "poison") or positions(longer) != positions(out):
            out = longer
    return out


def shifted(history: History, p0: int, p1: int, delta: int, *, relative: bool = False) -> History | None:
    """Positions moved by ``delta``; below zero they are gone. None where tokens would meet or change places.

    ``relative``: the model sees the distance of two tokens alone, so that moving all of them is the same as having
    decoded them there: an oracle that needs no shift.
    """
    p0, p1 = _closed(p0, p1)
    out = (*history, ("shift", p0, p1, delta))
    before, after = positions(history), positions(out)
    if before == after:
        return history
    if not after:
        return ()
    if relative and p0 <= min(before) and p1 > max(before) and (there := _translated(history, delta)) is not None:
        return there
    moved = [pos + delta if p0 <= pos < p1 else pos for pos in sorted(set(before))]
    return out if all(a < b for a, b in itertools.pairwise(moved)) else None


def _translated(history: History, delta: int) -> History | None:
    """The same calls at positions that are ``delta`` higher; None where one would be negative."""
    out: list[Step] = []
    for step in history:
        if step[0] in ("decode", "poison"):
            out.append((step[0], step[1] + delta, step[2]))
        elif step[0] in ("remove", "shift"):
            end = END if step[2] == END else step[2] + delta
            out.append((step[0], step[1] if step[1] == 0 else step[1] + delta, end, *step[3:]))
        else:  # a division scales positions, a merge has two histories
            return None
        if out[-1][1] < 0 or (out[-1][0] in ("remove", "shift") and out[-1][2] < 0):
            return None
    moved = tuple(out)
    same = [pos + delta for pos in positions(history)] == list(positions(moved))
    return moved if same else None


def divided(history: History, p0: int, p1: int, by: int) -> History | None:
    """Positions divided by ``by``: several tokens may share one afterwards. None where they would change places."""
    p0, p1 = _closed(p0, p1)
    out = (*history, ("divide", p0, p1, by))
    before = positions(history)
    if before == positions(out):
        return history
    moved = [pos // by if p0 <= pos < p1 else pos for pos in sorted(before)]
    return out if moved == sorted(moved) else None


def copied(source: History, target: History, p0: int, p1: int) -> History:
    """``target`` after the copy: a copy of all that there is replaces it, a part replaces those positions of it."""
    p0, p1 = _closed(p0, p1)
    have = positions(source)
    if (p0 == 0 and p1 == END) or (have and p0 <= min(have) and p1 > max(have)):
        return source
    if p0 >= p1:
        return target
    part = removed(removed(source, p1, -1) if p1 < END else source, 0, p0)
    rest = removed(target, p0, p1)
    if not rest:
        return part
    return (*rest, ("merge", source, p0, p1)) if part else rest
