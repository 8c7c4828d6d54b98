"""With nothing of ours used, stock and patched are the same library: equal logits, equal state bytes, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import driver
from pyllamakv.replay import models

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("build")]

CHILD = Path(__file__).with_name("equivalence_child.py")
REAL = ["smollm2-135m", "gemma3-270m"]
# attention, two sliding windows, latent attention, recurrent, hybrid, experts, sparse indexer, M-RoPE, compressed rows
ZOO = [
    "llama-dense", "gemma3-dense", "llama4-moe", "deepseek2-moe", "mamba-dense",
    "lfm2-dense", "qwen3moe-moe", "deepseek32-moe", "qwen2vl-dense", "deepseek4-moe",
]  # fmt: skip


@pytest.fixture(scope="module")
def libraries() -> dict[str, Path]:
    """The folders of the stock and the patched library, built alike."""
    return {"stock": driver.ensure("stock").libdir, "patched": driver.ensure("patched").libdir}


def path_of(model: str) -> Path:
    return models.get(model) if model in REAL else models.zoo() / f"{model}.gguf"


def digests(library: Path, model: Path) -> dict[str, Any]:
    run = subprocess.run([sys.executable, str(CHILD), str(library), str(model)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("model", REAL + ZOO)
def test_equal_logits_and_state_bytes(model: str, libraries: dict[str, Path]) -> None:
    stock, patched = (digests(libraries[variant], path_of(model)) for variant in ("stock", "patched"))

    assert (stock["patched"], patched["patched"]) == (False, True)
    assert stock["results"] == patched["results"]


def test_stock_program_runs_on_the_patched_library(libraries: dict[str, Path]) -> None:
    """llama-simple, linked against the stock library, says the same words on the patched one."""
    program = driver.build_tool("llama-simple")
    command = [str(program), "-m", str(models.get("smollm2-135m")), "-n", "24", "-ngl", "0", "The capital of France is"]

    said = {
        variant: subprocess.run(
            command,
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
            capture_output=True,
            check=True,
        ).stdout
        for variant, folder in libraries.items()
    }

    assert b"Paris" in said["stock"]
    assert said["patched"] == said["stock"]
