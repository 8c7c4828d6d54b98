"""pyllamakv.build.driver, .toolchain, .backends, .info and the command line; a stand-in compiles nothing in no time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import __main__ as command_line
from pyllamakv.build import backends, driver, info, process, toolchain, tree
from pyllamakv.build.process import Progress
from pyllamakv.build.settings import Settings
from pyllamakv.errors import BuildError

from .conftest import Toy

QUIET = Progress(quiet=True)

CMAKE = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
def after(name): return words[words.index(name) + 1]
if words == ["--version"]:
    print("cmake version 3.30.1")
elif "-S" in words:
    work = Path(after("-B"))
    settings = dict(w[2:].split("=", 1) for w in words if w.startswith("-D"))
    cache = work / "CMakeCache.txt"
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={after('-S')}\\n"
    if cache.is_file() and home not in cache.read_text():
        print("CMake Error: another source"); sys.exit(1)
    if "no-such-program" in settings["PYLLAMAKV_PROGRAMS"]:
        print("CMake Error: no program"); sys.exit(1)
    cache.write_text(home + "".join(f"{k}:STRING={v}\\n" for k, v in settings.items()))
    (work / "settings.json").write_text(json.dumps(settings))
elif "--build" in words:
    print("[1/2] Building CXX object x.o")
    source = (Path(after("--build")) / "tree" / "llama.cpp" / "src" / "llama.cpp").read_text()
    if "syntax error" in source:
        print("FAILED: x.o\\nllama.cpp:1:1: error: syntax error"); sys.exit(2)
elif "--install" in words:
    work, prefix = Path(after("--install")), Path(after("--prefix"))
    settings = json.loads((work / "settings.json").read_text())
    stamp = json.loads((work / "tree" / "stamp.json").read_text())
    for name in ("lib", "native"):
        (prefix / name).mkdir(parents=True, exist_ok=True)
    (prefix / "lib" / "libllama.so").write_text(stamp["variant"])
    (prefix / "native" / "_cdef.py").write_text("")
    if after("--component") == "programs":
        (prefix / "bin").mkdir()
        for name in settings["PYLLAMAKV_PROGRAMS"].split(";"):
            (prefix / "bin" / name).write_text("")
    (prefix / "lib" / "build-info.json").write_text(json.dumps(
        {"digest": stamp["digest"], "variant": stamp["variant"], "backend": settings["PYLLAMAKV_BACKEND"],
         "portable": settings["PYLLAMAKV_PORTABLE"] == "ON"}))
"""


