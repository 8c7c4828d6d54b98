"""Results made by hand."""

from __future__ import annotations

from collections.abc import Callable

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
