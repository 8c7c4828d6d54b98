"""The rules of the house for patches: what can be said of them without compiling anything."""

from __future__ import annotations

import re

import pytest

from pyllamakv.build.patch import Patch
from pyllamakv.build.series import load
from pyllamakv.replay.conformance.registry import all_properties
from pyllamakv.replay.scenario import all_scenarios

SERIES = load()
FOUNDATION = SERIES.patches[0]
patches = pytest.mark.parametrize("patch", SERIES.patches, ids=lambda patch: patch.name)

# ids of the catalogue of faults: a letter for the kind and a number
BUG = re.compile(r"[A-F]\d( [A-F]\d)*|\(not of the memory\)")


@patches
def test_header_is_complete(patch: Patch) -> None:
    assert patch.missing_headers() == []
    assert patch.header["Forwarded"] == "no"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", patch.header["Last-Update"])
    assert len(patch.header["Description"].splitlines()) > 2, "say what breaks, for whom, and what the patch does"


@patches
def test_names_its_faults_and_scenarios(patch: Patch) -> None:
    if patch is FOUNDATION:
        assert patch.header["Bug"] == patch.header["Scenario"] == "(all)"
        return
    assert BUG.fullmatch(patch.header["Bug"])
    played = {scenario.name: scenario for scenario in all_scenarios()}
    held = {check.name for check in all_properties()}
    names = patch.named("Scenario")
    checks = [name.partition("@")[0] for name in patch.named("Property")]
    assert names or checks, f"{patch.name} names nothing that fails without it"
    for name in names:
        assert name in played, f"{patch.name} names {name}, which is no scenario"
    for name in checks:
        assert name in held, f"{patch.name} names {name}, which is no property"
    shown = {defect for name in names for defect in played[name].defects}
    assert not names or shown & set(patch.header["Bug"].split()), (
        "no scenario of this patch shows a fault of this patch"
    )


@patches
def test_is_small_and_keeps_out_of_the_backends(patch: Patch) -> None:
    assert patch.changed_lines <= 60, "logic belongs into csrc/"
    for file in patch.files:
        assert re.match(r"src/|common/|include/|ggml/src/ggml-cpu/", file.path), file.path


@patches
def test_leaves_the_public_header_alone(patch: Patch) -> None:
    assert "include/llama.h" not in [file.path for file in patch.files]


def test_every_scenario_is_cured_by_a_patch() -> None:
    shown = {name for patch in SERIES.patches[1:] for name in patch.named("Scenario")}
    cured = {defect for patch in SERIES.patches[1:] for defect in patch.header["Bug"].split()}
    for scenario in all_scenarios():
        assert scenario.name in shown or set(scenario.defects) <= cured, scenario.name


def test_the_name_that_people_look_for() -> None:
    assert SERIES.resolve("make-seq-rm-shard-aware")
