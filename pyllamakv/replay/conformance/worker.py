"""The checks of one model, in order: ``python -m pyllamakv.replay.conformance.worker`` reads a job from standard input.

Where processes fork, the model is loaded once and every check runs in a forked child, so that a check may die, hang or
leave anything behind; what the child computed of oracles comes back and serves the next ones. Elsewhere one process
makes one check. Results are printed as they come, one JSON object a line.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TextIO

from pyllamakv.errors import DecodeError, PyllamakvError, StateError

from ..child import quiet
from ..engine import Engine
from .case import Case, Facts, Warnings, facts_of
from .outcome import NonFinite, NotApplicable, Refused, Result, Wrong
from .registry import Property, find
from .settings import Setting, distinct, parse

__all__ = ["Fork", "Job", "Worker", "check", "differing", "main"]


@dataclass(frozen=True)
class Job:
    """One model, and what to check of it. ``limit`` (seconds a check) is the property's own where None."""

    library: str
    label: str
    model: str
    properties: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    limit: float | None = None
    fork: bool = field(default_factory=lambda: hasattr(os, "fork"))

    @property
    def name(self) -> str:
        """The model's file name without its ending."""
        return Path(self.model).stem


def check(prop: Property, case: Case) -> tuple[str, str]:
    """Outcome and detail of one check, in this process."""
    try:
        case.needs(prop.needs)
        prop.run(case)
    except NotApplicable as why:
        return "n/a", str(why)
    except Refused as why:
        return "refused", str(why)
    except NonFinite as found:
        return "nan", str(found)
    except (Wrong, DecodeError, StateError) as found:
        return "wrong", str(found)
    return "ok", ""


def differing(settings: Sequence[Setting], facts: Mapping[str, Any]) -> list[Setting]:
    """The settings that differ for a model of which these facts are known."""
    window = facts["n_swa"] > 0
    return distinct(settings, window=window, recurrent=facts["recurrent"], attention=facts["attention"])


class Fork:
    """Runs a function in a forked child, with a time limit, and says how the child ended."""

    def __init__(self, noise: TextIO) -> None:
        self.noise = noise

    def __call__(self, call: Callable[[], Any], limit: float) -> tuple[Any, str]:
        """What ``call`` returned and ``""``, or None and how the child died."""
        ours, theirs = Pipe(duplex=False)
        self.noise.seek(0)
        self.noise.truncate()
        pid = os.fork()
        if pid == 0:
            self._child(call, theirs)
        theirs.close()
        value, late = None, not ours.poll(limit)
        if late:
            os.kill(pid, signal.SIGKILL)
        else:
            try:
                value = ours.recv()
            except EOFError:
                value = None
        ours.close()
        _, status = os.waitpid(pid, 0)
        if late:
            return None, f"no end after {limit:g} s"
        if os.WIFSIGNALED(status):
            return None, f"{signal.Signals(os.WTERMSIG(status)).name}{self._last_words()}"
        if value is None:
            return None, f"exit code {os.waitstatus_to_exitcode(status)}{self._last_words()}"
        return value, ""

    def _child(self, call: Callable[[], Any], pipe: Connection) -> None:
        try:
            os.dup2(self.noise.fileno(), 1)
            os.dup2(self.noise.fileno(), 2)
            pipe.send(call())
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
            os._exit(70)
        os._exit(0)

    def _last_words(self) -> str:
        """What the child wrote last: the text of the assertion that ended it."""
        self.noise.seek(0)
        lines = [line.strip() for line in self.noise.read().splitlines() if line.strip()]
        told = [line for line in lines if "GGML_ASSERT" in line or "what():" in line or "GGML_ABORT" in line] or lines
        return f": {told[-1].rpartition('/')[2]}" if told else ""


class Worker:
    """One model in one library."""

    def __init__(self, job: Job, engine: Engine, run: Callable[[Callable[[], Any], float], tuple[Any, str]]) -> None:
        self.job = job
        self.engine = engine
        self.run = run
        self.oracles: dict[Any, Any] = {}
        self.facts: Facts | None = None
        self.died = ""
        self.warnings = Warnings(engine)

    def look(self) -> None:
        """Finds out what the model is."""
        self.facts, self.died = self.run(lambda: facts_of(self.engine), 60.0)

    def settings(self) -> list[Setting]:
        """The settings that differ for the model."""
        settings = [parse(name) for name in self.job.settings]
        return settings if self.facts is None else differing(settings, self.facts.to_json())

    def results(self, properties: Sequence[Property]) -> Iterator[Result]:
        """Every check, setting by setting, so that oracles are shared."""
        for setting in self.settings():
            self.oracles.clear()
            for prop in properties:
                yield self._result(prop, setting)

    def _result(self, prop: Property, setting: Setting) -> Result:
        start = time.perf_counter()
        outcome, detail, error = "died", f"opening a context: {self.died}", None
        facts = self.facts
        if facts is not None:

            def child() -> tuple[str, str, float | None, dict[Any, Any]]:
                case = Case(self.engine, setting, facts, self.oracles, self.warnings)
                return (*check(prop, case), case.error, case.added)

            answer, died = self.run(child, self.job.limit or prop.limit)
            if answer is None:
                # exit code 70: the property itself is at fault, see Fork._child
                outcome, detail = ("error" if died.startswith("exit code 70") else "died"), died
            else:
                outcome, detail, error, added = answer
                self.oracles |= added
        seconds = round(time.perf_counter() - start, 4)
        return Result(prop.name, self.job.name, setting.name, self.job.label, outcome, error, detail, seconds)


def _inline(call: Callable[[], Any], _limit: float) -> tuple[Any, str]:
    """No fork: whoever started this process watches it."""
    return call(), ""


def main() -> int:
    """0 when every check was made, whatever came of it; 1 and a record of the error otherwise."""
    given: dict[str, Any] = json.load(sys.stdin)
    given |= {name: tuple(given[name]) for name in ("properties", "settings")}
    job = Job(**given)
    quiet()
    # results go where nothing that the library prints can reach them
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        from pyllamakv.native import load

        library = load(job.library)
        emit({"library": str(library.path), "build": library.build_info})
        engine = Engine(library, Path(job.model))
    except PyllamakvError as error:
        emit({"error": f"{type(error).__name__}: {error}"})
        return 1
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise:
        worker = Worker(job, engine, Fork(noise) if job.fork else _inline)
        gc.collect()
        gc.freeze()
        worker.look()
        emit({"facts": None if worker.facts is None else worker.facts.to_json()})
        for result in worker.results(find(job.properties)):
            emit({"result": asdict(result)})
    emit({"end": True})
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
