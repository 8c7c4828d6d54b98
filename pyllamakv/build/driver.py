"""Building: prepare the tree, configure, compile, install; or find that all of it is done.

<cache>/work/<platform-backend-pin-options>/     tree and objects, shared by stock and patched
<cache>/builds/<the same>-<variant>-<digest>/    what is installed, unless --prefix says otherwise
<cache>/logs/                                    the last log of each kind
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BuildError
from ..paths import cache_dir
from . import backends, toolchain
from . import pin as pins
from .home import package_root
from .lock import locked
from .process import Log, Progress, run
from .settings import Settings, from_environment
from .tree import Variant, expected_stamp, prepare

__all__ = ["BuildResult", "build", "build_tool", "ensure", "is_current"]


@dataclass(frozen=True)
class BuildResult:
    """An installed build. ``libdir`` holds libraries and ``build-info.json``; ``log`` is None where nothing was run."""

    prefix: Path
    libdir: Path
    log: Path | None
    variant: Variant

    @property
    def info(self) -> dict[str, Any]:
        """``build-info.json``."""
        data: dict[str, Any] = json.loads((self.libdir / "build-info.json").read_text(encoding="utf-8"))
        return data


def build(
    settings: Settings | None = None, *, programs: Sequence[str] = (), progress: Progress | None = None
) -> BuildResult:
    """Build and install what ``settings`` (default: the environment's) ask for; seconds where nothing changed.

    Args:
        programs: llama.cpp's own programs to build as well; they go to ``<prefix>/bin``.

    Raises:
        BuildError: a tool is missing, or a command failed; it shows the command, its errors and the log's path.
        SourceError, DownloadError, PatchError: the tree cannot be prepared.
        OSError: a file cannot be written. Nothing half-built is installed in any case.
    """
    settings = from_environment() if settings is None else settings
    tools = toolchain.find()
    backends.require(settings.backend)
    own_progress = progress is None
    progress = Progress() if progress is None else progress
    name = settings.folder_name(pins.load().short)
    work = cache_dir("work", name)
    prefix = (settings.prefix or default_prefix(settings)).expanduser().absolute()
    log_path = cache_dir("logs", f"{name}-{settings.variant}.log")

    def waiting() -> None:
        progress.say(f"waiting for another build in {work}")

    try:
        with locked(work / "build.lock", waiting=waiting), contextlib.closing(Log(log_path)) as log:
            # CMake prepares the tree too; here a failure is an exception of its own kind, not a line in a log
            prepare(work, settings.source, settings.variant, report=progress.say)
            _forget_other_source(work)
            command = _configure_command(settings, tools, work, _programs(prefix, programs))
            environment = _environment(work)
            run(command, title="configuring", log=log, progress=progress, environment=environment)
            targets = ["pyllamakv", *(["pyllamakv-programs"] if programs else [])]
            command = [tools.cmake, "--build", str(work), "--config", "Release", "--parallel", str(settings.build_jobs)]
            command += ["--target", *targets]
            run(command, title=f"compiling ({settings.variant})", log=log, progress=progress, environment=environment)
            _install(tools.cmake, work, prefix, ["pyllamakv", *(["programs"] if programs else [])], log, progress)
    finally:
        if own_progress:
            progress.close()
    progress.say(f"installed: {prefix / 'lib'}")
    return BuildResult(prefix, prefix / "lib", log_path, settings.variant)


def ensure(variant: Variant, *, settings: Settings | None = None, progress: Progress | None = None) -> BuildResult:
    """The library of ``variant`` in the user cache, built where it is not there or is another series' (see `build`)."""
    settings = replace(from_environment() if settings is None else settings, variant=variant)
    prefix = settings.prefix or default_prefix(settings)
    if is_current(prefix, settings):
        return BuildResult(prefix, prefix / "lib", None, variant)
    return build(settings, progress=progress)


def build_tool(program: str, *, settings: Settings | None = None, progress: Progress | None = None) -> Path:
    """One of llama.cpp's own programs (``test-llama-archs``, ``llama-completion``…), stock, built on first use.

    Raises:
        BuildError: there is no such program, or it does not build.
    """
    settings = replace(from_environment() if settings is None else settings, variant="stock")
    return program_path(ensure_programs([program], settings, progress), program)


def program_path(prefix: Path, program: str) -> Path:
    """Where a build in ``prefix`` puts one of llama.cpp's own programs."""
    return prefix / "bin" / (program + (".exe" if os.name == "nt" else ""))


def ensure_programs(programs: Sequence[str], settings: Settings, progress: Progress | None = None) -> Path:
    """The prefix of a build of ``settings`` that holds ``programs``; built where it is not there or not current."""
    prefix = settings.prefix or default_prefix(settings)
    if not (all(program_path(prefix, name).is_file() for name in programs) and is_current(prefix, settings)):
        build(settings, programs=programs, progress=progress)
    return prefix


def is_current(prefix: Path, settings: Settings) -> bool:
    """Whether ``prefix`` holds what ``settings`` would build."""
    try:
        info = json.loads((prefix / "lib" / "build-info.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    stamp = expected_stamp(settings.variant)
    return bool(
        info.get("digest") == stamp.digest
        and info.get("backend") == settings.backend
        and info.get("portable") == settings.portable
        and (prefix / "native" / "_cdef.py").is_file()
    )


def default_prefix(settings: Settings) -> Path:
    """Where a build without ``--prefix`` goes. The name holds a digest of the content, so that a build never replaces
    a library that another process has loaded."""
    stamp = expected_stamp(settings.variant)
    return cache_dir("builds", f"{settings.folder_name(stamp.pin[:12])}-{settings.variant}-{stamp.digest[:8]}")


def _configure_command(
    settings: Settings, tools: toolchain.Toolchain, work: Path, programs: Sequence[str]
) -> list[str]:
    # The tree's copy of csrc/: CMake holds a folder to one source, and a checkout and a wheel may share the folder.
    command = [tools.cmake, "-S", str(work / "tree" / "csrc"), "-B", str(work)]
    if tools.ninja:
        command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"]
    return [
        *command,
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPYLLAMAKV_ROOT={package_root()}",
        f"-DPYLLAMAKV_SOURCE_DIR={work / 'tree' / 'llama.cpp'}",
        f"-DPYLLAMAKV_VARIANT={settings.variant}",
        f"-DPYLLAMAKV_BACKEND={settings.backend}",
        f"-DPYLLAMAKV_PORTABLE={'ON' if settings.portable else 'OFF'}",
        f"-DPYLLAMAKV_PROGRAMS={';'.join(programs)}",
        *settings.options,
    ]


def _forget_other_source(work: Path) -> None:
    """Drop CMake's memory of a folder that was moved, which it would refuse to configure; the objects stay."""
    cache = work / "CMakeCache.txt"
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={(work / 'tree' / 'csrc').as_posix()}"
    if cache.is_file() and home not in cache.read_text(encoding="utf-8").splitlines():
        cache.unlink()
        shutil.rmtree(work / "CMakeFiles", ignore_errors=True)


def _programs(prefix: Path, programs: Sequence[str]) -> list[str]:
    """``programs`` and those that are installed: one that leaves the configuration would be compiled again later."""
    if not programs:
        return []
    return sorted({*programs, *(path.stem for path in (prefix / "bin").glob("*"))})


def _environment(work: Path) -> dict[str, str]:
    """The environment of the build tools: git, which llama.cpp asks for a commit, must not find somebody else's."""
    return {
        **os.environ,
        **toolchain.compilers(),
        "GIT_CEILING_DIRECTORIES": str(work),
        "LC_ALL": "C",
        "NINJA_STATUS": "[%f/%t] ",
    }


def _install(cmake: str, work: Path, prefix: Path, components: Sequence[str], log: Log, progress: Progress) -> None:
    """Install into a folder beside ``prefix`` first; then put the files in place one by one, each whole."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    staging = prefix.parent / f".{prefix.name}.{os.getpid()}.part"
    try:
        for component in components:
            command = [cmake, "--install", str(work), "--config", "Release", "--prefix", str(staging)]
            run([*command, "--component", component], title="installing", log=log, progress=progress)
        if not prefix.exists():
            staging.replace(prefix)
            return
        # build-info.json last: it is what says that a build is complete
        files = sorted((path for path in staging.rglob("*") if path.is_file()), key=lambda path: path.name == _LAST)
        (prefix / "lib" / _LAST).unlink(missing_ok=True)
        for path in files:
            target = prefix / path.relative_to(staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    except OSError as error:
        raise BuildError(
            f"{prefix} could not be written ({error}): free space there, or name another folder with --prefix"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


_LAST = "build-info.json"
