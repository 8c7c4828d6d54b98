"""The libraries that replays are held against."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def patched() -> Path:
    """The library in use."""
    from pyllamakv.native.locate import find_library

    return find_library()


@pytest.fixture(scope="session")
def stock() -> Path:
    """The unpatched library, built on first use."""
    from pyllamakv.build import driver

    return driver.ensure("stock").libdir
