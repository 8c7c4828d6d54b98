"""Results made by hand, and the libraries and models for the runs that are real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyllamakv.replay.conformance.outcome import Result


@pytest.fixture
def result() -> Callable[..., Result]:
    """A result by its outcome; everything else has a default."""

    def make(
        outcome: str, *, prop: str = "keep", model: str = "llama-dense", setting: str = "f32", **more: object
    ) -> Result:
        values: dict[str, object] = {"library": "patched", "error": None, "detail": "", **more}
        return Result(property=prop, model=model, setting=setting, outcome=outcome, **values)  # type: ignore[arg-type]

    return make


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
