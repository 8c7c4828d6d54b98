"""Two runs side by side: what changed for the better and what for the worse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllamakv.errors import ArgumentError

from .outcome import Result, worse

__all__ = ["SCHEMA", "Change", "changes", "read", "summary"]

#: Version of the JSON that a run writes and a baseline is read from.
SCHEMA = 1


@dataclass(frozen=True)
class Change:
    """One check that came out differently. ``worse``: also where what was ok is now refused or left out."""

    before: Result
    now: Result

    @property
    def worse(self) -> bool:
        """Whether it is a change for the worse."""
        return worse(self.before.outcome, self.now.outcome)


def read(path: Path) -> list[Result]:
    """The results of an earlier run.

    Raises:
        ArgumentError: the file is no record of a run, or of another schema.
    """
    try:
        record: Any = json.loads(path.read_text("utf-8"))
        schema = record["schema"]
        results = [Result(**result) for result in record["results"]] if schema == SCHEMA else []
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is not what conformance --json writes: {error}") from error
    if schema != SCHEMA:
        raise ArgumentError(f"{path} has schema {schema}, this package reads {SCHEMA}: make the baseline again")
    return results


def changes(before: Iterable[Result], now: Iterable[Result]) -> list[Change]:
    """Checks of both runs whose outcome differs, those for the worse first."""
    earlier = {result.key(): result for result in before}
    found = [
        Change(earlier[result.key()], result)
        for result in now
        if result.key() in earlier and earlier[result.key()].outcome != result.outcome
    ]
    return sorted(found, key=lambda change: (not change.worse, change.now.key()))


def summary(found: Sequence[Change]) -> list[str]:
    """Lines such as ``worse: copy-part ok -> refused: 3 (gemma3-dense f32, …)``."""
    groups: dict[tuple[bool, str, str, str], list[Result]] = {}
    for change in found:
        key = (change.worse, change.now.property, change.before.outcome, change.now.outcome)
        groups.setdefault(key, []).append(change.now)
    lines = []
    for (bad, name, was, became), results in groups.items():
        some = ", ".join(f"{result.model} {result.setting}" for result in results[:3])
        more = ", …" if len(results) > 3 else ""
        lines.append(f"{'worse' if bad else 'better'}: {name} {was} -> {became}: {len(results)} ({some}{more})")
    counts = Counter("worse" if change.worse else "better" for change in found)
    return [*lines, f"against the baseline: {counts['better']} better, {counts['worse']} worse"]
