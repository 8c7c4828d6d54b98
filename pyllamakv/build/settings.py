"""Every setting of a build: one dataclass, from which the environment variables and the command line are made."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ..errors import ArgumentError
from .backends import BACKENDS
from .toolchain import compilers
from .tree import Variant

__all__ = ["Settings", "add_arguments", "from_arguments", "from_environment", "processors"]


def processors() -> int:
    """How many processors this process may use; a container may hold fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _setting(default: Any, help_text: str, *, flag: str = "", environment: bool = True, **extra: Any) -> Any:
    """A field with what the command line and the documentation need to know of it."""
    metadata = {"help": help_text, "flag": flag, "environment": environment, **extra}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """How to build. Each field is also ``--its-name`` and, but for the variant, ``PYLLAMAKV_ITS_NAME``."""

    backend: str = _setting("cpu", "what to compute on", choices=BACKENDS)
    variant: Variant = _setting(
        "patched", "without the series: the pinned llama.cpp as it is", flag="--stock", environment=False
    )
    source: Path | None = _setting(None, "llama.cpp at the pin: a tree, or the source distribution", metavar="DIR")
    prefix: Path | None = _setting(
        None, "folder to install into (default: one in the user cache)", environment=False, metavar="DIR"
    )
    portable: bool = _setting(False, "for any machine of this architecture, not just this one")
    jobs: int = _setting(0, "compilers at a time (default: one for each processor)", metavar="N")
    cmake_args: str = _setting("", "further options for CMake, quoted as for a shell", metavar="ARGS")

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ArgumentError(f"the backend is {self.backend!r}; it can be {', '.join(BACKENDS)}")
        variants: tuple[str, ...] = get_args(Variant)
        if self.variant not in variants:
            raise ArgumentError(f"the variant is {self.variant!r}; it can be patched or stock")
        if self.jobs < 0:
            raise ArgumentError(f"jobs is {self.jobs}; it is a number of compilers, or 0 for one a processor")
        try:
            shlex.split(self.cmake_args)
        except ValueError as error:
            raise ArgumentError(f"cmake_args is {self.cmake_args!r}, which no shell could split: {error}") from None

    @property
    def options(self) -> tuple[str, ...]:
        """``cmake_args`` as a list."""
        return tuple(shlex.split(self.cmake_args))

    @property
    def build_jobs(self) -> int:
        """How many compilers to run: ``jobs``, or as many as this process may use processors."""
        return self.jobs or processors()

    def folder_name(self, pin: str) -> str:
        """Name of the work folder: platform, backend, pin and a hash of what else changes an object.

        The variant is not part of it: stock and patched share the folder, and every object that does not differ.
        """
        system = f"{platform.system()}-{platform.machine()}".lower()
        flags = {name: os.environ.get(name, "") for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS")}
        what = json.dumps([self.portable, self.options, compilers(), flags], sort_keys=True)
        return f"{system}-{self.backend}-{pin}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that ``PYLLAMAKV_*`` variables ask for; defaults where they are unset or empty.

    Raises:
        ArgumentError: a variable's value is not one of its kind.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(Settings):
        name = f"PYLLAMAKV_{entry.name.upper()}"
        text = environment.get(name, "")
        if text and entry.metadata["environment"]:
            values[entry.name] = _convert(name, text, entry.type)
    return Settings(**values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for each setting. Those that are not given stay out of the parsed arguments."""
    for entry in dataclasses.fields(Settings):
        metadata = dict(entry.metadata)
        help_text = metadata.pop("help")
        if metadata.pop("environment"):
            help_text += f" [PYLLAMAKV_{entry.name.upper()}]"
        flag = metadata.pop("flag") or "--" + entry.name.replace("_", "-")
        options: dict[str, Any] = {"dest": entry.name, "default": argparse.SUPPRESS, "help": help_text, **metadata}
        if flag == "--stock":
            parser.add_argument(flag, action="store_const", const="stock", **options)
        elif entry.type == "bool":
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            kind = {"int": int, "Path | None": Path}.get(str(entry.type), str)
            parser.add_argument(flag, type=kind, **options)


def from_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a command line; what it leaves open comes from the environment."""
    given = vars(arguments)
    values = {entry.name: given[entry.name] for entry in dataclasses.fields(Settings) if entry.name in given}
    return dataclasses.replace(from_environment(environment), **values)


def _convert(name: str, text: str, kind: object) -> Any:
    if kind == "bool":
        if text.lower() in ("1", "on", "true", "yes"):
            return True
        if text.lower() in ("0", "off", "false", "no"):
            return False
        raise ArgumentError(f"{name} is {text!r}; it can be on or off")
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            raise ArgumentError(f"{name} is {text!r}; it is a number") from None
    return Path(text) if kind == "Path | None" else text


def names() -> Sequence[str]:
    """Every environment variable, for the documentation's test."""
    return [f"PYLLAMAKV_{e.name.upper()}" for e in dataclasses.fields(Settings) if e.metadata["environment"]]
