"""The programs that a build needs, and where they are."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BuildError

__all__ = ["MIN_CMAKE", "Toolchain", "compilers", "find"]

MIN_CMAKE = (3, 24)


@dataclass(frozen=True)
class Toolchain:
    """Paths of the programs; ``ninja`` is None where CMake chooses a generator, ``ccache`` where it is absent."""

    cmake: str
    ninja: str | None
    compiler: str
    ccache: str | None


def find() -> Toolchain:
    """Look for every program.

    Raises:
        BuildError: CMake, Ninja or a C++ compiler is missing or too old; the message names the command that mends it.
    """
    cmake = _find_program("cmake", "CMAKE_BIN_DIR")
    if cmake is None:
        raise BuildError("CMake was not found: `pip install cmake`, or install it with the system's package manager")
    version = _version(cmake)
    if version < MIN_CMAKE:
        have, want = (".".join(map(str, v)) for v in (version, MIN_CMAKE))
        raise BuildError(f"{cmake} is CMake {have}, and {want} or newer is needed: `pip install -U cmake`")
    ninja = _find_program("ninja", "BIN_DIR")
    if ninja is None and os.name != "nt":
        raise BuildError("Ninja was not found: `pip install ninja`, or install it with the system's package manager")
    return Toolchain(cmake, ninja, _compiler(), shutil.which("ccache"))


def compilers() -> dict[str, str]:
    """``CC`` and ``CXX`` for CMake: the environment's, else those that built this Python, as scikit-build-core does it.

    A wheel and the driver so use the same compiler by the same name, and ccache gives one what the other compiled.
    A name is left out where it is not on PATH: CMake then looks for itself.
    """
    chosen = {}
    for name in ("CC", "CXX"):
        command = os.environ.get(name) or str(sysconfig.get_config_var(name) or "").split(" -")[0]
        if command and (os.environ.get(name) or shutil.which(command.split()[0])):
            chosen[name] = command
    return chosen


def _find_program(name: str, bin_attribute: str) -> str | None:
    """``name`` on PATH, beside this Python, or in the package of that name (a virtual environment not activated)."""
    found = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None and importlib.util.find_spec(name) is not None:
        folder = getattr(importlib.import_module(name), bin_attribute, None)
        found = shutil.which(name, path=folder) if folder else None
    return found


def _compiler() -> str:
    named = os.environ.get("CXX")
    usual = compilers().get("CXX", "c++").split()[0]
    candidates: Sequence[str] = [named.split()[0]] if named else [usual, "c++", "g++", "clang++", "cl"]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found:
            return found
    if os.name == "nt":
        return "Visual Studio"  # CMake finds it in the registry
    if named:
        raise BuildError(f"CXX names {named!r}, which is not on PATH: unset it, or correct it")
    raise BuildError(
        "no C++ compiler was found (c++, g++, clang++): install one "
        "(Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), or set CXX"
    )


def _version(cmake: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{cmake} does not run ({error}): `pip install --force-reinstall cmake`") from error
    match = re.search(r"version (\d+)\.(\d+)", done.stdout)
    if match is None:
        raise BuildError(
            f"{cmake} does not say its version: `pip install --force-reinstall cmake`",
            command=[cmake, "--version"],
            exit_code=done.returncode,
            output=done.stdout + done.stderr,
        )
    return int(match[1]), int(match[2])
