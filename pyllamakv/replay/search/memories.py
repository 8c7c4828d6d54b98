"""Which kind of memory an architecture has, after ``llama_model::create_memory``, and what follows for the judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEFAULT", "Memory", "memory_of", "pick"]


@dataclass(frozen=True)
class Memory:
    """``exact_min``: the lowest position is the lowest cell's, and every removal can be exact.

    ``state``: there is a recurrent state, which can be dropped or rolled back, but not cut. ``relative``: attention
    sees distances alone, so that a sequence moved as a whole is one that was decoded there.
    """

    kind: str
    exact_min: bool = False
    state: bool = False
    relative: bool = True


_PLAIN = Memory("attention", exact_min=True)
_KINDS = {
    "deepseek2": Memory("mla", exact_min=True),
    "qwen2vl": Memory("m-rope", exact_min=True, relative=False),
    "gpt2": Memory("learned positions", exact_min=True, relative=False),
    "gemma3": Memory("sliding window"),
    "llama4": Memory("chunked window", relative=False),
    "mamba": Memory("recurrent", state=True),
    "mamba2": Memory("recurrent", state=True),
    "jamba": Memory("hybrid", state=True),
    "granitehybrid": Memory("hybrid", state=True),
    "qwen35": Memory("hybrid", state=True),
    "falcon-h1": Memory("hybrid", state=True),
    "nemotron_h": Memory("hybrid", state=True),
    "kimi-linear": Memory("hybrid", state=True),
    "lfm2": Memory("hybrid, window", state=True),
    "deepseek32": Memory("dsa"),
    "glm-dsa": Memory("dsa"),
    "dots3note": Memory("dsa, window"),
    "minimax-m3": Memory("msa"),
    "deepseek4": Memory("dsv4", relative=False),
    "qwen4exp": Memory("hybrid, index", state=True),
    "glm5-next": Memory("hybrid, index", state=True),
}

#: One model of each kind that the zoo has.
DEFAULT = (
    "llama-dense",
    "gemma3-dense",
    "deepseek2-moe",
    "mamba-dense",
    "jamba-dense",
    "qwen35-dense",
    "lfm2-dense",
    "deepseek32-moe",
    "minimax-m3-moe",
    "deepseek4-moe",
    "qwen4exp-moe",
    "dots3note-moe",
    "qwen2vl-dense",
    "gpt2-dense",
)


def memory_of(architecture: str) -> Memory:
    """The kind; ``other`` where this table does not know, which the judge treats with most patience."""
    return _PLAIN if architecture == "llama" else _KINDS.get(architecture, Memory("other", relative=False))


def pick(models: list[Path]) -> list[Path]:
    """The files meant: files as they are, of a folder the default memories."""
    out: list[Path] = []
    for path in models:
        if path.is_dir():
            out += [path / f"{name}.gguf" for name in DEFAULT if (path / f"{name}.gguf").is_file()]
        else:
            out.append(path)
    return out
