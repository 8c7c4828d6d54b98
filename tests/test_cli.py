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
