"""pyllamakv.build.settings: one table; variables and options agree with it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from pyllamakv.build import settings
from pyllamakv.build.settings import Settings
from pyllamakv.errors import ArgumentError


def parse(*words: str, environment: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    return settings.from_arguments(parser.parse_args(words), environment or {})


def test_defaults() -> None:
    assert parse() == Settings() == settings.from_environment({})
    assert (Settings().backend, Settings().variant, Settings().portable) == ("cpu", "patched", False)


def test_every_field_has_an_option_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = capsys.readouterr().out
    for entry in dataclasses.fields(Settings):
        assert (entry.metadata["flag"] or "--" + entry.name.replace("_", "-")) in shown
    for name in settings.names():
        assert name in shown.replace("\n", " ")


def test_options_are_read() -> None:
    words = ["--backend", "vulkan", "--stock", "--prefix", "p", "--source", "s", "--portable", "--jobs", "3"]
    assert parse(*words, "--cmake-args=-DA=1 '-DB=x y'") == Settings(
        backend="vulkan", variant="stock", source=Path("s"), prefix=Path("p"), portable=True, jobs=3,
        cmake_args="-DA=1 '-DB=x y'",
    )  # fmt: skip
    assert parse("--cmake-args=-DA=1 '-DB=x y'").options == ("-DA=1", "-DB=x y")


def test_the_command_line_beats_the_environment() -> None:
    environment = {"PYLLAMAKV_BACKEND": "vulkan", "PYLLAMAKV_PORTABLE": "on", "PYLLAMAKV_JOBS": "2"}
    assert parse(environment=environment) == Settings(backend="vulkan", portable=True, jobs=2)
    assert parse("--backend", "cpu", "--no-portable", environment=environment) == Settings(jobs=2)


def test_the_variant_and_the_prefix_are_no_variables() -> None:
    """A forgotten PYLLAMAKV_VARIANT=stock would make every build a stock one."""
    assert settings.from_environment({"PYLLAMAKV_VARIANT": "stock", "PYLLAMAKV_PREFIX": "x"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PYLLAMAKV_PORTABLE", "perhaps", "on or off"),
        ("PYLLAMAKV_JOBS", "many", "a number"),
        ("PYLLAMAKV_JOBS", "-1", "number of compilers"),
        ("PYLLAMAKV_BACKEND", "abacus", "cpu, cuda, rocm, vulkan"),
        ("PYLLAMAKV_CMAKE_ARGS", "'-DA", "no shell could split"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_can_be(name: str, value: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        settings.from_environment({name: value})


def test_empty_variables_are_unset() -> None:
    assert settings.from_environment(dict.fromkeys(settings.names(), "")) == Settings()


def test_stock_and_patched_share_a_folder_and_other_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    name = Settings().folder_name("pin")
    assert Settings(variant="stock", jobs=3, prefix=Path("x")).folder_name("pin") == name
    others = [Settings(portable=True), Settings(backend="cuda"), Settings(cmake_args="-DA=1")]
    assert len({name, *(other.folder_name("pin") for other in others), Settings().folder_name("pin2")}) == 5
    monkeypatch.setenv("CXX", "another-compiler")
    assert Settings().folder_name("pin") != name


def test_jobs_default_to_the_processors_that_we_may_use() -> None:
    assert Settings().build_jobs >= 1
    assert Settings(jobs=7).build_jobs == 7
