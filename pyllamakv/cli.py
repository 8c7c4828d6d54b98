"""``pyllamakv …``: one command, one thin call into one room. Rooms are imported when their command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_conformance import conformance
from .cli_search import search
from .errors import PyllamakvError

if TYPE_CHECKING:
    from .replay.runner import Result

__all__ = ["app", "main"]

app = typer.Typer(
    name="pyllamakv",
    help="llama.cpp with a KV memory that stays right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Models to test on, pinned by digest.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.command()(conformance)
app.command()(search)


@app.command()
def libdir(
    stock: Annotated[bool, typer.Option("--stock", help="the unpatched library, built on first use")] = False,
) -> None:
    """Print the folder of the library in use, for LLAMA_CPP_LIB_PATH and the like."""
    if stock:
        from .build import driver

        print(driver.ensure("stock").libdir)
    else:
        from .native.locate import find_library

        print(find_library().parent)


@app.command()
def replay(
    library: Annotated[str, typer.Option(help="patched (the one in use), stock, both, or a path")] = "patched",
    only: Annotated[list[str] | None, typer.Option(help="a scenario's name; may be repeated")] = None,
    json: Annotated[Path | None, typer.Option(help="write the results to this file")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with plots to this file")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="scenarios at once; one per core by default")] = None,
) -> None:
    """Replay multi-turn conversations of real models, and compare each answer with a fresh context's.

    Exit code 0 only if every scenario is ok on the library (with `both`: on the patched one).
    """
    from rich.console import Console

    from .replay import report, runner

    libraries = _libraries(library)
    total = len(libraries) * len(runner.jobs_of(only or ()))
    results: list[Result] = []
    with _progress("replaying", total) as step:
        for label, path in libraries.items():
            results += runner.run(only or (), library=path, label=label, jobs=jobs, done=lambda r: step(_line(r)))
    Console(width=None if sys.stdout.isatty() else 200).print(report.table(results))
    if json is not None:
        report.write_json(results, json)
    if html is not None:
        report.write_html(results, html)
    judged = [r for r in results if len(libraries) == 1 or r.library == "patched"]
    bad = [r for r in judged if r.outcome != "ok"] + [r for r in results if r.outcome == "error"]
    print(f"{len(judged) - len([r for r in judged if r.outcome != 'ok'])} of {len(judged)} ok on {judged[0].library}")
    raise typer.Exit(1 if bad else 0)


@models_app.command("list")
def models_list() -> None:
    """The models there are, and which of them are on this machine."""
    from .replay import catalogue, models

    for name in catalogue.MODELS:
        about = (catalogue.REAL.get(name) or catalogue.UPCYCLED[name]).about
        print(f"{name:20} {'here' if models.is_there(name) else '-':5} {about}")
    print(f"{'zoo':20} {'':5} one tiny random model per architecture: pyllamakv models zoo DIR")


@models_app.command("get")
def models_get(name: str) -> None:
    """Fetch or make a model; prints its path as the last line."""
    from .replay import models

    with _progress(f"getting {name}", 0) as step:
        path = models.get(name, report=lambda what, done, total: step(what, done, total))
    print(path)


@models_app.command("zoo")
def models_zoo(
    folder: Annotated[Path | None, typer.Argument(help="where to; the user cache by default")] = None,
) -> None:
    """Write one tiny random model per architecture, with upstream's own generator; prints the folder."""
    from .replay import models

    print(models.zoo(folder))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def build(context: typer.Context) -> None:
    """Build the library: the same as python -m pyllamakv.build."""
    from .build.__main__ import main as build_main

    raise typer.Exit(build_main(context.args))


def _libraries(wanted: str) -> dict[str, Path]:
    """Label and path of each library that `--library` means; `both` builds the stock one on first use."""
    from .native.locate import find_library

    if wanted in ("stock", "both"):
        from .build import driver

        stock = {"stock": driver.ensure("stock").libdir}
        return stock if wanted == "stock" else {**stock, "patched": find_library()}
    if wanted == "patched":
        return {"patched": find_library()}
    return {wanted: find_library(wanted)}


def _line(result: Result) -> str:
    from .replay.report import how_far

    return f"{result.library}: {result.scenario} on {result.model}: {how_far(result)}"


class _progress:  # noqa: N801 - used like a function
    """A bar on standard error where that is a terminal, a line for each step elsewhere; nothing on standard output."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._bar: Any = None

    def __enter__(self) -> Callable[..., None]:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total or None)
        return self._step

    def _step(self, what: str, done: int | None = None, total: int | None = None) -> None:
        if self._bar is None:
            if done in (None, 0):
                print(what, file=sys.stderr, flush=True)
        elif done is None:
            self._bar.update(self._task, advance=1, description=what)
        else:
            self._bar.update(self._task, completed=done, total=total or None, description=what)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def main() -> None:
    """Entry point: an error of ours is one line on standard error and exit code 1."""
    try:
        app()
    except (PyllamakvError, OSError) as error:
        print(f"pyllamakv: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
