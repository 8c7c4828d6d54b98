"""Which llama.cpp: ``patches/pin.toml`` and the list of its files, ``patches/pin.lock``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import SourceError
from .home import patches_dir

__all__ = ["Pin", "load", "parse_toml"]


@dataclass(frozen=True)
class Pin:
    """The pinned source.

    ``digest`` is over every file that we build from (see :mod:`.digest`); ``files`` maps each of them to the first
    eight hexadecimal digits of its SHA-256, enough to name the file that differs.
    """

    commit: str
    repository: str
    sdist_name: str
    sdist_version: str
    sdist_sha256: str
    sdist_bytes: int
    sdist_folder: str
    digest: str
    files: dict[str, str]

    @property
    def short(self) -> str:
        """First twelve digits of the commit, for folder names."""
        return self.commit[:12]

    @property
    def requirement(self) -> str:
        """The source distribution as pip wants it."""
        return f"{self.sdist_name}=={self.sdist_version}"


def load(folder: Path | None = None) -> Pin:
    """The pin in ``folder`` (default: ours).

    Raises:
        SourceError: a file is missing or a key is; the message names it.
    """
    folder = patches_dir() if folder is None else folder
    path = folder / "pin.toml"
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
        files = _parse_lock((folder / "pin.lock").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(
            f"the pin is incomplete: {error.filename} is missing; restore it from the repository"
        ) from error

    def text(key: str) -> str:
        value = table.get(key)
        if value is None:
            raise SourceError(f"{path} lacks the key {key!r}")
        return str(value)

    return Pin(
        commit=text("upstream.commit"),
        repository=text("upstream.repository"),
        sdist_name=text("sdist.name"),
        sdist_version=text("sdist.version"),
        sdist_sha256=text("sdist.sha256"),
        sdist_bytes=int(text("sdist.bytes")),
        sdist_folder=text("sdist.folder"),
        digest=text("tree.sha256"),
        files=files,
    )


def parse_toml(text: str) -> dict[str, str | int]:
    """The part of TOML that ``pin.toml`` keeps to: tables, basic strings without escapes, integers, comments.

    Python 3.10 has no TOML reader, and a build may not lean on packages. Keys come back as ``table.key``.

    Raises:
        SourceError: a line is anything else.
    """
    table = ""
    out: dict[str, str | int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if match := re.fullmatch(r"\[([\w.]+)\]\s*", line):
            table = match[1] + "."
        elif match := re.fullmatch(r'(\w+)\s*=\s*(?:"([^"\\]*)"|([\d_]+))\s*(?:#.*)?', line):
            out[table + match[1]] = match[2] if match[2] is not None else int(match[3])
        else:
            raise SourceError(f"pin.toml, line {number}: cannot read {line!r}")
    return out


def _parse_lock(text: str) -> dict[str, str]:
    """``folder/`` lines, each followed by ``  digits name`` lines of the files in it."""
    folder = ""
    files: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"  ([0-9a-f]{8}) (\S.*)", line):
            files[folder + match[2]] = match[1]
        elif line.endswith("/"):
            folder = "" if line == "./" else line
        else:
            raise SourceError(f"pin.lock, line {number}: cannot read {line!r}")
    return files
