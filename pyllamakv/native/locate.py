"""Where the library and its generated binding are.

A library is looked for in this order: the path that the caller gives, ``PYLLAMAKV_LIBRARY`` (a file or a folder), the
folder ``lib`` beside the installed binding, the newest build that ``python -m pyllamakv.build`` left in the user cache.
The binding is made when the library is built and lies in ``native/_cdef.py`` beside ``lib``; any one of the same pin
serves every library of that pin, stock or patched.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import LibraryNotFoundError
from ..paths import cache_dir

__all__ = ["BUILD_COMMAND", "find_binding", "find_library", "library_file", "library_names"]

BUILD_COMMAND = "python -m pyllamakv.build --backend cpu"
_BINDING = "pyllamakv.native._cdef"


def library_names() -> tuple[str, ...]:
    """File names of libllama on this platform."""
    if sys.platform == "win32":
        return ("llama.dll", "libllama.dll")
    if sys.platform == "darwin":
        return ("libllama.dylib", "libllama.so")
    return ("libllama.so",)


def library_file(path: Path) -> Path | None:
    """The library at ``path``: the file itself, or the one in that folder (or in its ``lib`` or ``bin``)."""
    if path.is_file():
        return path
    if path.is_dir():
        for folder in (path, path / "lib", path / "bin"):
            for name in library_names():
                if (folder / name).is_file():
                    return folder / name
    return None


def _installed_binding() -> Path | None:
    """The binding that was installed with the package, wherever the import system keeps it (editable installs too)."""
    try:
        spec = importlib.util.find_spec(_BINDING)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _cached_builds() -> list[Path]:
    """Prefixes that the driver built, the patched ones first, the newest first."""
    found: list[tuple[bool, float, Path]] = []
    for info in cache_dir("builds").glob("*/lib/build-info.json"):
        try:
            variant = json.loads(info.read_text(encoding="utf-8")).get("variant")
            found.append((variant == "patched", info.stat().st_mtime, info.parent.parent))
        except (OSError, ValueError, AttributeError):
            continue  # a build that is being written, or was damaged, is no candidate
    return [prefix for _, _, prefix in sorted(found, reverse=True)]


def find_library(path: str | os.PathLike[str] | None = None) -> Path:
    """Path of libllama, resolved.

    Raises:
        LibraryNotFoundError: nothing is there; the message lists the places and the command that mends it.
    """
    for source, value in (("the path given", path), ("PYLLAMAKV_LIBRARY", os.environ.get("PYLLAMAKV_LIBRARY"))):
        if value:
            asked = Path(value).expanduser()
            found = library_file(asked)
            if found is None:
                state = "holds none" if asked.is_dir() else "does not exist"
                raise LibraryNotFoundError(
                    f"{source} says that libllama is at {asked}, which {state} "
                    f"(looked for {' or '.join(library_names())}); build one with: {BUILD_COMMAND}"
                )
            return found.resolve()
    binding = _installed_binding()
    places = [] if binding is None else [binding.parent.parent]
    places += _cached_builds()
    for place in places:
        found = library_file(place)
        if found is not None:
            return found.resolve()
    raise LibraryNotFoundError(
        f"no libllama was found: PYLLAMAKV_LIBRARY is not set, the package has none beside it, and the cache "
        f"{cache_dir('builds')} has no build; make one with: {BUILD_COMMAND}"
    )


def _binding_candidates(library: Path | None) -> Iterator[Path]:
    named = os.environ.get("PYLLAMAKV_CDEF")
    if named:
        yield Path(named).expanduser()
        return
    installed = _installed_binding()
    if installed is not None:
        yield installed
    if library is not None:
        yield library.parent.parent / "native" / "_cdef.py"
    for prefix in _cached_builds():
        yield prefix / "native" / "_cdef.py"


def find_binding(library: Path | None = None) -> Path:
    """Path of the generated binding module.

    ``PYLLAMAKV_CDEF`` names one; without it, the installed one, the one built with ``library``, the newest in the
    cache.

    Raises:
        LibraryNotFoundError: there is none.
    """
    for candidate in _binding_candidates(library):
        if candidate.is_file():
            return candidate.resolve()
    named = os.environ.get("PYLLAMAKV_CDEF")
    where = f"PYLLAMAKV_CDEF names {named}, which is no file" if named else "neither the package nor the cache has one"
    raise LibraryNotFoundError(
        f"the binding that is generated with the library was not found: {where}; "
        f"install the package (pip install .) or make one with: {BUILD_COMMAND}"
    )
