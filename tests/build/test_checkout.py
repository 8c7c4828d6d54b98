"""pyllamakv.build.checkout: the series on somebody's own checkout, all or nothing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from pyllamakv.build import checkout
from pyllamakv.build.checkout import apply_checkout
from pyllamakv.errors import SourceError

from .conftest import FILES, Toy


def snapshot(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_series_and_cpp_go_on_and_cmake_is_told(toy: Toy) -> None:
    done = apply_checkout(toy.upstream, toy.series)
    assert done.ok
    assert not done.already
    assert "int second;" in (toy.upstream / "src/llama.cpp").read_text()
    assert (toy.upstream / "src/pyllamakv/pkv.cpp").is_file()
    assert '"variant\\":\\"patched' in (toy.upstream / "src/pyllamakv/pkv-build-info.h").read_text()
    cmake = (toy.upstream / "src/CMakeLists.txt").read_text()
    assert cmake.startswith(FILES["src/CMakeLists.txt"])
    assert cmake.count("pyllamakv.cmake") == 1
    assert set(done.written) >= {"src/llama.cpp", "src/CMakeLists.txt", "src/pyllamakv/pkv.cpp"}
    assert not [path for path in toy.upstream.iterdir() if path.name.startswith(".pyllamakv")]


def test_a_second_time_changes_nothing(toy: Toy) -> None:
    apply_checkout(toy.upstream, toy.series)
    before = snapshot(toy.upstream)
    done = apply_checkout(toy.upstream, toy.series)
    assert done.already
    assert done.written == ()
    assert snapshot(toy.upstream) == before


def test_newer_cpp_is_brought_to_a_checkout_that_has_the_series(toy: Toy) -> None:
    apply_checkout(toy.upstream, toy.series)
    (toy.home / "csrc" / "pkv.cpp").write_text("int newer;\n")
    done = apply_checkout(toy.upstream, toy.series)
    assert (done.already, done.written) == (True, ("src/pyllamakv/pkv.cpp",))


def test_a_checkout_that_moved_on_but_has_the_places(toy: Toy) -> None:
    path = toy.upstream / "src/llama.cpp"
    path.write_text("// new above\n" * 9 + path.read_text())
    assert apply_checkout(toy.upstream, toy.series).ok
    assert "int first;\nint second;" in path.read_text()


def test_every_misfit_is_named_and_nothing_changes(toy: Toy) -> None:
    kv = FILES["src/llama-kv.cpp"]
    two = kv.replace("int kv_5;\n", "int five;\n").replace("int kv_30;\n", "int thirty;\n")
    toy.add_patch("0003-change-kv.patch", "src/llama-kv.cpp", kv, two)
    path = toy.upstream / "src/llama-kv.cpp"
    path.write_text(kv.replace("int kv_30;\n", "int gone;\n"))
    (toy.upstream / "src/llama.cpp").write_text(FILES["src/llama.cpp"].replace("int line_21;\n", ""))
    before = snapshot(toy.upstream)
    done = apply_checkout(toy.upstream, toy.series)
    assert not done.ok
    assert snapshot(toy.upstream) == before
    places = [(misfit.patch, misfit.file) for misfit in done.misfits]
    assert ("0003-change-kv.patch", "src/llama-kv.cpp") in places
    assert ("0001-add-first.patch", "src/llama.cpp") in places
    kv_misfits = [misfit for misfit in done.misfits if misfit.file == "src/llama-kv.cpp"]
    assert len(kv_misfits) == 1  # the hunk at line 5 fits, and is not complained of
    assert "+int thirty;" in kv_misfits[0].hunk
    assert "'int gone;'" in kv_misfits[0].why


def test_a_hunk_that_is_on_already_says_so(toy: Toy) -> None:
    path = toy.upstream / "src/llama.cpp"
    path.write_text(FILES["src/llama.cpp"].replace("int line_20;\n", "int line_20;\nint first;\n"))
    done = apply_checkout(toy.upstream, toy.series)
    assert [misfit.why for misfit in done.misfits] == ["the hunk is on the file already"]


def test_a_missing_file_and_a_missing_cmake_file(toy: Toy) -> None:
    (toy.upstream / "src/llama.cpp").unlink()
    (toy.upstream / "src/CMakeLists.txt").unlink()
    done = apply_checkout(toy.upstream, toy.series)
    assert {misfit.file for misfit in done.misfits} == {"src/llama.cpp", "src/CMakeLists.txt"}


def test_a_folder_that_is_no_checkout(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no include/llama\.h"):
        apply_checkout(tmp_path, toy.series)


def test_a_disk_that_fills_up_puts_everything_back(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(toy.upstream)
    replace, calls = Path.replace, []

    def full(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        apply_checkout(toy.upstream, toy.series)
    assert snapshot(toy.upstream) == before


def test_a_disk_that_is_full_from_the_start_changes_nothing(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(toy.upstream)
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write_bytes(self, data[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        apply_checkout(toy.upstream, toy.series)
    monkeypatch.undo()
    assert snapshot(toy.upstream) == before


def test_file_modes_are_kept(toy: Toy) -> None:
    path = toy.upstream / "src/llama.cpp"
    path.chmod(0o755)
    apply_checkout(toy.upstream, toy.series)
    assert path.stat().st_mode & 0o777 == (0o755 if os.name != "nt" else path.stat().st_mode & 0o777)


def test_reverse_twice_is_the_change_itself(toy: Toy) -> None:
    for patch in toy.series.patches:
        for change in patch.files:
            assert checkout.reverse(checkout.reverse(change)) == change


def test_the_real_series_fits_the_real_pin(repository: Path, tmp_path: Path) -> None:
    """On a copy of the cached source, where there is one: no download for a test."""
    from pyllamakv.build import pin, series, source

    pinned = pin.load(repository / "patches")
    named = os.environ.get("PYLLAMAKV_SOURCE")
    if not named and not source.cached(pinned).is_dir():
        pytest.skip("the pinned source is not in the cache")
    root = source.obtain(pinned)
    copy = tmp_path / "llama.cpp"
    for path in pinned.files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy / path)
    done = apply_checkout(copy, series.load(repository / "patches"))
    assert done.misfits == ()
    assert apply_checkout(copy, series.load(repository / "patches")).already
