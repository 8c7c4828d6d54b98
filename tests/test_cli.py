"""The command line: exit codes, one line for an error, files where they were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyllamakv import cli
from pyllamakv.errors import LibraryNotFoundError
from pyllamakv.replay import runner
from pyllamakv.replay.conformance import runner as conformance_runner
from pyllamakv.replay.conformance.outcome import Result as Check
from pyllamakv.replay.conformance.runner import Run
from pyllamakv.replay.runner import Result


def outcomes(monkeypatch: pytest.MonkeyPatch, **wanted: str) -> None:
    """``replay`` on libraries that need not exist: label and outcome of the one scenario on each."""

    def run(names: Any, *, label: str, **_: Any) -> list[Result]:
        return [Result("long-message-kills-the-server", "smollm2-135m", label, wanted[label], "seen")]

    monkeypatch.setattr(cli, "_libraries", lambda wish: {label: Path(label) for label in wanted})
    monkeypatch.setattr(runner, "run", run)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"patched": "ok"}, 0),
        ({"patched": "wrong"}, 1),
        ({"patched": "died"}, 1),
        ({"stock": "died"}, 1),
        ({"stock": "died", "patched": "ok"}, 0),
        ({"stock": "died", "patched": "nan"}, 1),
        ({"stock": "error", "patched": "ok"}, 1),  # a stock run that did not happen proves nothing
    ],
)
def test_exit_code_is_patched_being_ok(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], code: int) -> None:
    outcomes(monkeypatch, **wanted)
    assert CliRunner().invoke(cli.app, ["replay"]).exit_code == code


def test_results_are_written_also_when_something_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcomes(monkeypatch, stock="died", patched="wrong")
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    done = CliRunner().invoke(cli.app, ["replay", "--json", str(data), "--html", str(page)])
    assert done.exit_code == 1
    written = json.loads(data.read_text("utf-8"))
    assert isinstance(written["schema"], int)
    assert [(r["library"], r["outcome"]) for r in written["results"]] == [("stock", "died"), ("patched", "wrong")]
    assert "long-message-kills-the-server" in page.read_text("utf-8")


def test_unknown_option_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli.app, ["replay", "--libary", "both"]).exit_code == 2


def test_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def app() -> None:
        raise LibraryNotFoundError("no libllama was found; make one with: python -m pyllamakv.build")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "pyllamakv: no libllama was found; make one with: python -m pyllamakv.build\n"


def held(monkeypatch: pytest.MonkeyPatch, *wanted: str) -> None:
    """``conformance`` on a library that need not exist: one check a wanted outcome."""

    def run(files: Any, settings: Any, *, label: str, **_: Any) -> Run:
        names = ["keep", "clear", "copy-part", "copy-whole"][: len(wanted)]
        results = [Check(name, "a", "f32", label, outcome) for name, outcome in zip(names, wanted, strict=True)]
        return Run(label, "libllama.so", {}, {}, ["f32"], names, results)

    monkeypatch.setattr(cli, "_libraries", lambda wish: {wish: Path(wish)})
    monkeypatch.setattr(conformance_runner, "run", run)


def conformance(folder: Path, *more: str) -> Any:
    (folder / "a.gguf").write_bytes(b"GGUF")
    return CliRunner().invoke(cli.app, ["conformance", "--models", str(folder), *more])


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (["ok", "refused", "n/a"], 0),
        (["ok", "wrong"], 1),
        (["nan"], 1),
        (["died"], 1),
        (["error"], 1),
        ([], 1),  # nothing was held against anything
    ],
)
def test_conformance_is_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: list[str], code: int
) -> None:
    held(monkeypatch, *wanted)
    assert conformance(tmp_path).exit_code == code


def test_conformance_writes_what_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held(monkeypatch, "wrong", "ok")
    files = [tmp_path / name for name in ("r.json", "r.xml", "r.html")]
    options = [word for file in files for word in (f"--{file.suffix[1:].replace('xml', 'junit')}", str(file))]
    assert conformance(tmp_path, *options).exit_code == 1
    assert [r["outcome"] for r in json.loads(files[0].read_text("utf-8"))["results"]] == ["wrong", "ok"]
    assert "<failure" in files[1].read_text("utf-8")
    assert "</html>" in files[2].read_text("utf-8")


@pytest.mark.parametrize(("now", "code"), [("ok", 0), ("refused", 1)])
def test_conformance_against_a_baseline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: str, code: int) -> None:
    held(monkeypatch, "ok")
    assert conformance(tmp_path, "--json", str(tmp_path / "b.json")).exit_code == 0
    held(monkeypatch, now)
    done = conformance(tmp_path, "--baseline", str(tmp_path / "b.json"))
    assert done.exit_code == code
    assert f"{'1' if code else '0'} worse" in done.output


def test_conformance_lists_its_properties(tmp_path: Path) -> None:
    done = conformance(tmp_path, "--list", "--only", "B8")
    assert done.exit_code == 0
    assert "restore-empty" in done.output and "copy-part" not in done.output


def test_conformance_needs_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pyllamakv", "conformance", "--models", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"pyllamakv: {tmp_path} has no model")
