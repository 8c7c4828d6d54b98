"""Scenarios in child processes, as many at once as there are cores, and what came of each."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyllamakv.build.settings import processors

from . import models
from .scenario import Scenario, find

__all__ = ["ORDER", "Result", "jobs_of", "run"]

#: Outcomes from good to bad. `error`: the scenario could not be played, which says nothing about the library.
ORDER = ("ok", "wrong", "nan", "died", "error")


@dataclass(frozen=True)
class Result:
    """What came of one scenario on one model in one library.

    ``outcome`` is one of :data:`ORDER`, ``detail`` says in a line what was seen first, ``nmse`` is the largest error
    against the oracle (None where nothing was compared). ``checks`` and ``measures`` are what the scenario reported.
    """

    scenario: str
    model: str
    library: str
    outcome: str
    detail: str
    nmse: float | None = None
    seconds: float = 0.0
    peak_mib: float | None = None
    path: str = ""
    build: dict[str, Any] | None = None
    checks: tuple[dict[str, Any], ...] = ()
    measures: dict[str, float] = field(default_factory=dict)


def jobs_of(names: Sequence[str] = ()) -> list[tuple[Scenario, str]]:
    """Scenario and model for each run, long ones first."""
    return sorted(((s, m) for s in find(names) for m in s.models), key=lambda job: -job[0].seconds)


def run(
    names: Sequence[str] = (),
    *,
    library: Path | None = None,
    label: str = "",
    jobs: int | None = None,
    done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Play the scenarios ``names`` (none: all of them) on ``library`` (None: the one in use).

    Args:
        label: what the results call the library; its path where empty.
        jobs: how many at once; one per core where None. Each has one thread, so that results do not depend on it.
        done: called with each result as it comes.

    Returns:
        The results in the order of the set.

    Raises:
        ArgumentError: there is no scenario of that name.
        DownloadError, BuildError…: a model that is needed cannot be had.
    """
    if library is None:
        from pyllamakv.native.locate import find_library

        library = find_library()
    todo = jobs_of(names)
    paths = {name: models.resolve(name) for name in _models_of(todo)}
    results: dict[tuple[str, str], Result] = {}

    def play(job: tuple[Scenario, str]) -> None:
        result = _play(*job, library, label or str(library), paths)
        results[result.scenario, result.model] = result
        if done is not None:
            done(result)

    with ThreadPoolExecutor(jobs or processors()) as pool:
        list(pool.map(play, todo))
    return [results[s.name, m] for s in find(names) for m in s.models]


def _models_of(todo: Sequence[tuple[Scenario, str]]) -> list[str]:
    # the MoE model with equal experts is compared with the dense one
    names = {model for _, model in todo}
    return sorted(names | {"smollm2-135m"} if any("moe" in name for name in names) else names)


def _play(scenario: Scenario, model: str, library: Path, label: str, paths: dict[str, Path]) -> Result:
    with tempfile.TemporaryDirectory(prefix="pyllamakv-replay-") as folder:
        record = Path(folder, "record.jsonl")
        command = [sys.executable, "-m", "pyllamakv.replay.child", "--scenario", scenario.name, "--model", model]
        command += ["--library", str(library), "--record", str(record)]
        command += [part for name, path in paths.items() for part in ("--path", f"{name}={path}")]
        code: int | None
        try:
            child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=scenario.limit)
            code, said = child.returncode, child.stderr
        except subprocess.TimeoutExpired:
            code, said = None, ""
        events = (
            [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
        )
    return _judge(scenario, model, label, events, code, said)


def _judge(
    scenario: Scenario, model: str, label: str, events: Sequence[dict[str, Any]], code: int | None, said: str
) -> Result:
    """The outcome: whether the process lived, then whether every check held."""
    checks = tuple(event["check"] for event in events if "check" in event)
    end = next((event for event in events if event.get("end")), {})
    errors = [check["nmse"] for check in checks if check["nmse"] is not None]
    first = next((event for event in events if "library" in event), {})
    outcome, detail = _outcome(scenario, events, checks, code, said)
    return Result(
        scenario.name,
        model,
        label,
        outcome,
        detail,
        max(errors, default=None),
        float(end.get("seconds", 0.0)),
        end.get("peak_mib"),
        first.get("library", ""),
        first.get("build"),
        checks,
        {event["measure"]: event["value"] for event in events if "measure" in event},
    )


def _outcome(
    scenario: Scenario,
    events: Sequence[dict[str, Any]],
    checks: Sequence[dict[str, Any]],
    code: int | None,
    said: str,
) -> tuple[str, str]:
    step = next((event["step"] for event in reversed(events) if "step" in event), "the start")
    error = next((event["error"] for event in events if "error" in event), None)
    if code is None:
        return "died", f"no end after {scenario.limit:.0f} s; last step: {step}"
    if code < 0 or (code and error is None and not said.strip().startswith("Traceback")):
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "died", f"{name} at: {step}"
    if code or error is not None:
        return "error", error or " ".join(said.split())[-300:]
    bad = [check for check in checks if not check["ok"]]
    if any(not check["finite"] for check in checks):
        return "nan", next(_told(check) for check in checks if not check["finite"])
    if bad:
        return "wrong", _told(bad[0])
    if not checks:
        return "error", "the scenario checked nothing"
    return "ok", f"{len(checks)} checks"


def _told(check: dict[str, Any]) -> str:
    far = f", off by {check['nmse']:.1e}" if isinstance(check["nmse"], float) and math.isfinite(check["nmse"]) else ""
    return f"{check['label']}{far}{'; ' + check['detail'] if check['detail'] else ''}"
