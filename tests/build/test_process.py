"""pyllamakv.build.process, .lock and ..paths: commands, their logs, and what several processes share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyllamakv import paths
from pyllamakv.build.lock import locked
from pyllamakv.build.process import Log, Progress, first_errors, run
from pyllamakv.errors import BuildError

QUIET = Progress(quiet=True)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_goes_to_the_log_and_back(tmp_path: Path) -> None:
    with contextlib.closing(Log(tmp_path / "logs" / "x.log")) as log:
        assert run(python("print('hello')"), title="t", log=log, progress=QUIET) == "hello\n"
    text = log.path.read_text()
    assert text.startswith("$ ")
    assert text.endswith("hello\n")


def test_a_failure_shows_command_code_errors_and_log(tmp_path: Path) -> None:
    code = "import sys; print('fine'); print('x.cpp:3: error: no'); print('more'); sys.exit(7)"
    with contextlib.closing(Log(tmp_path / "x.log")) as log, pytest.raises(BuildError) as caught:
        run(python(code), title="compiling", log=log, progress=QUIET)
    error = caught.value
    assert (error.exit_code, error.log) == (7, tmp_path / "x.log")
    shown = str(error)
    assert shown.startswith("compiling failed\n  command:   ")
    assert "  exit code: 7\n" in shown
    assert "    x.cpp:3: error: no\n    more" in shown
    assert str(tmp_path / "x.log") in shown


def test_a_missing_program_is_a_build_error(tmp_path: Path) -> None:
    with contextlib.closing(Log(tmp_path / "x.log")) as log, pytest.raises(BuildError, match="no-such-program"):
        run(["no-such-program"], title="t", log=log, progress=QUIET)


def test_the_first_errors_are_shown_and_not_the_checks_before_them() -> None:
    lines = [f"-- Looking for error_{i} - not found" for i in range(9)]
    lines += ["CMake Error at CMakeLists.txt:3:", "  reason"] + [f"tail {i}" for i in range(100)]
    shown = first_errors("\n".join(lines)).splitlines()
    assert shown[2:4] == ["CMake Error at CMakeLists.txt:3:", "  reason"]
    assert shown[-1].endswith("lines more in the log")
    assert len(shown) == 41


def test_output_without_an_error_shows_its_end() -> None:
    shown = first_errors("\n".join(f"line {i}" for i in range(100))).splitlines()
    assert (shown[0], shown[-1]) == ("line 60", "line 99")


def test_ninja_steps_are_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with contextlib.closing(Log(tmp_path / "x.log")) as log:
        run(python("print('[1/9] Building'); print('[2/9] Building')"), title="compiling", log=log, progress=progress)
    progress.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "compiling: 1 of 9\n"  # not a terminal: a sign of life, not a line a step


def test_a_lock_keeps_another_process_out(tmp_path: Path) -> None:
    file = tmp_path / "a" / "lock"
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(paths.__file__).parents[1])!r})\n"
        "from pathlib import Path\nfrom pyllamakv.build.lock import locked\n"
        f"with locked(Path({str(file)!r})):\n    print('held', flush=True); time.sleep(1)"
    )
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        start, waited = time.monotonic(), []
        with locked(file, waiting=lambda: waited.append(True), poll=0.05):
            assert time.monotonic() - start > 0.5
    assert waited == [True]
    with locked(file, waiting=lambda: pytest.fail("nobody holds it")):
        pass


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYLLAMAKV_CACHE", str(tmp_path / "c"))
    assert paths.cache_dir("a", "b") == tmp_path / "c" / "a" / "b"
    assert not (tmp_path / "c").exists()
    monkeypatch.delenv("PYLLAMAKV_CACHE")
    platformdirs = pytest.importorskip("platformdirs")
    assert (
        paths.cache_dir()
        == Path(platformdirs.user_cache_dir("pyllamakv", appauthor=False))
        / ("" if sys.platform != "win32" else "Cache")
        or sys.platform == "win32"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's")
def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYLLAMAKV_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / "pyllamakv"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: to be ignored
    assert paths.cache_dir() == Path.home() / ".cache" / "pyllamakv"


def test_an_atomic_file_is_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with pytest.raises(RuntimeError, match="stop"), paths.atomic_write(target) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert list(target.parent.iterdir()) == []
    with paths.atomic_write(target) as file:
        file.write(b"whole")
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert target.stat().st_mode == ordinary.stat().st_mode


def test_an_atomic_folder_replaces_or_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for text in ("one", "two"):
        with paths.atomic_folder(target) as folder:
            (folder / "file").write_text(text)
    assert (target / "file").read_text() == "two"
    with pytest.raises(RuntimeError, match="stop"), paths.atomic_folder(target) as folder:
        (folder / "file").write_text("three")
        raise RuntimeError("stop")
    assert (target / "file").read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]
