"""The set: rules for its members, the texts, and each of them played on the library in use."""

from __future__ import annotations

import pytest

from pyllamakv.errors import ArgumentError
from pyllamakv.replay import catalogue, runner
from pyllamakv.replay.scenario import all_scenarios, find
from pyllamakv.replay.texts import manual, paper


def test_rules() -> None:
    names = [scenario.name for scenario in all_scenarios()]
    assert len(set(names)) == len(names)
    for scenario in all_scenarios():
        assert scenario.story and scenario.right and scenario.defects
        for model in scenario.models:
            assert model in catalogue.MODELS or model in catalogue.ZOO_NAMES


def test_the_stories_that_people_look_for() -> None:
    assert {"dangling-pointer", "second-document", "manual-23-pages", "moe-repetition"} <= {
        scenario.name for scenario in all_scenarios()
    }


def test_unknown_scenario() -> None:
    with pytest.raises(ArgumentError, match="dangling-pointer"):
        find(["no-such-story"])


def test_texts_are_as_long_as_they_say_and_hold_their_facts() -> None:
    book = manual()
    assert len(book.pages) == 23
    assert len("\n\n".join(book.pages)) == 21_567
    for document in (book, paper(1)):
        for fact in document.facts:
            assert fact.answer in fact.sentence
            assert fact.sentence in document.pages[fact.page - 1]
    assert manual() == book
    assert len("\n\n".join(paper(1).pages)) >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["saved-fork-forgets", "other-users-request", "deleted-chats-are-remembered", "long-message-kills-the-server"],
)
def test_is_ok_on_the_library_in_use(name: str) -> None:
    results = runner.run([name])
    assert {(result.model, result.outcome) for result in results} == {
        (model, "ok") for model in find([name])[0].models
    }, [result.detail for result in results]
