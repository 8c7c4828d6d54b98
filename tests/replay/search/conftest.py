"""The libraries and the models that a search plays on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def zoo() -> Path:
    """A folder with one tiny random model for each architecture."""
    from pyllamakv.replay import models

    return models.zoo()


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
