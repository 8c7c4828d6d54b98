"""The set of properties: every row of the catalogue has one, or says why it has none."""

from __future__ import annotations

import re

import pytest

from pyllamakv.errors import ArgumentError
from pyllamakv.replay.conformance.case import NEEDS
from pyllamakv.replay.conformance.registry import UNCOVERED, all_properties, find

ROWS = {
    f"{letter}{i}" for letter, count in (("A", 4), ("B", 8), ("C", 4), ("D", 8), ("E", 4)) for i in range(1, count + 1)
}


def test_every_row_of_the_catalogue_has_a_property_or_a_reason() -> None:
    covered = {defect for prop in all_properties() for defect in prop.defects}
    assert covered <= ROWS
    assert covered | set(UNCOVERED) >= ROWS


def test_properties_say_what_they_mean_and_need() -> None:
    assert len(all_properties()) > 100
    for prop in all_properties():
        assert re.fullmatch(r"[a-z0-9_-]+", prop.name)
        assert prop.means.endswith("."), prop.name
        assert set(prop.needs) <= set(NEEDS), prop.name


@pytest.mark.parametrize("call", ["seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "clear"])
def test_every_memory_function_is_called(call: str) -> None:
    import inspect

    from pyllamakv.replay.conformance import subject

    ways = inspect.getsource(subject) + "".join(
        inspect.getsource(inspect.getmodule(p.run) or subject) for p in all_properties()
    )
    assert f"window.{call}(" in ways


def test_a_defect_stands_for_its_properties() -> None:
    assert {"B8" in prop.defects for prop in find(["B8"])} == {True}
    assert [prop.name for prop in find(["keep"])] == ["keep"]


def test_unknown_property() -> None:
    with pytest.raises(ArgumentError, match="copy-whole"):
        find(["no-such-thing"])
