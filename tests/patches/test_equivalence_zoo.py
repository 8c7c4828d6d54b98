"""With nothing of ours used, stock and patched are equal to the bit on every architecture, at three settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import driver
from pyllamakv.replay import models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("build"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a child is forked for each model"),
]

CHILD = Path(__file__).with_name("equivalence_zoo_child.py")
SETTINGS = 3

# Whose graph gives another token's logits on stock (pick-the-outputs-of-cogvlm); what it keeps must be equal.
OTHER_LOGITS = "cogvlm-dense"
KEPT = (10, 11, 12, 13, 16)

# A setting's story with a memory: 10 decodes, 2 states, 2 pairs of positions, 2 more decodes, a state.
WHOLE_STORY = 17


def digests(library: Path) -> dict[str, Any]:
    command = [sys.executable, str(CHILD), str(library), str(models.zoo())]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # ggml starts a debugger on itself when it aborts
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_equal_logits_and_state_bytes_over_the_zoo() -> None:
    folders = [driver.ensure("stock").libdir, driver.ensure("patched").libdir]
    with ThreadPoolExecutor(2) as pool:
        stock, patched = pool.map(digests, folders)

    assert (stock["patched"], patched["patched"]) == (False, True)
    different = [name for name, found in stock["models"].items() if patched["models"][name] != found]
    assert set(different) <= {OTHER_LOGITS}
    for setting, story in stock["models"][OTHER_LOGITS].items():
        assert [patched["models"][OTHER_LOGITS][setting][i] for i in KEPT] == [story[i] for i in KEPT]

    stories = [story for found in stock["models"].values() if isinstance(found, dict) for story in found.values()]
    assert len(stock["models"]) == 128
    assert len(stories) == 128 * SETTINGS, "a model died, on both libraries"
    # the rest have no memory, or make no context at a setting (quantised V of a head that no block divides)
    assert sum(len(story) == WHOLE_STORY for story in stories) > 0.9 * len(stories)
