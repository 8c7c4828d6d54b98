"""A property and the registry: the name, what it means, which defects break it, what it applies to."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyllamakv.errors import ArgumentError

from .case import Case

__all__ = ["UNCOVERED", "Property", "all_properties", "find", "prop"]

#: Rows of the catalogue of defects that no property here can see, and why.
UNCOVERED = {
    "E1": "an upstream state blob carries no identity; that takes a record around it, tested where it is made",
    "E2": "an upstream state blob carries no checksum; likewise",
    "F1": "a matter of time, not of results: measured by benchmarks",
    "F2": "likewise",
    "F3": "likewise",
    "G": "faults of another package's Python, not of the library",
}


@dataclass(frozen=True)
class Property:
    """An equality that must hold for every memory.

    ``means`` says it in one sentence, ``defects`` are rows of the catalogue that break it, ``needs`` what a model and a
    setting must have for it to say anything (``case.NEEDS``), ``limit`` the seconds after which a check counts as hung.
    """

    name: str
    means: str
    defects: tuple[str, ...]
    needs: tuple[str, ...]
    run: Callable[[Case], None]
    limit: float

    @property
    def group(self) -> str:
        """The module it lies in."""
        return self.run.__module__.rpartition(".")[2]


_registry: dict[str, Property] = {}


def prop(
    name: str, means: str, *, defects: Sequence[str] = (), needs: Sequence[str] = (), limit: float = 60.0
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Registers the decorated function as a property; a memory is always needed unless ``needs`` has ``no-memory``."""

    def register(run: Callable[[Case], None]) -> Callable[[Case], None]:
        if name in _registry and _registry[name].run.__module__ != run.__module__:
            raise ArgumentError(f"two properties are called {name}")
        _registry[name] = Property(name, means, tuple(defects), tuple(needs), run, limit)
        return run

    return register


def all_properties() -> list[Property]:
    """Every property, by the module it lies in and then as it stands there."""
    from . import properties

    for module in pkgutil.iter_modules(properties.__path__):
        importlib.import_module(f"{properties.__name__}.{module.name}")
    return sorted(_registry.values(), key=lambda p: p.group)


def find(names: Sequence[str]) -> list[Property]:
    """The properties called ``names`` (a defect's id stands for all of its properties); all where there are none.

    Raises:
        ArgumentError: there is none of that name; the message lists them.
    """
    known = all_properties()
    chosen = [p for p in known if p.name in names or set(p.defects) & set(names)]
    unknown = [n for n in names if not any(n == p.name or n in p.defects for p in known)]
    if unknown:
        raise ArgumentError(
            f"no property is called {', '.join(unknown)}; there are: {', '.join(p.name for p in known)}"
        )
    return chosen if names else known
