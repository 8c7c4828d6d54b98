"""llama.cpp's own tests of memory, batches, state and models, built from the tree and run with what they need.

A test that fails on the patched library is run on stock as well: what fails there too is upstream's own, and is shown
with the line that says why. Only a failure that stock does not share counts.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ArgumentError
from . import driver
from .process import Progress
from .settings import Settings, from_environment
from .tree import Variant

__all__ = ["TESTS", "Finding", "Outcome", "UpstreamTest", "choose", "reason", "run_all", "run_one", "table"]

#: What stands for files in a test's arguments: a text model, and a folder of models, one of each architecture.
MODEL, ZOO = "{model}", "{zoo}"

#: One thread: several wait for each other by spinning, which on a busy machine takes minutes instead of seconds.
ALONE = ("-t", "1")


@dataclass(frozen=True)
class UpstreamTest:
    """A program of llama.cpp's ``tests`` folder, its arguments as upstream's own CTest gives them, and its subject."""

    name: str
    program: str
    arguments: tuple[str, ...]
    about: str
    limit: int = 900

    @property
    def needs_model(self) -> bool:
        """Whether a text model must be named."""
        return any(MODEL in argument for argument in self.arguments)

    @property
    def needs_zoo(self) -> bool:
        """Whether it reads the models that ``test-llama-archs`` writes."""
        return any(ZOO in argument for argument in self.arguments)


def _ops(names: str, *filters: str, limit: int = 900) -> UpstreamTest:
    arguments = ("test", "-b", "CPU", "-o", names, *filters)
    about = "ops that edits of a memory lead to, against the plain C reference"
    return UpstreamTest(f"test-backend-ops {names}", "test-backend-ops", arguments, about, limit)


#: In the order in which they run. The seed of test-llama-archs is fixed: by itself it takes another one each time.
TESTS = (
    UpstreamTest("test-batch-alloc", "test-batch-alloc", (), "batches: sequence ids, positions, splits"),
    UpstreamTest("test-alloc", "test-alloc", (), "the graph allocator"),
    UpstreamTest("test-rope", "test-rope", (), "rotation forth and back, which shifts rely on"),
    UpstreamTest("test-llama-archs", "test-llama-archs", ("-s", "1"), "every architecture: logits, saved and loaded"),
    UpstreamTest("test-save-load-state", "test-save-load-state", ("--models", ZOO, *ALONE), "every state"),
    UpstreamTest(
        "test-recurrent-state-rollback",
        "test-recurrent-state-rollback",
        ("--models", ZOO, *ALONE),
        "rollback of every recurrent state",
    ),
    UpstreamTest(
        "test-state-restore-fragmented",
        "test-state-restore-fragmented",
        ("-m", MODEL, *ALONE),
        "a state restored among holes",
    ),
    UpstreamTest(
        "test-thread-safety",
        "test-thread-safety",
        ("-m", MODEL, "-ngl", "99", "-p", "The meaning of life is", "-n", "64", "-c", "256", "-ub", "32", "-np", "4",
         *ALONE),
        "contexts side by side",
    ),
    UpstreamTest("test-autorelease", "test-autorelease", (MODEL,), "a context made and freed in another thread"),
    UpstreamTest("test-model-load-cancel", "test-model-load-cancel", (MODEL,), "a load that is called off"),
    _ops("FILL,ARGSORT,TOP_K,SET_ROWS"),
    _ops("MUL_MAT_ID", "-p", r"type_a=(f32|f16|q8_0|q4_K).*n_mats=4,"),
    _ops("GET_ROWS", "-p", r"type=(f32|f16|q8_0|q4_K),"),
    _ops("ROPE", "-p", r"type=f32,.*mode=(0|2)"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How one run ended: ``passed``, else ``why``."""

    passed: bool
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """A test's outcome on the library asked for and, where that is a failure, on stock (else None)."""

    test: UpstreamTest
    asked: Outcome
    stock: Outcome | None = None

    @property
    def counts(self) -> bool:
        """Whether it is a failure that stock does not share."""
        return not self.asked.passed and (self.stock is None or self.stock.passed)


def choose(names: Sequence[str]) -> list[UpstreamTest]:
    """The tests called ``names``, by any part of a name; all where there are none.

    Raises:
        ArgumentError: a name fits none; the message lists those there are.
    """
    for name in names:
        if not any(name in test.name for test in TESTS):
            raise ArgumentError(f"no test is called {name!r}; there are: {', '.join(test.name for test in TESTS)}")
    return [test for test in TESTS if not names or any(name in test.name for name in names)]


