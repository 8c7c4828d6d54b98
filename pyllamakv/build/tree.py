"""The tree that is built: pristine files plus the series, in a work folder, stamped.

    <work>/tree/llama.cpp       pinned files, with the series applied (or not: the stock variant)
    <work>/tree/csrc            a copy of our C++
    <work>/tree/stamp.json      what the tree is

Never patched in place twice: every file is worked out from the pristine source and compared with what is there, and
only files that differ are written. So their times stay, a build tool compiles only what changed, and going from stock
to patched and back costs the objects that differ.

Both variants, and wheels and the driver alike, use the same paths relative to their build folder; with ccache's
``base_dir`` set to the work folder they share every object that does not differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ..errors import ArgumentError, PyllamakvError
from ..paths import atomic_write
from . import pin as pins
from . import series as series_module
from .home import csrc_dir
from .lock import locked
from .pin import Pin
from .series import Series
from .source import obtain

__all__ = ["Stamp", "Variant", "expected_stamp", "main", "prepare", "read_stamp"]

Variant = Literal["patched", "stock"]

_STAMP = "stamp.json"


@dataclass(frozen=True)
class Stamp:
    """What a prepared tree is: ``digest`` is SHA-256 over pin, series, variant, flags and (patched) our C++."""

    pin: str
    series: str
    variant: str
    digest: str
    patches: tuple[str, ...] = ()


def prepare(
    work: Path,
    source: Path | None = None,
    variant: Variant = "patched",
    *,
    series: Series | None = None,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Make ``<work>/tree/llama.cpp`` the pinned tree, patched or stock, and return it.

    Args:
        work: the work folder; made where missing. Its ``tree`` belongs to this function: other files there are removed.
        source: where to take the pristine files from, as in :func:`pyllamakv.build.source.obtain`.
        series: another series than ours (one with a patch left out, say).
        report: called with one line for each step that takes time.

    Raises:
        SourceError, DownloadError: the pinned source is not to be had.
        PatchError: a patch does not fit; the tree stays as it was.
        OSError: the disk is full or the folder cannot be written; the stamp is gone then, and the next call mends it.
    """
    if variant not in ("patched", "stock"):
        raise ArgumentError(f"the variant is 'patched' or 'stock', not {variant!r}")
    say = report if report is not None else _ignore
    pin = pins.load()
    chosen = series_module.load() if series is None else series
    if variant == "stock":
        chosen = chosen.without(*chosen.names)
    pristine = obtain(pin, source, report=say)
    wanted: dict[str, bytes] = {f"llama.cpp/{path}": (pristine / path).read_bytes() for path in pin.files}
    changed = chosen.apply(lambda path: _text(wanted.get(f"llama.cpp/{path}")))
    for path, text in changed.items():
        if text is None:
            wanted.pop(f"llama.cpp/{path}", None)
        else:
            wanted[f"llama.cpp/{path}"] = text.encode()
    csrc = dict(_csrc_files())
    wanted |= {f"csrc/{path}": content for path, content in csrc.items()}
    stamp = _stamp(pin, chosen, variant, csrc)
    wanted[_STAMP] = (json.dumps(asdict(stamp), indent=2) + "\n").encode()

    root = work / "tree"
    with locked(work / "tree.lock", waiting=lambda: say(f"waiting for another process that prepares {root}")):
        stale = [path for path, content in wanted.items() if not _same(root / path, content)]
        others = _others(root, wanted)
        if stale or others:
            (root / _STAMP).unlink(missing_ok=True)  # not a finished tree until the last line
        for other in others:
            other.unlink()
        for path in [*(path for path in stale if path != _STAMP), *([_STAMP] if stale or others else [])]:
            with atomic_write(root / path) as file:
                file.write(wanted[path])
    say(f"source tree: {variant}, {len(chosen.patches)} patches; {len(stale)} files written, {len(others)} removed")
    return root / "llama.cpp"


def read_stamp(work: Path) -> Stamp | None:
    """What the tree in ``work`` is, None where none was finished."""
    try:
        data = json.loads((work / "tree" / _STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return Stamp(**{**data, "patches": tuple(data["patches"])})


def expected_stamp(variant: Variant, series: Series | None = None) -> Stamp:
    """The stamp that :func:`prepare` would leave, without preparing anything."""
    chosen = series_module.load() if series is None else series
    if variant == "stock":
        chosen = chosen.without(*chosen.names)
    return _stamp(pins.load(), chosen, variant, dict(_csrc_files()))


def _stamp(pin: Pin, series: Series, variant: str, csrc: Mapping[str, bytes]) -> Stamp:
    whole = hashlib.sha256(f"{pin.digest} {series.digest} {variant}".encode())
    for path, content in sorted(csrc.items()):
        if variant == "patched" or path == "CMakeLists.txt":  # flags are stock's concern too
            whole.update(f" {path} {hashlib.sha256(content).hexdigest()}".encode())
    return Stamp(pin.commit, series.digest if series.patches else "", variant, whole.hexdigest(), tuple(series.names))


def _csrc_files() -> Iterator[tuple[str, bytes]]:
    root = csrc_dir()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".c", ".cpp", ".h", ".hpp", ".txt", ".cmake", ".in"):
            yield path.relative_to(root).as_posix(), path.read_bytes()


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def _same(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return False


def _others(root: Path, wanted: Container[str]) -> list[Path]:
    """Files below ``root`` that do not belong there. llama.cpp's CMake globs: it would compile them."""
    return [
        path
        for folder, _, names in os.walk(root)
        for name in names
        if (path := Path(folder, name)).relative_to(root).as_posix() not in wanted
    ]


def _ignore(message: str) -> None:
    del message


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m pyllamakv.build.tree``: what the CMake file calls. Prints the tree's path as its last line."""
    parser = argparse.ArgumentParser(prog="python -m pyllamakv.build.tree", description=prepare.__doc__)
    parser.add_argument("--work", type=Path, required=True, help="work folder")
    parser.add_argument("--source", type=Path, help="where to take the pristine files from")
    parser.add_argument("--variant", choices=["patched", "stock"], default="patched")
    options = parser.parse_args(arguments)
    try:
        root = prepare(options.work, options.source, options.variant, report=lambda line: print(line, file=sys.stderr))
    except (PyllamakvError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
