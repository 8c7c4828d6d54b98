"""One digest over the files that we build from, and the name of the first file that is not as pinned."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from ..errors import SourceError
from .pin import Pin

__all__ = ["built_from", "check", "file_digest", "list_files", "tree_digest", "write_lock"]

# What a build reads: the library, the programs beside it, their tests, and the licences. Left out are backends that
# no `--backend` offers, the web interface, documents, models and converters (50 MB of the 140).
FOLDERS = (
    "cmake",
    "common",
    "examples/simple",
    "examples/simple-chat",
    "ggml",
    "include",
    "licenses",
    "src",
    "tests",
    "tools",
    "vendor",
)
FILES = ("AUTHORS", "CMakeLists.txt", "LICENSE")
LEFT_OUT = (
    "ggml/src/ggml-cann/",
    "ggml/src/ggml-et/",
    "ggml/src/ggml-hexagon/",
    "ggml/src/ggml-musa/",
    "ggml/src/ggml-opencl/",
    "ggml/src/ggml-openvino/",
    "ggml/src/ggml-sycl/",
    "ggml/src/ggml-virtgpu/",
    "ggml/src/ggml-webgpu/",
    "ggml/src/ggml-zdnn/",
    "ggml/src/ggml-zendnn/",
    "tools/ui/",
)
LEFT_OUT_SUFFIXES = (".mp3", ".mp4", ".png", ".jpg", ".jpeg", ".md")


def built_from(path: str) -> bool:
    """Whether the file ``path`` (relative, forward slashes) of a llama.cpp tree is among those we build from."""
    if path in FILES:
        return True
    return (
        path.startswith(tuple(f"{folder}/" for folder in FOLDERS))
        and not path.startswith(LEFT_OUT)
        and not path.endswith(LEFT_OUT_SUFFIXES)
    )


def list_files(root: Path) -> list[str]:
    """Every file below ``root`` that we build from, sorted."""
    found = [name for name in FILES if (root / name).is_file()]
    for top in FOLDERS:
        for folder, _, names in os.walk(root / top):
            relative = PurePosixPath(Path(folder).relative_to(root).as_posix())
            found += [str(relative / name) for name in names]
    return sorted(path for path in found if built_from(path))


def file_digest(content: bytes) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tree_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 over ``sha256  path`` lines, sorted by path: what ``sha256sum`` of the files, hashed, would give."""
    whole = hashlib.sha256()
    for path in sorted(digests):
        whole.update(f"{digests[path]}  {path}\n".encode())
    return whole.hexdigest()


def check(root: Path, pin: Pin) -> None:
    """See that the tree at ``root`` is the pinned one. Files that we do not build from may differ.

    Raises:
        SourceError: a file is missing or differs; the first one, in order of path, is named.
    """
    digests: dict[str, str] = {}
    for path, want in sorted(pin.files.items()):
        try:
            content = (root / path).read_bytes()
        except FileNotFoundError:
            raise SourceError(f"{root} is not llama.cpp at {pin.short}: {path} is missing. {_MEND}") from None
        digests[path] = file_digest(content)
        if not digests[path].startswith(want):
            if file_digest(content.replace(b"\r\n", b"\n")).startswith(want):
                why = f"{path} has Windows line ends (a checkout with core.autocrlf; clone with -c core.autocrlf=false)"
            else:
                why = f"{path} is the first file that differs (sha256 {digests[path][:8]}…, pinned {want}…)"
            raise SourceError(f"{root} is not llama.cpp at {pin.short}: {why}. {_MEND}")
    if tree_digest(digests) != pin.digest:
        raise SourceError(
            f"{root}: every file agrees with pin.lock, but together they do not give the digest in pin.toml; "
            "the two files of the series do not belong together: restore them from the repository"
        )


_MEND = (
    "To build the pinned source, leave out --source and unset PYLLAMAKV_SOURCE; "
    "to put the series on another version, use `python -m pyllamakv.build apply DIR`"
)


def write_lock(digests: Mapping[str, str]) -> str:
    """The text of ``pin.lock`` for these files."""
    out = [
        "# The files of the pinned llama.cpp that we build from, and the first eight digits of each one's SHA-256,",
        "# so that an error can name the file that differs. Written by `python -m pyllamakv.build pin`.",
    ]
    folder = None
    for path in sorted(digests, key=_by_folder):
        parent, name = _by_folder(path)
        if parent != folder:
            out.append(f"{parent or '.'}/")
            folder = parent
        out.append(f"  {digests[path][:8]} {name}")
    return "\n".join(out) + "\n"


def _by_folder(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent, name


def hash_tree(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each of ``paths`` below ``root``."""
    return {path: file_digest((root / path).read_bytes()) for path in paths}
