"""Models side by side, one worker process each; what every check came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any

from pyllamakv.build.settings import processors
from pyllamakv.errors import ArgumentError, LibraryMismatchError, LibraryNotFoundError

from .outcome import Result
from .registry import find
from .settings import Setting, parse
from .worker import Job, differing

__all__ = ["Run", "models_in", "run"]


@dataclass
class Run:
    """Everything that a report needs of one run."""

    label: str
    library: str = ""
    build: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    properties: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


def models_in(folder: Path, patterns: Sequence[str] = ()) -> list[Path]:
    """The models of a folder whose names match one of ``patterns`` (with or without ``.gguf``), largest first.

    Raises:
        ArgumentError: there is none.
    """
    files = sorted(folder.glob("*.gguf")) if folder.is_dir() else [folder] if folder.is_file() else []
    found = [f for f in files if not patterns or any(fnmatchcase(n, p) for n in (f.name, f.stem) for p in patterns)]
    if not found:
        wanted = f" that matches {', '.join(patterns)}" if patterns else ""
        raise ArgumentError(f"{folder} has no model{wanted}; the zoo is written by: pyllamakv models zoo DIR")
    return sorted(found, key=lambda file: -file.stat().st_size)


def run(
    models: Sequence[Path],
    settings: Sequence[Setting],
    *,
    library: Path,
    label: str = "",
    only: Sequence[str] = (),
    jobs: int | None = None,
    limit: float | None = None,
    fork: bool | None = None,
    done: Callable[[Run, str, list[Result]], None] | None = None,
) -> Run:
    """Hold every property of ``only`` (none: all) against every model at every setting that differs for it.

    Args:
        label: what results call the library; its path where empty.
        jobs: models at once; one per core where None. A check has one thread, so results do not depend on it.
        limit: seconds a check may take, in place of each property's own limit.
        fork: one forked child a check; None where the system can. Otherwise one new process a check.
        done: called when a model is through, with the run so far, the model's name and its results; one call at a time.

    Raises:
        ArgumentError: there is no property of that name.
        LibraryMismatchError, LibraryNotFoundError: the library cannot be loaded or is not of a compatible version.
    """
    properties = [p.name for p in find(only)]
    out = Run(label or str(library), str(library), {}, {}, [s.name for s in settings], properties)
    forks = hasattr(os, "fork") if fork is None else fork
    _probe(library)

    def one(model: Path) -> None:
        job = Job(str(library), out.label, str(model), tuple(only), tuple(s.name for s in settings), limit, forks)
        results = _forking(job, properties, out) if forks else _one_by_one(job, properties, out)
        with lock:
            out.results += results
            if done is not None:
                done(out, job.name, results)

    lock = Lock()
    with ThreadPoolExecutor(jobs or processors()) as pool:
        list(pool.map(one, models))
    out.results.sort(key=lambda result: result.model)
    return out


def _probe(library: Path) -> None:
    """Loads the library in a process of its own, so that one of another version is told before anything runs."""
    code = "import sys; from pyllamakv.native import load; load(sys.argv[1])"
    child = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, text=True, errors="replace", env=_environment()
    )
    if child.returncode:
        said = (child.stderr.strip().splitlines() or [_how(child.returncode)])[-1]
        kind, _, text = said.partition(": ")
        error = LibraryNotFoundError if "NotFound" in kind else LibraryMismatchError
        raise error(text or said)


def _environment() -> dict[str, str]:
    return {**os.environ, "GGML_NO_BACKTRACE": "1"}


def _forking(job: Job, properties: Sequence[str], out: Run) -> list[Result]:
    events, code, said = _worker(job, None)
    results = _read(events, job, out)
    if code:
        told = next((event["error"] for event in events if "error" in event), "")
        outcome = "error" if told else "died"
        detail = told or f"{_how(code)} outside of a check: {said[-200:]}"
        seen = {result.key() for result in results}
        missing = [(p, s) for s in job.settings for p in properties if (p, job.name, s) not in seen]
        results += [Result(p, job.name, s, job.label, outcome, None, detail) for p, s in missing]
    return results


def _one_by_one(job: Job, properties: Sequence[str], out: Run) -> list[Result]:
    """A process a check: where nothing forks."""
    results: dict[tuple[str, str, str], Result] = {}
    for setting in job.settings:
        for name in properties:
            facts = out.models.get(job.name)
            real = differing([parse(setting)], facts)[0].name if facts else setting
            if (name, job.name, real) in results:
                continue
            single = Job(job.library, job.label, job.model, (name,), (real,), job.limit, fork=False)
            result = _single(single, out)
            results[result.key()] = result
    return list(results.values())


def _single(job: Job, out: Run) -> Result:
    limit = job.limit or find(job.properties)[0].limit
    events, code, said = _worker(job, limit + 30)  # loading is not the check's
    for result in _read(events, job, out):
        return result
    told = next((event["error"] for event in events if "error" in event), "")
    how = f"no end after {limit:g} s" if code is None else _how(code)
    last = f": {said.splitlines()[-1]}" if said else ""
    return Result(
        job.properties[0],
        job.name,
        job.settings[0],
        job.label,
        "error" if told else "died",
        None,
        told or how + last,
    )


def _worker(job: Job, limit: float | None) -> tuple[list[dict[str, Any]], int | None, str]:
    """Events, exit code (None: past the limit) and what was written to standard error."""
    command = [sys.executable, "-m", "pyllamakv.replay.conformance.worker"]
    try:
        child = subprocess.run(
            command,
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return [], None, ""
    events = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    return events, child.returncode, child.stderr.strip()


def _read(events: Sequence[dict[str, Any]], job: Job, out: Run) -> list[Result]:
    for event in events:
        if "library" in event:
            out.library, out.build = event["library"], event["build"]
        if "facts" in event:
            out.models[job.name] = event["facts"] or {}
    return [Result(**event["result"]) for event in events if "result" in event]


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