@pytest.fixture
def commands(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A CMake that compiles nothing; every command that the driver runs is kept here."""
    script = tmp_path / "cmake.py"
    script.write_text(CMAKE)
    ran: list[list[str]] = []
    real = process.run

    def run(command: list[str], **options: Any) -> str:
        ran.append(command)
        return real([sys.executable, str(script), *command[1:]], **options)

    monkeypatch.setattr(driver, "run", run)
    monkeypatch.setattr(toolchain, "find", lambda: toolchain.Toolchain("cmake", "ninja", "c++", None))
    monkeypatch.setenv("PYLLAMAKV_SOURCE", str(toy.upstream))
    return ran


class TestBuild:
    def test_it_prepares_configures_compiles_and_installs(self, commands: list[list[str]], own_cache: Path) -> None:
        result = driver.build(Settings(), progress=QUIET)
        assert [command[1] for command in commands] == ["-S", "--build", "--install"]
        assert result.libdir == result.prefix / "lib"
        assert (result.libdir / "libllama.so").read_text() == "patched"
        assert result.info["digest"] == tree.expected_stamp("patched").digest
        assert result.prefix.parent == own_cache / "builds"
        assert result.log is not None
        assert "$ " in result.log.read_text()
        assert f"-DPython_EXECUTABLE={sys.executable}" in commands[0]
        work = Path(commands[0][commands[0].index("-B") + 1])
        # not the checkout's, which CMake would hold the folder to: another checkout may build there next
        assert commands[0][commands[0].index("-S") + 1] == str(work / "tree" / "csrc")

    def test_stock_and_patched_share_the_work_folder_but_not_the_prefix(self, commands: list[list[str]]) -> None:
        patched = driver.build(Settings(), progress=QUIET)
        stock = driver.build(Settings(variant="stock"), progress=QUIET)
        assert patched.prefix != stock.prefix
        assert (patched.libdir / "libllama.so").read_text() == "patched"
        assert len({command[command.index("-B") + 1] for command in commands if "-B" in command}) == 1

    def test_ensure_builds_once(self, commands: list[list[str]]) -> None:
        first = driver.ensure("stock", progress=QUIET)
        ran = len(commands)
        second = driver.ensure("stock", progress=QUIET)
        assert len(commands) == ran
        assert second.prefix == first.prefix
        assert second.log is None

    def test_ensure_builds_again_when_the_series_changed(self, commands: list[list[str]], toy: Toy) -> None:
        first = driver.ensure("patched", progress=QUIET)
        path = toy.patches / "0002-add-second.patch"
        path.write_text(path.read_text().replace("+int second;", "+int zweite;"))
        second = driver.ensure("patched", progress=QUIET)
        assert second.prefix != first.prefix  # the first may be loaded by somebody
        assert first.libdir.is_dir()

    def test_a_damaged_build_is_no_build(self, commands: list[list[str]]) -> None:
        result = driver.ensure("patched", progress=QUIET)
        (result.libdir / "build-info.json").write_text("{")
        assert driver.ensure("patched", progress=QUIET).log is not None

    def test_programs_add_up(self, commands: list[list[str]]) -> None:
        one = driver.build_tool("test-one", progress=QUIET)
        two = driver.build_tool("test-two", progress=QUIET)
        assert one.is_file()
        assert two.is_file()
        assert "-DPYLLAMAKV_PROGRAMS=test-one;test-two" in commands[-4]
        ran = len(commands)
        assert driver.build_tool("test-one", progress=QUIET) == one
        assert len(commands) == ran

    def test_a_program_that_is_none_does_not_stay(self, commands: list[list[str]]) -> None:
        with pytest.raises(BuildError, match="no program"):
            driver.build_tool("no-such-program", progress=QUIET)
        assert driver.build_tool("test-one", progress=QUIET).is_file()

    def test_a_failing_compiler_installs_nothing(self, commands: list[list[str]], toy: Toy, own_cache: Path) -> None:
        path = toy.patches / "0002-add-second.patch"
        path.write_text(path.read_text().replace("+int second;", "+syntax error"))
        with pytest.raises(BuildError, match="syntax error") as caught:
            driver.build(Settings(), progress=QUIET)
        assert caught.value.exit_code == 2
        assert caught.value.log is not None
        assert caught.value.log.is_file()
        assert not (own_cache / "builds").exists()

    def test_a_prefix_of_ones_own(self, commands: list[list[str]], tmp_path: Path) -> None:
        prefix = tmp_path / "mine"
        (prefix / "lib").mkdir(parents=True)
        (prefix / "lib" / "other.so").write_text("stays")
        variants: tuple[tree.Variant, ...] = ("patched", "stock")
        for variant in variants:
            result = driver.build(Settings(prefix=prefix, variant=variant), progress=QUIET)
            assert (result.libdir / "libllama.so").read_text() == variant
        assert (prefix / "lib" / "other.so").read_text() == "stays"
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []

    def test_a_prefix_that_cannot_be_written(self, commands: list[list[str]], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises((BuildError, OSError), match="file"):
            driver.build(Settings(prefix=tmp_path / "file" / "prefix"), progress=QUIET)

    def test_a_cache_that_was_moved_is_configured_again(
        self, commands: list[list[str]], own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver.build(Settings(), progress=QUIET)
        own_cache.rename(own_cache.with_name("moved"))
        monkeypatch.setenv("PYLLAMAKV_CACHE", str(own_cache.with_name("moved")))
        assert driver.build(Settings(), progress=QUIET).libdir.is_dir()

    def test_cmake_args_come_last_and_win(self, commands: list[list[str]]) -> None:
        driver.build(Settings(cmake_args="-DGGML_LTO=ON"), progress=QUIET)
        assert commands[0][-1] == "-DGGML_LTO=ON"


class TestCommandLine:
    def test_bare_options_build(self, commands: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
        assert command_line.main(["--stock", "--quiet"]) == 0
        shown = capsys.readouterr()
        assert (Path(shown.out.strip()) / "libllama.so").read_text() == "stock"
        assert shown.err == ""

    def test_an_error_is_one_message_and_exit_code_1(self, commands: list[list[str]], toy: Toy, capsys: Any) -> None:
        (toy.upstream / "src" / "llama.cpp").write_text("other")
        assert command_line.main(["--quiet"]) == 1
        assert capsys.readouterr().err.startswith("SourceError: ")

    def test_apply_and_its_misfits(self, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
        other = toy.upstream.parent / "other"
        shutil.copytree(toy.upstream, other)
        (other / "src/llama.cpp").write_text("int something_else;\n")
        assert command_line.main(["apply", str(other)]) == 1
        shown = capsys.readouterr().err
        assert "nothing was changed" in shown
        assert "0001-add-first.patch: src/llama.cpp: the hunk does not fit" in shown
        assert "    +int first;" in shown
        assert command_line.main(["apply", str(toy.upstream)]) == 0
        assert "src/llama.cpp\n" in capsys.readouterr().out
        assert command_line.main(["apply", str(toy.upstream)]) == 0
        assert "has the whole series already" in capsys.readouterr().out

    def test_check_finds_missing_headers(self, commands: list[list[str]], toy: Toy, capsys: Any) -> None:
        assert command_line.main(["check"]) == 0
        path = toy.patches / "0001-add-first.patch"
        path.write_text(path.read_text().replace("Bug: A1\n", ""))
        assert command_line.main(["check"]) == 1
        assert "0001-add-first.patch: the header lacks Bug" in capsys.readouterr().err

    def test_edit_and_refresh(self, commands: list[list[str]], toy: Toy, tmp_path: Path, capsys: Any) -> None:
        work = tmp_path / "w"
        assert command_line.main(["edit", "first", str(work)]) == 0
        path = work / "src/llama.cpp"
        path.write_text(path.read_text().replace("int first;", "int first; // why"))
        assert command_line.main(["refresh", "first", str(work)]) == 1  # the second patch stands on the changed line
        assert "later patch does not fit" in capsys.readouterr().err
        assert command_line.main(["refresh", "second"]) == 1
        assert "needs the folder" in capsys.readouterr().err

    def test_pin_writes_the_lock(self, toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
        (toy.upstream / "src" / "more.cpp").write_text("int more;\n")
        assert command_line.main(["pin", str(toy.upstream)]) == 0
        digest = re.search(r'sha256 = "([0-9a-f]{64})"', capsys.readouterr().out)
        assert digest is not None
        assert "src/more.cpp" in toy.pin.files

    def test_the_module_runs(self, repository: Path) -> None:
        command = [sys.executable, "-m", "pyllamakv.build", "--help"]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
        assert "apply" in done.stdout


class TestToolchain:
    def which(self, monkeypatch: pytest.MonkeyPatch, *present: str) -> None:
        monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}" if name in present else None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.delenv("CXX", raising=False)

    def test_no_cmake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.which(monkeypatch, "ninja", "c++")
        with pytest.raises(BuildError, match="pip install cmake"):
            toolchain.find()

    def test_an_old_cmake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.which(monkeypatch, "cmake", "ninja", "c++")
        monkeypatch.setattr(toolchain, "_version", lambda cmake: (3, 16))
        with pytest.raises(BuildError, match=r"3\.16, and 3\.24 or newer"):
            toolchain.find()

    @pytest.mark.skipif(os.name == "nt", reason="Visual Studio brings its own")
    def test_no_ninja_or_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(toolchain, "_version", lambda cmake: (3, 30))
        self.which(monkeypatch, "cmake", "c++")
        with pytest.raises(BuildError, match="pip install ninja"):
            toolchain.find()
        self.which(monkeypatch, "cmake", "ninja")
        with pytest.raises(BuildError, match=r"no C\+\+ compiler was found.*apt-get install g\+\+"):
            toolchain.find()
        monkeypatch.setenv("CXX", "my-c++ -m64")
        with pytest.raises(BuildError, match="CXX names 'my-c"):
            toolchain.find()

    def test_compilers_are_the_environments_or_pythons(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sysconfig, "get_config_var", {"CC": "gcc -pthread", "CXX": "ccache g++ -O"}.get)
        monkeypatch.delenv("CC", raising=False)
        self.which(monkeypatch, "gcc", "ccache")
        assert toolchain.compilers() == {"CC": "gcc", "CXX": "ccache g++"}
        self.which(monkeypatch)  # this Python was built elsewhere
        assert toolchain.compilers() == {}
        monkeypatch.setenv("CC", "clang -m64")
        assert toolchain.compilers() == {"CC": "clang -m64"}

    def test_a_cmake_that_is_not_cmake(self, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match="does not run"):
            toolchain._version(str(tmp_path / "cmake"))
        with pytest.raises(BuildError, match="does not say its version"):
            toolchain._version(sys.executable)


class TestBackends:
    def test_cpu_needs_nothing(self) -> None:
        backends.require("cpu", which=lambda name: None)

    @pytest.mark.parametrize("name", ["cuda", "rocm", "vulkan"])
    def test_what_is_missing_is_said_with_its_mend(
        self, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        entry = next(backend for backend in backends._TABLE if backend.name == name)
        for variable in entry.homes:
            monkeypatch.delenv(variable, raising=False)
        with pytest.raises(BuildError, match="install") as caught:
            backends.require(name, which=lambda program: None)
        assert entry.compiler[0] in str(caught.value)
        backends.require(name, which=lambda program: "/bin/" + program)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / entry.compiler[0]).touch()
        monkeypatch.setenv(entry.homes[-1], str(tmp_path))
        backends.require(name, which=lambda program: None)


class TestInfo:
    STAMP = {"pin": "p", "series": "s", "patches": ["a", "b"], "digest": "d", "variant": "patched"}  # noqa: RUF012

    def test_both_files_say_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "stamp.json").write_text(json.dumps(self.STAMP))
        words = [f"stamp={tmp_path / 'stamp.json'}", f"out={tmp_path}", "backend=cpu", "portable=ON", "compiler=C 1"]
        assert info.main([*words, "target=T", 'flags=-DX="a b" -DY=??/']) == 0
        data = json.loads((tmp_path / "build-info.json").read_text())
        assert data["schema"] == info.SCHEMA
        assert (data["portable"], data["flags"], data["patches"]) == (True, '-DX="a b" -DY=??/', ["a", "b"])
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler")
        (tmp_path / "x.c").write_text(
            '#include <stdio.h>\n#include "pkv-build-info.h"\nint main(void) { puts(PKV_BUILD_INFO); }\n'
        )
        subprocess.run([compiler, "-std=c11", "x.c", "-o", "x"], cwd=tmp_path, check=True)
        said = subprocess.run([str(tmp_path / "x")], capture_output=True, text=True, check=True).stdout
        assert json.loads(said) == data

    def test_unchanged_text_is_not_written_again(self, tmp_path: Path) -> None:
        info.write(tmp_path / "x", "text")
        os.utime(tmp_path / "x", (1, 1))
        info.write(tmp_path / "x", "text")
        assert (tmp_path / "x").stat().st_mtime == 1
        info.write(tmp_path / "x", "other")
        assert (tmp_path / "x").stat().st_mtime != 1
