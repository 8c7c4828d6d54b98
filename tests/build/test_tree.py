"""pyllamakv.build.tree: worked out from pristine files, written only where it differs, whole or not stamped."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyllamakv import paths
from pyllamakv.build import tree
from pyllamakv.errors import ArgumentError, PatchError, SourceError

from .conftest import FILES, Toy


def times(root: Path) -> dict[str, int]:
    return {p.relative_to(root).as_posix(): p.stat().st_mtime_ns for p in sorted(root.rglob("*")) if p.is_file()}


def age(root: Path) -> dict[str, int]:
    """Make every file old, so that a write shows in its time."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
    return times(root)


def test_patched_and_stock(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "work"
    root = tree.prepare(work, toy.upstream, "patched")
    assert root == work / "tree" / "llama.cpp"
    assert "int second;" in (root / "src/llama.cpp").read_text()
    assert (work / "tree" / "csrc" / "include" / "pyllamakv.h").is_file()
    assert tree.read_stamp(work) == tree.expected_stamp("patched")
    tree.prepare(work, toy.upstream, "stock")
    for path, text in FILES.items():
        assert (root / path).read_bytes().decode() == text
    stamp = tree.read_stamp(work)
    assert stamp == tree.expected_stamp("stock")
    assert stamp is not None
    assert (stamp.series, stamp.patches, stamp.variant) == ("", (), "stock")


def test_a_second_time_writes_nothing(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "work"
    tree.prepare(work, toy.upstream)
    before = age(work / "tree")
    tree.prepare(work, toy.upstream)
    assert times(work / "tree") == before


def test_another_variant_writes_only_files_that_differ(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "work"
    tree.prepare(work, toy.upstream, "patched")
    before = age(work / "tree")
    tree.prepare(work, toy.upstream, "stock")
    after = times(work / "tree")
    assert {path for path in after if after[path] != before[path]} == {"llama.cpp/src/llama.cpp", "stamp.json"}


def test_edits_and_strays_do_not_survive(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "work"
    root = tree.prepare(work, toy.upstream)
    (root / "src" / "llama-kv.cpp").write_text("edited")
    (root / "src" / "stray.cpp").write_text("#error")
    (root / "LICENSE").unlink()
    tree.prepare(work, toy.upstream)
    assert (root / "src/llama-kv.cpp").read_text() == FILES["src/llama-kv.cpp"]
    assert not (root / "src" / "stray.cpp").exists()
    assert (root / "LICENSE").is_file()


def test_patches_create_and_delete_files(toy: Toy, tmp_path: Path) -> None:
    toy.add_patch("0003-add-file.patch", "src/new.h", None, "int n;\n")
    toy.add_patch("0004-drop-file.patch", "src/llama-kv.cpp", FILES["src/llama-kv.cpp"], None)
    root = tree.prepare(tmp_path / "work", toy.upstream)
    assert (root / "src/new.h").read_text() == "int n;\n"
    assert not (root / "src/llama-kv.cpp").exists()
    tree.prepare(tmp_path / "work", toy.upstream, "stock")
    assert not (root / "src/new.h").exists()
    assert (root / "src/llama-kv.cpp").exists()


def test_a_patch_that_does_not_fit_leaves_the_tree_as_it_was(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "work"
    tree.prepare(work, toy.upstream)
    before = age(work / "tree")
    with pytest.raises(PatchError, match="does not fit"):
        tree.prepare(work, toy.upstream, series=toy.series.without("first"))
    assert times(work / "tree") == before


def test_a_wrong_source_writes_nothing(toy: Toy, tmp_path: Path) -> None:
    (toy.upstream / "src" / "llama.cpp").write_text("other")
    with pytest.raises(SourceError, match=r"src/llama\.cpp"):
        tree.prepare(tmp_path / "work", toy.upstream)
    assert not (tmp_path / "work" / "tree").exists()


def test_a_full_disk_takes_the_stamp_and_the_next_call_mends_it(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    tree.prepare(work, toy.upstream, "stock")
    beside = paths._beside

    def full(path: Path, suffix: str) -> Path:
        if path.name == "llama.cpp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return beside(path, suffix)

    with monkeypatch.context() as patch:
        patch.setattr(paths, "_beside", full)
        with pytest.raises(OSError, match="No space left"):
            tree.prepare(work, toy.upstream, "patched")
    assert tree.read_stamp(work) is None
    assert list(work.rglob("*.part")) == []
    tree.prepare(work, toy.upstream, "patched")
    assert tree.read_stamp(work) == tree.expected_stamp("patched")
    assert "int second;" in (work / "tree/llama.cpp/src/llama.cpp").read_text()


def test_the_stamp_covers_our_cpp_in_the_patched_variant_alone(toy: Toy) -> None:
    patched, stock = (tree.expected_stamp(variant) for variant in ("patched", "stock"))
    (toy.home / "csrc" / "pkv.cpp").write_text("int changed;\n")
    assert tree.expected_stamp("patched").digest != patched.digest
    assert tree.expected_stamp("stock") == stock
    (toy.home / "csrc" / "CMakeLists.txt").write_text("project(csrc) # other flags\n")
    assert tree.expected_stamp("stock").digest != stock.digest


def test_a_variant_that_is_none(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'patched' or 'stock'"):
        tree.prepare(tmp_path, toy.upstream, "fast")  # type: ignore[arg-type]


def test_the_command_prints_the_tree_or_one_error(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.main(["--work", str(tmp_path / "w"), "--source", str(toy.upstream)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "w" / "tree" / "llama.cpp")
    assert tree.main(["--work", str(tmp_path / "w"), "--source", str(tmp_path / "none")]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("SourceError: ")
    assert shown.out == ""


def test_the_room_runs_on_the_standard_library_alone(repository: Path) -> None:
    """It prepares the source before anything of ours is installed."""
    code = (
        "import sys, pyllamakv.build.__main__, pyllamakv.build.tree\n"
        "names = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in names if not name.startswith('_')))"
    )
    code = f"import sys; sys.path.insert(0, {str(repository)!r})\n{code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pyllamakv']"
