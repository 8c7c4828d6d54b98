"""Models for the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyllamakv as kv


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M, a real model with a tokenizer and a chat template."""
    from pyllamakv.replay import models

    return models.get("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[kv.Model]:
    with kv.Model(smollm2_path) as model:
        yield model


@pytest.fixture(scope="session")
def tiny(zoo: Path) -> Iterator[kv.Model]:
    """A llama of a few thousand weights, all f32: for what has to be exact whatever the batch split."""
    with kv.Model(zoo / "llama-dense.gguf") as model:
        yield model


@pytest.fixture
def exact(tiny: kv.Model) -> Iterator[kv.Context]:
    with tiny.context(
        n_ctx=512, n_batch=64, n_seq_max=4, kv_unified=True, type_k="f32", type_v="f32", flash_attn=False
    ) as context:
        yield context


@pytest.fixture
def ctx(smollm2: kv.Model) -> Iterator[kv.Context]:
    with smollm2.context(n_ctx=512, n_batch=64, n_seq_max=4, kv_unified=True) as context:
        yield context
