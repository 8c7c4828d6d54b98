"""What ``pyllamakv search`` does, apart from the command line's own types."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyllamakv.errors import ModelLoadError

from .hunt import Report, hunt
from .memories import pick
from .player import Player, play
from .script import Script

__all__ = ["replayed", "search"]


def _supported() -> None:
    if not hasattr(os, "fork"):
        raise ModelLoadError(f"the search forks a process for every example, which {sys.platform} cannot")


def search(
    library: Path,
    models: Sequence[Path],
    *,
    minutes: float = 60.0,
    seed: int = 0,
    json: Path | None = None,
    out: Path | None = None,
    tell: Callable[[str], None] = print,
) -> bool:
    """Searches for ``minutes``; whether nothing was found.

    ``models``: files, or folders of which one model of each kind of memory is taken. ``json``: the report, renewed
    after every turn. ``out``: a folder for the smallest script of each failure, as data and as a program.
    """
    _supported()
    chosen = pick(list(models))
    if not chosen:
        raise ModelLoadError(f"no model in {', '.join(map(str, models))}: `pyllamakv models zoo DIR` writes some")

    def save(report: Report) -> None:
        if json is not None:
            report.write(json)

    report = hunt(library, chosen, minutes=minutes, seed=seed, out=out, tell=tell, save=save)
    save(report)
    for found in report.found:
        tell(f"\n{found.model}: {found.failure.operation}: {found.failure.kind}: {found.failure.detail}")
        tell(found.script.dumps() if found.path is None else Path(found.path).read_text(encoding="utf-8"))
    tell(
        f"{report.library}: {report.examples} examples, {report.steps} steps on {len(chosen)} models in "
        f"{report.seconds / 60:.1f} minutes, seed {seed}: {len(report.found)} failures"
    )
    return not report.found


def replayed(library: Path, script: Path, folder: Path) -> str:
    """Plays a saved script on the model that it names, in ``folder``; "ok" or what is wrong."""
    _supported()
    saved = Script.load(script)
    with Player(library, folder / saved.model) as player:
        failure, at = play(player, saved)
    return "ok" if failure is None else f"operation {at}, {failure.operation}: {failure.kind}: {failure.detail}"
