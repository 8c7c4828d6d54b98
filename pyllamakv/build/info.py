"""What a library is: ``lib/build-info.json`` beside it, and the same JSON compiled into it.

Called by the CMake file:
``python -m pyllamakv.build.info stamp=… out=… backend=… portable=… compiler=… target=… flags=…``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..paths import atomic_write

__all__ = ["SCHEMA", "build_info", "header", "main", "write"]

SCHEMA = 1


def build_info(stamp: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """The object: what the tree is (``stamp``) and how it was compiled (``settings``)."""
    return {
        "schema": SCHEMA,
        "pin": stamp["pin"],
        "series": stamp["series"],
        "patches": list(stamp["patches"]),
        "digest": stamp["digest"],
        "variant": stamp["variant"],
        "backend": settings["backend"],
        "portable": settings["portable"].upper() in ("ON", "1", "TRUE", "YES"),
        "compiler": settings["compiler"],
        "target": settings["target"],
        "flags": settings["flags"],
    }


def header(info: Mapping[str, Any]) -> str:
    """``pkv-build-info.h``: the object as a C string literal."""
    text = json.dumps(info, separators=(",", ":"))  # ASCII only
    literal = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")  # ??x would be a trigraph
    return f'#pragma once\n\n#define PKV_BUILD_INFO "{literal}"\n'


def write(path: Path, text: str) -> None:
    """Write ``text``, unless it is there already: a file's time says when its content last changed."""
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        with atomic_write(path) as file:
            file.write(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files into the folder ``out``."""
    pairs = [argument.partition("=") for argument in (sys.argv[1:] if arguments is None else arguments)]
    settings = {key: value for key, _, value in pairs}
    stamp = json.loads(Path(settings["stamp"]).read_text(encoding="utf-8"))
    info = build_info(stamp, settings)
    out = Path(settings["out"])
    write(out / "build-info.json", json.dumps(info, indent=2) + "\n")
    write(out / "pkv-build-info.h", header(info))
    return 0


if __name__ == "__main__":
    sys.exit(main())
