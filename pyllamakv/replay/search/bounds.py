"""How large an error of the logits still counts as the same answer: measured on each model, not assumed.

The zoo's tiny random models answer nearly alike whatever they have read: one other token twenty positions back moves
their logits by an nmse of 1e-7 (llama) or 1e-14 (mamba), where the order of the sums in attention alone, with the cells
in other places or another batch split, costs 1e-14, with a tail: ggml looks GELU up in an f16 table, and a last bit
that crosses a step of it costs up to 1e-8 (gpt2, gemma3). Flash attention adds in f16, whatever the type of K and V:
another order of the cells costs up to 8e-8 (lfm2, stock). A bound for all of them would be blind on one model and raise
false alarms on another. ``measure`` changes one token of a history and takes a part of what that does: a tenth, with
flash attention half.
"""

from __future__ import annotations

from typing import Any

from pyllamakv.errors import DecodeError
from pyllamakv.replay.engine import Engine
from pyllamakv.replay.oracle import nmse

from .script import tokens_of
from .window import SearchWindow

__all__ = ["COMBINATIONS", "bound_of", "key_of", "measure"]

F32, F16, Q8_0 = 0, 1, 8

#: FA and type of K and V; a quantised V needs FA.
COMBINATIONS = ((False, F32), (False, F16), (True, F32), (True, F16), (True, Q8_0))

#: A history of this many tokens, and which of them is changed.
LENGTH, CHANGED = 30, (1, 10, 20)

#: The bound is this part of what a changed token does, and at least the last number: rounding of f32 sums.
PART, PART_FLASH, LEAST = 0.1, 0.5, 1e-13


def key_of(settings: dict[str, Any]) -> str:
    """FA and K/V type of a context, in words."""
    return f"FA {'on' if settings.get('flash_attn') else 'off'}, K/V type {settings.get('type_k', F16)}"


def bound_of(bounds: dict[str, float], settings: dict[str, Any]) -> float:
    """The measured bound; a combination that was not measured has the loosest one."""
    return bounds.get(key_of(settings), max(bounds.values()))


def measure(engine: Engine) -> dict[str, float]:
    """Bounds for this model, by ``key_of``. Combinations that the model cannot do are left out."""
    tokens = tokens_of(1, LENGTH, engine.n_vocab)
    out: dict[str, float] = {}
    for flash, kv in COMBINATIONS:
        settings = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "flash_attn": flash, "type_k": kv, "type_v": kv}
        try:
            base = _answer(engine, settings, tokens)
            moved = []
            for at in CHANGED:
                other = (*tokens[:at], tokens[at] % (engine.n_vocab - 2) + 1, *tokens[at + 1 :])
                moved.append(nmse(_answer(engine, settings, other), base))
        except DecodeError:
            continue
        out[key_of(settings)] = max((PART_FLASH if flash else PART) * min(moved), LEAST)
    return out


def _answer(engine: Engine, settings: dict[str, Any], tokens: tuple[int, ...]) -> Any:
    with SearchWindow(engine, settings) as window:
        code = window.decode_parts([(0, 0, tokens)])
        if code:
            raise DecodeError(f"llama_decode returned {code}", code=code)
        return window.rows(1)[0]
