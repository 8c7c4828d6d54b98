"""Where the series and our C++ lie: beside the package in a checkout, inside of it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from ..errors import SourceError

__all__ = ["csrc_dir", "home", "package_root", "patches_dir"]


def package_root() -> Path:
    """Folder that holds the ``pyllamakv`` package: what ``python -m pyllamakv.build`` needs on its path."""
    return Path(__file__).resolve().parent.parent.parent


def home() -> Path:
    """Folder with ``patches/`` and ``csrc/``.

    Raises:
        SourceError: neither the checkout's nor the wheel's copy is there.
    """
    root = package_root()
    for place in (root, root / "pyllamakv" / "share", *_installed()):
        if (place / "patches" / "pin.toml").is_file() and (place / "csrc" / "CMakeLists.txt").is_file():
            return place
    raise SourceError(
        f"the patch series was looked for beside and inside {root / 'pyllamakv'} and is not there: "
        "this installation is incomplete; reinstall pyllamakv, or run from a checkout"
    )


def _installed() -> list[Path]:
    """``share/`` beside each part of the package: an editable install keeps Python and built files apart."""
    import pyllamakv

    return [Path(folder) / "share" for folder in pyllamakv.__path__]


def patches_dir() -> Path:
    """Folder of ``pin.toml``, ``series`` and the patches."""
    return home() / "patches"


def csrc_dir() -> Path:
    """Folder of our C++ and its ``CMakeLists.txt``."""
    return home() / "csrc"
