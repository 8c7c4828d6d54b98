"""Makes a failing script smaller: operations out, numbers down, as long as the same failure stays.

Hypothesis shrinks what it drew; this shrinks what was played, which needs far fewer plays and works on any script, a
saved one too.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

from .player import Player, play
from .script import Failure, Op, Script

__all__ = ["shrink"]


def shrink(player: Player, script: Script, failure: Failure, seconds: float = 60.0) -> tuple[Script, Failure]:
    """The smallest script found within ``seconds`` that fails in the same way, and how it fails."""
    end = time.monotonic() + seconds
    best, seen = script, failure
    improved = True
    while improved:
        improved = False
        for candidate in _smaller(best):
            if time.monotonic() > end:
                return best, seen
            found, at = play(player, candidate)
            if found is not None and found.key == failure.key:
                best, seen, improved = Script(candidate.model, candidate.settings, candidate.ops[: at + 1]), found, True
                break
    return best, seen


def _smaller(script: Script) -> Iterator[Script]:
    """Scripts that are a little simpler, the boldest first."""
    ops, count = script.ops, len(script.ops)
    size = count // 2
    while size >= 1:
        for start in range(count - size, -1, -size):
            yield Script(script.model, script.settings, [*ops[:start], *ops[start + size :]])
        size //= 2
    for name, value in (("flash_attn", False), ("type_k", 0), ("n_rs_seq", 0), ("swa_full", True), ("n_ubatch", 64)):
        if script.settings.get(name) not in (None, value):
            settings = {**script.settings, name: value}
            if name == "type_k":
                settings["type_v"] = value
            yield Script(script.model, settings, ops)
    for i, op in enumerate(ops):
        for simpler in _simpler(op):
            yield Script(script.model, script.settings, [*ops[:i], simpler, *ops[i + 1 :]])


def _simpler(op: Op) -> Iterator[Op]:
    for k, (_, count) in enumerate(op.get("parts", [])):
        if len(op["parts"]) > 1:
            yield {**op, "parts": [part for j, part in enumerate(op["parts"]) if j != k]}
        for less in sorted({1, count // 2, count - 1} - {0, count}):
            out = copy.deepcopy(op)
            out["parts"][k][1] = less
            yield out
    for name in ("count", "after", "by"):
        least = {"count": 1, "after": 0, "by": 2}[name]
        for less in sorted({least, op.get(name, 0) // 2, op.get(name, 0) - 1}):
            if least <= less < op.get(name, least):
                yield {**op, name: less}
    for name in ("seed", "slot"):
        if op.get(name, 0) > 0 and name == "seed":
            yield {**op, name: 0}
    if op.get("mix"):
        yield {**op, "mix": False}
