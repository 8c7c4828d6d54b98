"""What every test shares: the checkout's root, a user cache of its own for tests that write one, the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests lie in."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, so that a test neither sees nor touches the real one."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("PYLLAMAKV_CACHE", str(cache))
    return cache


@pytest.fixture(scope="session")
def zoo() -> Path:
    """A folder with one tiny random model for each architecture, ``<architecture>-dense.gguf`` or ``-moe.gguf``."""
    from pyllamakv.replay import models

    return models.zoo()
