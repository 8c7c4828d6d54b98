"""The settings that every property is checked at, and the bounds that hold at each.

A setting's name lists what differs from f32 K/V, flash attention off, one stream per sequence, a purged window and no
rollback planes: ``f32``, ``f16-fa-unified``, ``q8_0-fa-swa_full-rs8``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from pyllamakv.errors import ArgumentError

__all__ = ["KV_TYPES", "PRESETS", "Setting", "choose", "distinct", "parse"]

#: llama.cpp's number of each type that K and V are stored as.
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}

_ROLLBACK = 8


@dataclass(frozen=True)
class Setting:
    """How the contexts of a check are made."""

    kv: str = "f32"
    flash_attn: bool = False
    unified: bool = False
    swa_full: bool = False
    n_rs_seq: int = 0

    @property
    def name(self) -> str:
        """What the setting is called in tables and on the command line."""
        parts = [self.kv]
        parts += ["fa"] * self.flash_attn + ["unified"] * self.unified + ["swa_full"] * self.swa_full
        return "-".join([*parts, *([f"rs{self.n_rs_seq}"] if self.n_rs_seq else [])])

    def params(self) -> dict[str, Any]:
        """``llama_context_params`` by llama.cpp's names; V can be quantised with flash attention only."""
        quantised = self.kv.startswith("q")
        return {
            "type_k": KV_TYPES[self.kv],
            "type_v": KV_TYPES["f16" if quantised and not self.flash_attn else self.kv],
            "flash_attn": self.flash_attn,
            "kv_unified": self.unified,
            "swa_full": self.swa_full,
            "n_rs_seq": self.n_rs_seq,
        }

    def bound(self, placed: bool) -> float:
        """Largest normalised mean squared error of one token's logits that counts as equal, for f32 weights and K/V.

        Measured over the zoo where nothing is wrong. The same cells in the same places (a copy into an empty stream, a
        restored state, a neighbour's edit) give equal bits at every setting. Cells in other places (``placed``) change
        the order of attention's sums: at most 1.2e-12. What f16, quantisation and flash attention add is another number
        for each model, and measured for it: ``Case.rounding``.
        """
        return 1e-11 if placed else 0.0


def _all() -> Iterator[Setting]:
    axes = itertools.product(("f32", "f16", "q8_0"), (False, True), (False, True), (False, True), (0, _ROLLBACK))
    return (Setting(*values) for values in axes)


def _pairwise() -> list[Setting]:
    """Few settings in which every pair of values of two axes occurs: greedy, and the same in every run."""
    everything = list(_all())
    open_pairs = {pair for setting in everything for pair in _pairs(setting)}
    chosen = [Setting()]
    open_pairs -= _pairs(chosen[0])
    while open_pairs:
        best = max(everything, key=lambda setting: len(_pairs(setting) & open_pairs))
        chosen.append(best)
        open_pairs -= _pairs(best)
    return chosen


def _pairs(setting: Setting) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    return set(itertools.combinations(asdict(setting).items(), 2))


#: What ``--settings`` understands beside names.
PRESETS: dict[str, list[Setting]] = {"quick": [Setting()], "pairwise": _pairwise(), "all": list(_all())}


def parse(name: str) -> Setting:
    """The setting of that name.

    Raises:
        ArgumentError: it is none.
    """
    kv, *parts = name.split("-")
    setting = Setting(kv)
    flags = {"fa": {"flash_attn": True}, "unified": {"unified": True}, "swa_full": {"swa_full": True}}
    for part in parts:
        change: dict[str, Any] = flags.get(part, {})
        if part.startswith("rs") and part[2:].isdigit():
            change = {"n_rs_seq": int(part[2:])}
        setting = replace(setting, **change)
    if kv not in KV_TYPES or setting.name != name:
        raise ArgumentError(f"{name} is no setting: a name is KV[-fa][-unified][-swa_full][-rsN], KV of {[*KV_TYPES]}")
    return setting


def choose(text: str) -> list[Setting]:
    """Settings of a preset (``quick``, ``pairwise``, ``all``), a pattern over all names, or names, comma-separated."""
    chosen: list[Setting] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word in PRESETS:
            chosen += PRESETS[word]
        elif any(letter in word for letter in "*?["):
            chosen += [setting for setting in PRESETS["all"] if fnmatchcase(setting.name, word)]
        else:
            chosen.append(parse(word))
    if not chosen:
        raise ArgumentError(f"{text!r} names no setting; there are the presets {', '.join(PRESETS)} and single names")
    return list(dict.fromkeys(chosen))


def distinct(settings: Sequence[Setting], *, window: bool, recurrent: bool, attention: bool) -> list[Setting]:
    """The settings that differ for a model: what it lacks is switched off, and what is then equal is left out."""
    neutral = {field.name: field.default for field in fields(Setting)}
    without: dict[str, Any] = {}
    if not window:
        without["swa_full"] = neutral["swa_full"]
    if not recurrent:
        without["n_rs_seq"] = neutral["n_rs_seq"]
    if not attention:
        without |= {name: neutral[name] for name in ("kv", "flash_attn", "swa_full")}
    return list(dict.fromkeys(replace(setting, **without) for setting in settings))
