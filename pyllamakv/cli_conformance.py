"""``pyllamakv conformance``: every property on every model, in any library of a compatible version."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .replay.conformance.outcome import Result
    from .replay.conformance.runner import Run

__all__ = ["conformance"]

# seconds
_WRITE_EVERY = 30.0


def conformance(
    models: Annotated[Path, typer.Option(help="a folder of GGUF files (`pyllamakv models zoo DIR`), or one file")],
    library: Annotated[str, typer.Option(help="patched (the one in use), stock, or a path")] = "patched",
    only: Annotated[list[str] | None, typer.Option(help="a property's name or a defect's id; may be repeated")] = None,
    model: Annotated[list[str] | None, typer.Option(help="models whose name matches; may be repeated")] = None,
    settings: Annotated[
        str, typer.Option(help="quick, pairwise, all, or names and patterns such as f32,f16-fa*")
    ] = "quick",
    jobs: Annotated[int | None, typer.Option(min=1, help="models at once; one per core by default")] = None,
    limit: Annotated[float | None, typer.Option(min=1, help="seconds for one check, in place of its own limit")] = None,
    json: Annotated[Path | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[Path | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[Path | None, typer.Option(help="write the matrix as a page to this file")] = None,
    baseline: Annotated[Path | None, typer.Option(help="an earlier --json to compare with")] = None,
    list_properties: Annotated[bool, typer.Option("--list", help="print the properties and what they mean")] = False,
) -> None:
    """Hold every property of llama.cpp's memory against every model at every setting.

    Exit code 0 only if nothing is wrong, NaN or died, and nothing is worse than in the baseline.
    """
    from rich.console import Console

    from .replay.conformance import baseline as compare
    from .replay.conformance import junit as junit_xml
    from .replay.conformance import report, runner
    from .replay.conformance import settings as choice
    from .replay.conformance.outcome import BAD

    if list_properties:
        _list(only or ())
        return
    from .cli import _libraries, _progress

    chosen, files = choice.choose(settings), runner.models_in(models, model or ())
    earlier = [] if baseline is None else compare.read(baseline)
    if library == "both":
        raise typer.BadParameter("one library a run; compare two runs with --baseline")
    ((label, path),) = _libraries(library).items()
    written = time.monotonic()

    def through(so_far: Run, name: str, results: list[Result]) -> None:
        nonlocal written
        step(_line(name, results))
        # a run may take hours: what there is can be looked at, and is not lost with the process
        if json is not None and time.monotonic() - written > _WRITE_EVERY:
            report.write_json(so_far, json)
            written = time.monotonic()

    with _progress("holding", len(files)) as step:
        run: Run = runner.run(
            files,
            chosen,
            library=path,
            label=label,
            only=only or (),
            jobs=jobs,
            limit=limit,
            done=through,
        )
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(report.by_property(run))
    if len(run.settings) > 1:
        console.print(report.by_setting(run))
    if any(result.outcome == "refused" for result in run.results):
        console.print(report.refusals(run))
    if json is not None:
        report.write_json(run, json)
    if junit is not None:
        junit_xml.write(run.results, junit)
    if html is not None:
        report.write_html(run, html)
    found = compare.changes(earlier, run.results)
    if baseline is not None:
        print("\n".join(compare.summary(found)))
    bad = [result for result in run.results if result.outcome in BAD]
    print(f"{len(run.results) - len(bad)} of {len(run.results)} checks right or refused on {label}")
    raise typer.Exit(1 if bad or any(change.worse for change in found) or not run.results else 0)


def _list(only: list[str] | tuple[()]) -> None:
    from .replay.conformance.registry import UNCOVERED, find

    for prop in find(only):
        print(f"{prop.group:10} {prop.name:32} {', '.join(prop.defects):10} {prop.means}")
    for row, why in UNCOVERED.items():
        print(f"{'-':10} {'(none)':32} {row:10} {why}")


def _line(name: str, results: list[Result]) -> str:
    counts = Counter(result.outcome for result in results)
    return f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}"
