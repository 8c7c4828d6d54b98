"""pyllamakv.build.source, .digest, .pin: the right tree by whatever way, or an error that says what is wrong."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build import digest, pin, source
from pyllamakv.errors import DigestError, DownloadError, SourceError

from .conftest import FILES, Toy


def contents(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads fail at once, as they do without a network."""

    def refuse(command: list[str]) -> None:
        raise DownloadError(f"`{command[0]}`: network is unreachable")

    monkeypatch.setattr(source, "_run", refuse)


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.suffix != ".lock" and path.is_file()]


class TestNamedSource:
    def test_a_tree_is_used_where_it_is(self, toy: Toy) -> None:
        assert source.obtain(toy.pin, toy.upstream) == toy.upstream

    def test_the_environment_names_one(self, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYLLAMAKV_SOURCE", str(toy.upstream))
        assert source.obtain(toy.pin) == toy.upstream

    def test_an_unpacked_source_distribution(self, toy: Toy) -> None:
        folder = toy.upstream.parent / "toy-1.0"
        assert source.obtain(toy.pin, folder) == folder / "vendor" / "llama.cpp"

    def test_its_archive(self, toy: Toy) -> None:
        root = source.obtain(toy.pin, toy.archive)
        assert contents(root) == FILES  # what is not built from stays out

    def test_files_that_are_not_built_from_may_differ(self, toy: Toy) -> None:
        (toy.upstream / "docs" / "not-built.md").write_text("changed")
        (toy.upstream / "src" / "llama.o").write_bytes(b"\x7fELF")
        source.obtain(toy.pin, toy.upstream)

    def test_another_tree_is_an_error_that_names_the_first_differing_file(self, toy: Toy) -> None:
        for path in ("src/llama.cpp", "ggml/src/ggml.c"):
            (toy.upstream / path).write_text("changed\n")
        with pytest.raises(SourceError, match=r"ggml/src/ggml\.c is the first file that differs") as caught:
            source.obtain(toy.pin, toy.upstream)
        assert "--source" in str(caught.value)

    def test_a_missing_file_is_named(self, toy: Toy) -> None:
        (toy.upstream / "src" / "llama-kv.cpp").unlink()
        with pytest.raises(SourceError, match=r"src/llama-kv\.cpp is missing"):
            source.obtain(toy.pin, toy.upstream)

    def test_windows_line_ends_are_recognised(self, toy: Toy) -> None:
        path = toy.upstream / "src" / "llama.cpp"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        with pytest.raises(SourceError, match="Windows line ends"):
            source.obtain(toy.pin, toy.upstream)

    @pytest.mark.parametrize("make", [False, True])
    def test_a_folder_that_is_no_tree(self, toy: Toy, tmp_path: Path, make: bool) -> None:
        folder = tmp_path / "nothing"
        if make:
            folder.mkdir()
        with pytest.raises(SourceError, match="has neither" if make else "does not exist"):
            source.obtain(toy.pin, folder)

    def test_a_damaged_archive_leaves_nothing(self, toy: Toy, own_cache: Path) -> None:
        toy.archive.write_bytes(toy.archive.read_bytes()[:-9])
        with pytest.raises(DigestError, match=r"toy-1\.0\.tar\.gz is not the pinned toy==1\.0: sha256 "):
            source.obtain(toy.pin, toy.archive)
        assert leftovers(own_cache) == []

    def test_lock_and_digest_that_disagree(self, toy: Toy) -> None:
        text = (toy.patches / "pin.toml").read_text()
        (toy.patches / "pin.toml").write_text(text.replace(toy.pin.digest, "0" * 64))
        with pytest.raises(SourceError, match="do not belong together"):
            source.obtain(toy.pin, toy.upstream)


class TestFetching:
    def test_pip_first_then_the_cache(self, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
        commands: list[list[str]] = []

        def download(command: list[str]) -> None:
            commands.append(command)
            shutil.copy(toy.archive, command[command.index("--dest") + 1])

        monkeypatch.setattr(source, "_run", download)
        root = source.obtain(toy.pin)
        assert contents(root) == FILES
        assert source.obtain(toy.pin) == root
        assert len(commands) == 1
        assert commands[0][1:8] == ["-m", "pip", "download", "--no-deps", "--no-binary", "toy", commands[0][7]]
        assert commands[0][-1] == "toy==1.0"

    @pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
    def test_git_where_pip_fails(self, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_pip(pinned: pin.Pin, folder: Path) -> None:
            raise DownloadError("no index")

        monkeypatch.setattr(source, "fetch_sdist", no_pip)
        lines: list[str] = []
        root = source.obtain(toy.pin, report=lines.append)
        assert contents(root) == FILES
        assert "pip download failed" in lines

    def test_pip_itself(self, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
        """The real pip, on a folder instead of an index; the toy needs no build backend, so pip's complaint is ours."""
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(toy.archive.parent / "empty"))
        (toy.archive.parent / "empty").mkdir()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        with pytest.raises(DownloadError, match="exit code 1") as caught:
            source.fetch_sdist(toy.pin, toy.archive.parent / "out")
        assert "toy==1.0" in str(caught.value)

    def test_no_network_is_one_error_with_every_reason(self, toy: Toy, no_network: None, own_cache: Path) -> None:
        with pytest.raises(DownloadError) as caught:
            source.obtain(toy.pin)
        shown = str(caught.value)
        assert "pip download: " in shown
        assert "git fetch: " in shown
        assert "network is unreachable" in shown
        assert "PYLLAMAKV_SOURCE" in shown
        assert leftovers(own_cache) == []

    def test_a_wrong_download_leaves_nothing(self, toy: Toy, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def download(command: list[str]) -> None:
            if "--dest" not in command:
                raise DownloadError("no git")
            Path(command[command.index("--dest") + 1], "toy-1.0.tar.gz").write_bytes(b"not what was asked for")

        monkeypatch.setattr(source, "_run", download)
        with pytest.raises(DownloadError, match="is not the pinned"):
            source.obtain(toy.pin)
        assert leftovers(own_cache) == []

    def test_a_damaged_cache_is_fetched_again(self, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            source, "_run", lambda command: shutil.copy(toy.archive, command[command.index("--dest") + 1])
        )
        root = source.obtain(toy.pin)
        (root / "src" / "llama.cpp").write_text("rotten")
        lines: list[str] = []
        assert contents(source.obtain(toy.pin, report=lines.append)) == FILES
        assert "damaged" in lines[0]

    def test_a_full_disk_leaves_nothing(self, toy: Toy, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            source, "_run", lambda command: shutil.copy(toy.archive, command[command.index("--dest") + 1])
        )
        write_bytes = Path.write_bytes

        def full(self: Path, data: bytes) -> int:
            if self.name == "llama.cpp":
                write_bytes(self, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
            return write_bytes(self, data)

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left") as caught:
            source.obtain(toy.pin)
        assert caught.value.errno == errno.ENOSPC
        assert leftovers(own_cache) == []

    def test_a_program_that_is_missing_is_named(self) -> None:
        with pytest.raises(DownloadError, match="no-such-program is not installed"):
            source._run(["no-such-program"])

    def test_a_failing_program_shows_its_last_lines(self) -> None:
        code = "import sys; [print('line', i, file=sys.stderr) for i in range(20)]; sys.exit(3)"
        with pytest.raises(DownloadError, match="exit code 3") as caught:
            source._run([sys.executable, "-c", code])
        assert "line 19" in str(caught.value)
        assert "line 2\n" not in str(caught.value)


class TestPin:
    def test_the_real_one_reads_and_agrees_with_itself(self, repository: Path) -> None:
        pinned = pin.load(repository / "patches")
        assert len(pinned.commit) == 40
        assert pinned.sdist_bytes == 76_589_250
        assert {"include/llama.h", "src/llama-kv-cache.cpp", "LICENSE"} <= set(pinned.files)
        assert all(digest.built_from(path) for path in pinned.files)

    def test_our_toml_is_toml(self, repository: Path) -> None:
        tomllib: Any = pytest.importorskip("tomllib", reason="Python 3.10 has none")
        text = (repository / "patches" / "pin.toml").read_text()
        nested = tomllib.loads(text)
        assert pin.parse_toml(text) == {
            f"{table}.{key}": v for table, keys in nested.items() for key, v in keys.items()
        }

    def test_a_line_it_cannot_read_is_named(self) -> None:
        with pytest.raises(SourceError, match="line 2"):
            pin.parse_toml('[a]\nb = ["list"]\n')

    def test_a_missing_key_and_a_missing_file_are_named(self, toy: Toy) -> None:
        path = toy.patches / "pin.toml"
        path.write_text(path.read_text().replace("commit", "komit"))
        with pytest.raises(SourceError, match=r"upstream\.commit"):
            pin.load(toy.patches)
        path.unlink()
        with pytest.raises(SourceError, match=r"pin\.toml is missing"):
            pin.load(toy.patches)

    def test_the_lock_reads_back(self, toy: Toy) -> None:
        digests = digest.hash_tree(toy.upstream, digest.list_files(toy.upstream))
        assert toy.pin.files == {path: value[:8] for path, value in digests.items()}

    def test_the_digest_is_what_sha256sum_gives(self, toy: Toy) -> None:
        if shutil.which("sha256sum") is None:
            pytest.skip("sha256sum is not installed")
        paths = digest.list_files(toy.upstream)
        listing = subprocess.run(["sha256sum", *paths], cwd=toy.upstream, check=True, capture_output=True).stdout
        assert digest.file_digest(listing) == toy.pin.digest
