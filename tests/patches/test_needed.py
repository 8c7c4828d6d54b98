"""Each patch is needed: with it left out, each scenario and each check that it names fails, and with it, none does.

A check is a property of the conformance suite on one model of the zoo: ``property@model/setting``.

The library is built once for each patch, from a copy of the project without that patch. All copies share the build
folder of the user cache, so only the objects that differ are compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyllamakv.build import pin, source
from pyllamakv.build.home import home, package_root
from pyllamakv.build.patch import Patch
from pyllamakv.build.series import load
from pyllamakv.errors import PatchError
from pyllamakv.native.locate import find_library
from pyllamakv.replay import models, runner
from pyllamakv.replay.conformance import runner as conformance
from pyllamakv.replay.conformance import settings
from pyllamakv.replay.conformance.outcome import worse

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("build")]

SERIES = load()
FOUNDATION, *PATCHES = SERIES.patches


def project_without(patch: Patch, folder: Path) -> Path:
    """A copy of the project whose series lacks ``patch``."""
    ignored = shutil.ignore_patterns("__pycache__", "lib", "share", "_cdef.py")
    shutil.copytree(package_root() / "pyllamakv", folder / "pyllamakv", ignore=ignored)
    for name in ("patches", "csrc"):
        shutil.copytree(home() / name, folder / name)
    (folder / "patches" / patch.name).unlink()
    series = folder / "patches" / "series"
    series.write_text(series.read_text(encoding="utf-8").replace(f"{patch.name}\n", ""), encoding="utf-8")
    return folder


def build(project: Path, prefix: Path) -> Path:
    """The library of ``project``."""
    subprocess.run(
        [sys.executable, "-m", "pyllamakv.build", "--prefix", str(prefix)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONSAFEPATH": ""},
        check=True,
    )
    return prefix / "lib"


def check(name: str, library: Path) -> str:
    """What comes of ``property@model/setting``."""
    only, _, rest = name.partition("@")
    model, _, setting = rest.partition("/")
    path = models.zoo() / f"{model}.gguf"
    results = conformance.run([path], settings.choose(setting), library=library, only=[only], jobs=1).results
    (result,) = results
    return result.outcome


def test_nothing_fits_without_the_foundation() -> None:
    touched = {change.path for patch in SERIES.patches for change in patch.files}
    tree = source.obtain(pin.load())
    with pytest.raises(PatchError, match="fits"):
        SERIES.without(FOUNDATION.name).apply(lambda path: (tree / path).read_text() if path in touched else None)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_left_out(patch: Patch, tmp_path: Path) -> None:
    library = build(project_without(patch, tmp_path / "project"), tmp_path / "prefix")

    scenarios = patch.named("Scenario")
    played = runner.run(scenarios, library=library) if scenarios else []
    outcomes = {(r.scenario, r.model): r.outcome for r in played}

    for name in scenarios:
        assert any(outcome != "ok" for (scenario, _), outcome in outcomes.items() if scenario == name), (
            f"{name} is ok without {patch.name}, which claims to cure it"
        )
    for name in patch.named("Property"):
        outcome = check(name, library)
        # a refusal counts where the series has the right result
        assert worse(check(name, find_library()), outcome), (
            f"{name} is {outcome} without {patch.name}, which claims to cure it"
        )


@pytest.mark.parametrize("name", [name for patch in PATCHES for name in patch.named("Property")])
def test_checks_hold_with_every_patch(name: str) -> None:
    assert check(name, find_library()) in ("ok", "refused")
