"""Many examples on many memories until the time is over; each failure once, with its smallest script."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from .emit import program
from .machine import FailedExampleError, Log, machine_for
from .player import Player
from .script import Failure, Op, Script
from .shrink import shrink

__all__ = ["Found", "Report", "hunt"]

#: Examples of one model before the next one has its turn.
TURN = 20


@dataclass(frozen=True)
class Found:
    """A failure and the smallest script that shows it."""

    model: str
    failure: Failure
    script: Script
    path: str | None = None


@dataclass
class Report:
    """What a search did. ``worst``: largest error per model among the comparisons that held."""

    library: str
    build: dict[str, Any]
    seed: int
    steps: int = 0
    examples: int = 0
    passed_over: int = 0
    seconds: float = 0.0
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)

    def write(self, path: Path) -> None:
        data = {"schema": 1, "machine": f"{platform.machine()} {platform.system()}", **asdict(self)}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def hunt(
    library: Path,
    models: Sequence[Path],
    *,
    minutes: float,
    seed: int,
    out: Path | None = None,
    known: Collection[tuple[str, str, str]] = (),
    avoid: Callable[[Op, dict[str, Any]], bool] = lambda _op, _settings: False,
    steps: int = 25,
    patience: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
    save: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Takes turns over ``models``; ``known`` holds (model, operation, kind) to pass over, * for any model.
    ``patience``: seconds to shrink one failure.

    With ``out``, each failure is written there as a script (JSON) and as a program. The same seed draws the same
    examples, as long as the library answers the same.
    """
    start = time.monotonic()
    players = [Player(library, model) for model in models]
    about = players[0].about
    report = Report(about["library"], about["build"], seed)
    known = set(known)
    try:
        for turn in range(10**9):
            for index, player in enumerate(players):
                if time.monotonic() - start > 60 * minutes:
                    return report
                name = player.model.stem
                log = Log({key[1:] for key in known if key[0] in (name, "*")}, avoid)
                begun = time.monotonic()
                _turn(player, log, seed + 1000 * turn + index, steps)
                _count(report, player, log, time.monotonic() - begun)
                report.seconds = time.monotonic() - start
                if log.failure is not None and log.script is not None:
                    script, failure = shrink(player, log.script, log.failure, patience)
                    known.add((name, *failure.key))
                    report.found.append(_keep(Found(name, failure, script), player, out))
                    tell(
                        f"{name}: {failure.operation}: {failure.kind}: {failure.detail} ({len(script.ops)} operations)"
                    )
                save(report)
            tell(f"turn {turn}: {report.examples} examples, {report.steps} steps, {len(report.found)} failures")
    finally:
        for player in players:
            player.close()
    return report


def _turn(player: Player, log: Log, seed: int, steps: int) -> None:
    machine = hypothesis.seed(seed)(machine_for(player, log))
    settings = hypothesis.settings(
        max_examples=TURN,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    with contextlib.suppress(FailedExampleError):  # the log has it
        run_state_machine_as_test(machine, settings=settings)


def _count(report: Report, player: Player, log: Log, seconds: float) -> None:
    about = report.models.setdefault(
        player.model.stem, {"architecture": player.about["architecture"], "examples": 0, "steps": 0, "seconds": 0.0}
    )
    about["examples"] += log.examples
    about["steps"] += log.steps
    about["seconds"] = round(about["seconds"] + seconds, 1)
    about["compared"], about["refusals"] = player.compared, player.refusals
    about["bounds"], about["worst"] = player.about["bounds"], dict(player.worst)
    report.examples += log.examples
    report.steps += log.steps
    report.passed_over += log.passed_over


def _keep(found: Found, player: Player, out: Path | None) -> Found:
    if out is None:
        return found
    out.mkdir(parents=True, exist_ok=True)
    name = f"{found.model}-{found.failure.operation}-{found.failure.kind}"
    found.script.about = f"{found.failure.kind}: {found.failure.detail}"
    found.script.save(out / f"{name}.json")
    (out / f"{name}.py").write_text(program(player, found.script, name), encoding="utf-8")
    return Found(found.model, found.failure, found.script, str(out / f"{name}.py"))
