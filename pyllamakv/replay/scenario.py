"""A scenario and the registry: the name, the symptom a user would report, what it runs on, what cures it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyllamakv.errors import ArgumentError

from .stage import Stage

__all__ = ["Scenario", "all_scenarios", "find", "scenario"]


@dataclass(frozen=True)
class Scenario:
    """What users meet, replayed.

    ``story`` is the symptom in a user's words; ``right`` what has to be so instead. ``defects`` are ids of the
    catalogue, ``patches`` the patches without which it fails, ``seconds`` its rough cost on one core and one model
    (long ones start first), ``limit`` the time after which the child counts as hung.
    """

    name: str
    story: str
    right: str
    models: tuple[str, ...]
    defects: tuple[str, ...]
    run: Callable[[Stage], None]
    patches: tuple[str, ...] = ()
    seconds: float = 5.0
    limit: float = 300.0


_registry: dict[str, Scenario] = {}


def scenario(
    name: str,
    *,
    story: str,
    right: str,
    models: Sequence[str],
    defects: Sequence[str],
    patches: Sequence[str] = (),
    seconds: float = 5.0,
    limit: float = 300.0,
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Registers the decorated function as a scenario."""

    def register(run: Callable[[Stage], None]) -> Callable[[Stage], None]:
        if name in _registry and _registry[name].run.__module__ != run.__module__:
            raise ArgumentError(f"two scenarios are called {name}: {_registry[name].run.__module__}, {run.__module__}")
        _registry[name] = Scenario(
            name, story, right, tuple(models), tuple(defects), run, tuple(patches), seconds, limit
        )
        return run

    return register


def all_scenarios() -> list[Scenario]:
    """Every scenario of the set, in the order of their modules."""
    from . import scenarios

    for module in pkgutil.iter_modules(scenarios.__path__):
        importlib.import_module(f"{scenarios.__name__}.{module.name}")
    return sorted(_registry.values(), key=lambda s: s.run.__module__)


def find(names: Sequence[str]) -> list[Scenario]:
    """The scenarios called ``names``, all of them where ``names`` is empty.

    Raises:
        ArgumentError: there is none of that name; the message lists them.
    """
    known = {s.name: s for s in all_scenarios()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ArgumentError(f"no scenario is called {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(known.values())
