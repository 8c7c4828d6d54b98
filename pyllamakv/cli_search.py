"""``pyllamakv search``: random orders of memory operations, until the time is over."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["search"]


def search(
    models: Annotated[
        list[Path],
        typer.Option(help="GGUF files, or a folder (`pyllamakv models zoo DIR`): one model of each kind of memory"),
    ],
    library: Annotated[str, typer.Option(help="patched (the one in use), stock, or a path")] = "patched",
    minutes: Annotated[float, typer.Option(min=0.01, help="how long to search")] = 60.0,
    seed: Annotated[int, typer.Option(help="the same seed draws the same operations")] = 0,
    json: Annotated[Path | None, typer.Option(help="write the report to this file, renewed after every turn")] = None,
    out: Annotated[
        Path | None, typer.Option(help="write the smallest script of each failure to this folder, and as a program")
    ] = None,
    play: Annotated[Path | None, typer.Option(help="play this saved script (JSON) instead of searching")] = None,
) -> None:
    """Search for orders of memory operations that end in a wrong answer, a NaN or a death.

    Exit code 0 only if nothing was found.
    """
    from .cli import _libraries
    from .replay.search import command

    if library == "both":
        raise typer.BadParameter("one library a search")
    ((_, path),) = _libraries(library).items()
    if play is not None:
        verdict = command.replayed(path, play, models[0])
        print(verdict)
        raise typer.Exit(verdict != "ok")
    tell = functools.partial(print, flush=True)
    found_nothing = command.search(path, models, minutes=minutes, seed=seed, json=json, out=out, tell=tell)
    raise typer.Exit(not found_nothing)
