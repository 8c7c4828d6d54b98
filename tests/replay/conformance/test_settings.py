"""Settings: names that read back, presets, and none that says the same twice for a model."""

from __future__ import annotations

import itertools
from dataclasses import astuple

import pytest

from pyllamakv.errors import ArgumentError
from pyllamakv.replay.conformance.settings import KV_TYPES, PRESETS, Setting, choose, distinct, parse


def test_names_read_back() -> None:
    assert {parse(setting.name) for setting in PRESETS["all"]} == set(PRESETS["all"])
    assert len({setting.name for setting in PRESETS["all"]}) == 48


@pytest.mark.parametrize("name", ["f64", "f32-fast", "fa-f32", "f32-rs", "f32-unified-fa", ""])
def test_what_is_no_setting(name: str) -> None:
    with pytest.raises(ArgumentError):
        parse(name)


def test_pairwise_has_every_pair_of_values() -> None:
    every, few = ([astuple(setting) for setting in PRESETS[name]] for name in ("all", "pairwise"))
    for i, j in itertools.combinations(range(5), 2):
        assert {(s[i], s[j]) for s in few} == {(s[i], s[j]) for s in every}
    assert len(few) < 10


def test_choice_takes_presets_patterns_and_names() -> None:
    assert choose("quick") == [Setting()]
    assert choose("f32,f32-fa,quick") == [Setting(), Setting(flash_attn=True)]
    assert all(setting.flash_attn and setting.kv == "q8_0" for setting in choose("q8_0-fa*"))
    with pytest.raises(ArgumentError):
        choose("q7*")


def test_settings_that_do_not_differ_are_left_out() -> None:
    everything = PRESETS["all"]
    assert len(distinct(everything, window=False, recurrent=False, attention=True)) == 12
    assert len(distinct(everything, window=True, recurrent=False, attention=True)) == 24
    assert len(distinct(everything, window=False, recurrent=True, attention=False)) == 4


def test_v_is_quantised_with_flash_attention_only() -> None:
    assert Setting("q8_0").params()["type_v"] == KV_TYPES["f16"]
    assert Setting("q8_0", flash_attn=True).params()["type_v"] == KV_TYPES["q8_0"]
