"""The register of operations, and what they share.

A refusal has to leave everything as it was. What upstream leaves open (a decode that stopped half way, a restore that
failed) is read from the positions, and has to be one of the allowed outcomes.
"""

from __future__ import annotations

from collections.abc import Callable

from . import history as h
from .history import History
from .script import Op
from .world import Broken, World

__all__ = ["STEPS", "settled", "step"]

#: What carries out each operation, and says what the sequences must be when the library says that it was done.
STEPS: dict[str, Callable[[World, Op], None]] = {}


def step(name: str) -> Callable[[Callable[[World, Op], None]], Callable[[World, Op], None]]:
    """Registers an operation."""

    def register(function: Callable[[World, Op], None]) -> Callable[[World, Op], None]:
        STEPS[name] = function
        return function

    return register


def settled(world: World, seq: int, done: dict[int, History], when: str) -> None:
    """Reads what became of a sequence: as before, empty, or one of ``done`` by its highest position."""
    found = world.window.positions(seq)
    before = world.histories[seq]
    if found[1] in done:
        world.histories[seq] = done[found[1]]
    elif found == (-1, -1):
        world.histories[seq] = ()
    elif found[1] != max(h.positions(before), default=-1):
        raise Broken("changed", f"{when} sequence {seq} says {found}")