def run_all(
    tests: Sequence[UpstreamTest],
    variant: Variant = "patched",
    *,
    settings: Settings | None = None,
    model: Path | None = None,
    zoo: Path | None = None,
    progress: Progress | None = None,
    done: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Build ``tests`` for ``variant`` and run them; those that fail on patched once more on stock.

    Args:
        model: a small GGUF model with a vocabulary.
        zoo: the folder that ``test-llama-archs -o`` writes; None: written for this run and removed after it.
        done: called with each finding as it is made.

    Raises:
        ArgumentError: a test needs a model and none was named.
        BuildError and its like: a test does not build.
    """
    settings = replace(from_environment() if settings is None else settings, variant=variant, prefix=None)
    needing = [test.name for test in tests if test.needs_model]
    if needing and model is None:
        raise ArgumentError(
            f"{', '.join(needing)} need a model with a vocabulary: --model FILE "
            "(ci/upstream-tests takes one from `pyllamakv models get`)"
        )
    findings = []
    with tempfile.TemporaryDirectory(prefix="pyllamakv-") as folder:
        files = {MODEL: str(model.absolute() if model else None)}
        if any(test.needs_zoo for test in tests):
            files[ZOO] = str(zoo.absolute() if zoo else _write_zoo(Path(folder), settings, progress))
        prefix = driver.ensure_programs(sorted({test.program for test in tests}), settings, progress)
        for test in tests:
            asked = run_one(test, prefix, files)
            stock = None
            if not asked.passed and variant != "stock":
                other = driver.ensure_programs([test.program], replace(settings, variant="stock"), progress)
                stock = run_one(test, other, files)
            findings.append(Finding(test, asked, stock))
            if done is not None:
                done(findings[-1])
    return findings


def run_one(test: UpstreamTest, prefix: Path, files: Mapping[str, str]) -> Outcome:
    """Run one test of the build in ``prefix``, in a folder of its own, since some write files where they stand.

    A test that never ends is ended after its limit, and has failed.
    """
    command = [str(driver.program_path(prefix, test.program))]
    for argument in test.arguments:
        for name, path in files.items():
            argument = argument.replace(name, path)
        command.append(argument)
    # ggml starts a debugger on itself when it aborts, which takes seconds and says nothing here
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pyllamakv-") as folder:
        try:
            run = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=test.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, time.monotonic() - start, f"not at its end after {test.limit} s")
    seconds = time.monotonic() - start
    if run.returncode == 0:
        return Outcome(True, seconds)
    output = (run.stdout + b"\n" + run.stderr).decode(errors="replace")
    return Outcome(False, seconds, reason(output, run.returncode))


_WHY = (
    re.compile(r"GGML_ASSERT|Assertion .* failed|terminate called|what\(\):"),
    re.compile(r"\bFAIL(ED|URE)?\b"),
    re.compile(r"\b(error|failed|mismatch)\b", re.IGNORECASE),
)


def reason(output: str, code: int) -> str:
    """The line of a failed test's output that says why, and the exit code."""
    lines = _plain(output)
    hits = (line for sign in _WHY for line in lines if sign.search(line))
    return f"{next(hits, lines[-1] if lines else 'it said nothing')[:200]} (exit code {code})"


def _plain(output: str) -> list[str]:
    """Lines that are not empty, without colours."""
    lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines())
    return [line for line in lines if line]


def table(findings: Sequence[Finding], variant: Variant = "patched") -> str:
    """What came of each test, one line each, and the reasons of failures below."""
    width = max((len(finding.test.name) for finding in findings), default=0)
    lines = [f"{'test':{width}}  {variant:8}  stock     seconds  subject"]
    for finding in findings:
        asked, stock = finding.asked, finding.stock
        said = "" if stock is None else "ok" if stock.passed else "fails"
        verdict = "ok" if asked.passed else "fails"
        lines.append(f"{finding.test.name:{width}}  {verdict:8}  {said:8}  {asked.seconds:7.1f}  {finding.test.about}")
    for finding in findings:
        if not finding.asked.passed:
            lines.append(f"{finding.test.name}: {finding.asked.why}")
        if finding.stock is not None and not finding.stock.passed:
            lines.append(f"{finding.test.name}: stock fails too: {finding.stock.why}")
    return "\n".join(lines)


def _write_zoo(folder: Path, settings: Settings, progress: Progress | None) -> Path:
    """One model of each architecture, by the same program and seed as `pyllamakv models zoo`."""
    name = "test-llama-archs"
    program = driver.program_path(driver.ensure_programs([name], settings, progress), name)
    subprocess.run([str(program), "-o", str(folder)], check=True, capture_output=True)
    return folder
