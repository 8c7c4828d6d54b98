"""The search itself: a fixed budget finds nothing on the patched library; stock is found out at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from pyllamakv.replay.search.hunt import hunt
from pyllamakv.replay.search.machine import Log, machine_for
from pyllamakv.replay.search.player import Player, play
from pyllamakv.replay.search.script import Script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="an example is a forked process")

FOUND = Path(__file__).with_name("found")
NAMED = sorted(FOUND.glob("*.json"))


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.stem)
def test_found_once(path: Path, patched: Path, zoo: Path) -> None:
    """Every script that the search ever found."""
    script = Script.load(path)
    with Player(patched, zoo / script.model) as player:
        failure, at = play(player, script)
    assert failure is None, f"operation {at}: {failure}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense", "jamba-dense", "lfm2-dense"])
def test_a_fixed_budget_finds_nothing(name: str, patched: Path, zoo: Path) -> None:
    with Player(patched, zoo / f"{name}.gguf") as player:
        log = Log()
        run_state_machine_as_test(
            machine_for(player, log),
            settings=hypothesis.settings(
                max_examples=40,
                stateful_step_count=25,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert log.steps > 300


@pytest.mark.slow
def test_stock_is_found_out(stock: Path, zoo: Path, tmp_path: Path, repository: Path) -> None:
    """Within seconds, and as a program that shows it without the search."""
    models = [zoo / f"{name}.gguf" for name in ("llama-dense", "mamba-dense")]
    report = hunt(stock, models, minutes=0.5, seed=1, out=tmp_path, patience=15.0)
    assert {found.model for found in report.found} == {"llama-dense", "mamba-dense"}
    assert min(len(found.script.ops) for found in report.found) <= 4
    assert {found.failure.kind for found in report.found} & {"nan", "wrong", "died"}
    for found in report.found:
        assert found.path is not None
        if "SystemExit" in Path(found.path).read_text(encoding="utf-8"):
            model = zoo / f"{found.model}.gguf"
            command = [sys.executable, found.path, "--model", str(model), "--library", str(stock)]
            env = {**os.environ, "PYTHONPATH": str(repository)}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 1, done.stdout + done.stderr
            assert "error" in done.stdout.splitlines()[-1], done.stderr
    report.write(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["steps"] == report.steps > 0


def test_a_death_is_a_failure_with_its_operation(stock: Path, zoo: Path) -> None:
    """Where a shift cannot be done, stock aborts (D4)."""
    script = Script(
        "qwen2vl-dense.gguf",
        {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_seq_max": 1},
        [
            {"op": "decode", "parts": [[0, 4]], "seed": 0},
            {"op": "shift", "seq": 0, "p0": 0, "p1": -1, "delta": 2, "strict": False},
        ],
    )
    with Player(stock, zoo / script.model) as player:
        failure, at = play(player, script)
        assert failure is not None and failure.kind == "died" and "SIGABRT" in failure.detail
        assert (at, failure.operation) == (1, "shift")
        # and the player lives on
        assert play(player, Script(script.model, script.settings, script.ops[:1])) == (None, 1)


def test_scripts_are_files(tmp_path: Path) -> None:
    script = Script("m.gguf", {"n_ctx": 256}, [{"op": "keep", "seq": 0, "strict": True}, {"op": "move"}], "why")
    script.save(tmp_path / "s.json")
    assert Script.load(tmp_path / "s.json") == script
