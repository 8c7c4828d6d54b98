"""Running a command: everything it prints goes to the log; on failure its first errors are shown."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildError

__all__ = ["Log", "Progress", "first_errors", "run"]

_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
# The strongest sign first: "error" alone is also in the name of many a check that CMake makes.
_ERRORS = (
    re.compile(r"^FAILED:|^CMake Error|^\w*Error: |: (fatal )?error[: ]|undefined reference|No space left|ld returned"),
    re.compile(r"\berror\b|\bfatal\b|^ninja: ", re.IGNORECASE),
)
SHOWN_LINES = 40


class Log:
    """A text file, open from creation to :meth:`close`, that keeps every command and what it printed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w", encoding="utf-8", errors="replace")

    def write(self, line: str) -> None:
        """Add a line (with its end)."""
        self._file.write(line)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


class Progress:
    """What the user sees meanwhile, on standard error: a bar on a terminal, a line a step elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._bar = None if quiet else _bar()
        self._task: object = None
        self._title = ""
        self._last = 0.0

    def say(self, line: str) -> None:
        """One line, kept."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def step(self, title: str, done: int, total: int) -> None:
        """How far ``title`` has come."""
        if self._bar is not None:
            if self._task is None or title != self._title:
                self._end()
                self._bar.start()
                self._task = self._bar.add_task(title, total=total)
                self._title = title
            self._bar.update(self._task, completed=done, total=total)
        elif not self.quiet and time.monotonic() - self._last > 30:  # a CI log wants a sign of life, not 300 lines
            self._last = time.monotonic()
            print(f"{title}: {done} of {total}", file=sys.stderr, flush=True)

    def _end(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def close(self) -> None:
        """Take the bar off the screen."""
        self._end()
        if self._bar is not None:
            self._bar.stop()


def run(
    command: Sequence[str],
    *,
    title: str,
    log: Log,
    progress: Progress,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run ``command`` to its end and return what it printed.

    Raises:
        BuildError: it is missing, or its exit code is not 0; the error shows the command, the code, its first errors
            and where the whole log lies.
    """
    log.write(f"$ {' '.join(command)}\n")
    lines: list[str] = []
    try:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            cwd=folder,
        )
    except OSError as error:
        raise BuildError(f"{title}: {command[0]} could not be run: {error}", command=command) from error
    with child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                log.write(line)
                lines.append(line)
                match = _STEP.match(line)
                if match:
                    progress.step(title, int(match[1]), int(match[2]))
        except BaseException:
            child.kill()
            raise
    output = "".join(lines)
    if child.returncode != 0:
        raise BuildError(
            f"{title} failed",
            command=command,
            exit_code=child.returncode,
            output=first_errors(output),
            log=log.path,
        )
    return output


def first_errors(output: str, limit: int = SHOWN_LINES) -> str:
    """The part of a failed command's output that says why: from its first error on, or its end where none is seen."""
    lines = [line for line in output.splitlines() if line.strip()]
    hits = (i for sign in _ERRORS for i, line in enumerate(lines) if sign.search(line) and not _STEP.match(line))
    first = next(hits, None)
    if first is None:
        return "\n".join(lines[-limit:])
    shown = lines[max(first - 2, 0) :][:limit]
    left = len(lines) - max(first - 2, 0) - len(shown)
    return "\n".join([*shown, *([f"… {left} lines more in the log"] if left > 0 else [])])


def _bar() -> Any:
    """A rich progress bar where there is a terminal to draw it on, and rich."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return RichProgress(*columns, console=Console(stderr=True), transient=True)
