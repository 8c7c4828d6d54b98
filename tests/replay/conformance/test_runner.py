"""Runs on real libraries: a few tiny models, stock and patched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllamakv.errors import ArgumentError, LibraryMismatchError, LibraryNotFoundError
from pyllamakv.replay.conformance import runner
from pyllamakv.replay.conformance.outcome import BAD
from pyllamakv.replay.conformance.settings import choose

KNOWN = {
    "copy-then-save": "wrong",
    "batch-too-long": "died",
    "poison-removed": "nan",
    "copy-whole": "ok",
    "rollback-after-batch": "n/a",
}


def test_models_are_found_by_pattern_and_the_largest_come_first(tmp_path: Path) -> None:
    for name, size in (("a-dense", 1), ("b-dense", 3), ("b-moe", 2)):
        (tmp_path / f"{name}.gguf").write_bytes(bytes(size))
    (tmp_path / "readme.txt").write_text("no model")
    assert [path.stem for path in runner.models_in(tmp_path)] == ["b-dense", "b-moe", "a-dense"]
    assert [path.stem for path in runner.models_in(tmp_path, ["b*", "a-dense.gguf"])] == ["b-dense", "b-moe", "a-dense"]
    assert [path.stem for path in runner.models_in(tmp_path / "b-moe.gguf")] == ["b-moe"]
    with pytest.raises(ArgumentError, match="c-"):
        runner.models_in(tmp_path, ["c-*"])


def test_a_library_that_is_none_is_told_before_anything_runs(tmp_path: Path) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"GGUF")
    library = tmp_path / "libllama.so"
    library.write_bytes(b"\x7fELF, but not for long")
    with pytest.raises((LibraryMismatchError, LibraryNotFoundError)):
        runner.run([model], choose("quick"), library=library, only=["keep"])


def test_stock_shows_what_the_patched_library_cures(zoo: Path, stock: Path, patched: Path) -> None:
    models = runner.models_in(zoo, ["llama-dense"])
    before, after = (runner.run(models, choose("quick"), library=path, only=[*KNOWN]) for path in (stock, patched))
    assert {r.property: r.outcome for r in before.results} == KNOWN
    assert {r.property: r.outcome for r in after.results} == {
        name: "n/a" if name.startswith("roll") else "ok" for name in KNOWN
    }
    death = next(r for r in before.results if r.outcome == "died")
    assert "SIGABRT" in death.detail and "n_tokens_all <= cparams.n_batch" in death.detail
    assert after.build["variant"] == "patched"
    assert after.models["llama-dense"]["architecture"] == "llama"


def test_a_refusal_says_why(zoo: Path, patched: Path) -> None:
    models = runner.models_in(zoo, ["jamba-dense"])
    (result,) = runner.run(models, choose("quick"), library=patched, only=["remove-suffix"]).results
    assert result.outcome == "refused"
    assert "recurrent" in result.detail or "state" in result.detail


def test_settings_that_do_not_differ_are_run_once(zoo: Path, patched: Path) -> None:
    models = runner.models_in(zoo, ["llama-dense", "gemma3-dense"])
    run = runner.run(models, choose("f32,f32-swa_full,f32-rs8"), library=patched, only=["remove-suffix"])
    assert {(r.model, r.setting) for r in run.results} == {
        ("llama-dense", "f32"),
        ("gemma3-dense", "f32"),
        ("gemma3-dense", "f32-swa_full"),
    }


def test_without_fork_the_answers_are_the_same(zoo: Path, stock: Path) -> None:
    models = runner.models_in(zoo, ["llama-dense"])
    only = ["copy-then-save", "batch-too-long", "copy-whole"]
    outcomes = [
        {
            (r.property, r.setting): r.outcome
            for r in runner.run(models, choose("f32,f32-rs8"), library=stock, only=only, fork=fork).results
        }
        for fork in (True, False)
    ]
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0].values()) == {"wrong", "died", "ok"}


def test_a_check_beyond_its_limit_is_a_death(zoo: Path, patched: Path) -> None:
    models = runner.models_in(zoo, ["mamba-dense"])
    (result,) = runner.run(models, choose("quick"), library=patched, only=["copy-late"], limit=0.001).results
    assert (result.outcome, result.detail) == ("died", "no end after 0.001 s")


def test_a_file_that_is_no_model_is_an_error_of_every_check(tmp_path: Path, patched: Path) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"not a model")
    run = runner.run([model], choose("quick"), library=patched, only=["keep", "clear"])
    assert {r.outcome for r in run.results} == {"error"}
    assert len(run.results) == 2 and "a.gguf" in run.results[0].detail


@pytest.mark.slow
def test_the_library_in_use_is_right_on_every_kind_of_memory(zoo: Path, patched: Path) -> None:
    kinds = ["llama-dense", "gemma3-dense", "mamba-dense", "jamba-dense", "lfm2-dense", "deepseek32-moe"]
    run = runner.run(runner.models_in(zoo, kinds), choose("f32,f32-rs8"), library=patched)
    assert [r for r in run.results if r.outcome in BAD] == []
    assert [r for r in run.results if r.outcome == "refused" and r.detail in ("", "no reason given")] == []
