"""Where files live between runs, and how they get there whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["atomic_folder", "atomic_write", "cache_dir"]


def cache_dir(*parts: str) -> Path:
    """The user's cache folder of pyllamakv, or ``parts`` below it. Not created.

    ``PYLLAMAKV_CACHE`` names it; without it, the platform's usual place (what ``platformdirs.user_cache_dir`` says,
    worked out here so that a build needs nothing installed).
    """
    named = os.environ.get("PYLLAMAKV_CACHE")
    if named:
        root = Path(named).expanduser().absolute()
    elif sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        root = (Path(local) if local else Path.home() / "AppData" / "Local") / "pyllamakv" / "Cache"
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches" / "pyllamakv"
    else:
        xdg = os.environ.get("XDG_CACHE_HOME")
        root = (Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache") / "pyllamakv"
    return root.joinpath(*parts)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` when the block ends well, and leaves nothing behind when it does not.

    Raises whatever the block raises, and ``OSError`` from the file system (a full disk, say).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, "part")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well; an older ``path`` is replaced.

    Raises whatever the block raises, and ``OSError`` from the file system; nothing half-written stays then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _beside(path, "part"), _beside(path, "old")
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.replace(old)
            temporary.replace(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _beside(path: Path, suffix: str) -> Path:
    """A name nobody else uses, on the same file system. Not tempfile's: its files are for their owner's eyes alone."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.{suffix}")
