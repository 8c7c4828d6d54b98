"""pyllamakv.build.refresh: a patch is changed by changing files, and comes out the same everywhere."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pyllamakv.build import refresh
from pyllamakv.build.refresh import edit
from pyllamakv.errors import PatchError, SourceError

from .conftest import FILES, HEADER, Toy

TODAY = datetime.date(2027, 1, 2)


def test_unchanged_files_give_the_same_patch(toy: Toy, tmp_path: Path) -> None:
    before = (toy.patches / "0001-add-first.patch").read_bytes()
    assert edit(toy.series, "first", tmp_path / "w", toy.upstream, toy.pin) == []
    done = refresh.refresh(toy.series, "first", tmp_path / "w", toy.upstream, toy.pin, today=TODAY)
    assert (done.name, done.changed, done.broken) == ("0001-add-first.patch", False, None)
    assert (toy.patches / "0001-add-first.patch").read_bytes() == before


def test_changed_files_change_the_patch_and_its_date_alone(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "w"
    edit(toy.series, "second", work, toy.upstream, toy.pin)
    assert "int first;\nint second;" in (work / "src/llama.cpp").read_text()
    path = work / "src/llama-kv.cpp"
    path.write_text(path.read_text().replace("int kv_7;", "int seven;"))
    (work / "src/new.h").write_text("#pragma once\n")
    (work / "build.log").write_text("no part of the source\n")
    done = refresh.refresh(toy.series, "second", work, toy.upstream, toy.pin, today=TODAY)
    assert done.changed
    assert done.broken is None
    text = (toy.patches / "0002-add-second.patch").read_text()
    assert text.startswith(HEADER.format("0002-add-second.patch").replace("2026-11-30", "2027-01-02"))
    patch = toy.series.patches[1]
    assert [file.path for file in patch.files] == ["src/llama-kv.cpp", "src/llama.cpp", "src/new.h"]
    assert patch.changed_lines == 4
    assert "+int first;" not in text
    again = refresh.refresh(toy.series, "second", work, toy.upstream, toy.pin, today=datetime.date(2030, 1, 1))
    assert not again.changed


def test_a_later_patch_that_breaks_is_named(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "w"
    edit(toy.series, "first", work, toy.upstream, toy.pin)
    path = work / "src/llama.cpp"
    path.write_text(path.read_text().replace("int first;", "int renamed;"))
    done = refresh.refresh(toy.series, "first", work, toy.upstream, toy.pin, today=TODAY)
    assert done.broken is not None
    assert done.broken.patch == "0002-add-second.patch"


def test_a_broken_patch_is_mended_as_its_error_says(toy: Toy, tmp_path: Path) -> None:
    test_a_later_patch_that_breaks_is_named(toy, tmp_path)
    work = tmp_path / "mend"
    misfits = edit(toy.series, "0002-add-second.patch", work, toy.upstream, toy.pin)
    assert [misfit.file for misfit in misfits] == ["src/llama.cpp"]
    path = work / "src/llama.cpp"
    path.write_text(path.read_text().replace("int renamed;\n", "int renamed;\nint second;\n"))
    done = refresh.refresh(toy.series, "0002-add-second.patch", work, toy.upstream, toy.pin, today=TODAY)
    assert done.broken is None
    assert toy.series.apply(lambda name: FILES.get(name))["src/llama.cpp"]


def test_a_new_patch_gets_a_header_and_a_line_in_the_series(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "w"
    edit(toy.series, "0003-fix-thing.patch", work, toy.upstream, toy.pin)
    (work / "src/llama-kv.cpp").write_text(FILES["src/llama-kv.cpp"] + "int more;\n")
    refresh.refresh(toy.series, "0003-fix-thing.patch", work, toy.upstream, toy.pin, today=TODAY)
    assert toy.series.names[-1] == "0003-fix-thing.patch"
    header = toy.series.patches[-1].header
    assert header["Description"].startswith("fix thing")
    assert header["Last-Update"] == "2027-01-02"
    assert toy.series.patches[-1].missing_headers() == ["Bug"]  # for its author to fill in


@pytest.mark.parametrize("name", ["third", "0001-other-name.patch", "0003_bad.patch"])
def test_a_name_that_is_none(toy: Toy, tmp_path: Path, name: str) -> None:
    with pytest.raises(PatchError, match="no single patch"):
        edit(toy.series, name, tmp_path / "w", toy.upstream, toy.pin)
    assert not (tmp_path / "w").exists()


def test_a_folder_is_never_overwritten(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is there already"):
        edit(toy.series, "first", tmp_path, toy.upstream, toy.pin)


def test_a_folder_of_another_state_is_refused(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "w"
    edit(toy.series, "second", work, toy.upstream, toy.pin)
    with pytest.raises(SourceError, match="made for 0002"):
        refresh.refresh(toy.series, "first", work, toy.upstream, toy.pin, today=TODAY)
    path = toy.patches / "0001-add-first.patch"
    path.write_text(path.read_text().replace("+int first;", "+int other;"))
    with pytest.raises(SourceError, match="another state"):
        refresh.refresh(toy.series, "second", work, toy.upstream, toy.pin, today=TODAY)
    with pytest.raises(SourceError, match="was not made by"):
        refresh.refresh(toy.series, "second", toy.upstream, toy.upstream, toy.pin, today=TODAY)


def test_a_patch_of_nothing_is_refused(toy: Toy, tmp_path: Path) -> None:
    work = tmp_path / "w"
    edit(toy.series, "first", work, toy.upstream, toy.pin)
    (work / "src/llama.cpp").write_text(FILES["src/llama.cpp"])
    with pytest.raises(PatchError, match="nothing to write"):
        refresh.refresh(toy.series, "first", work, toy.upstream, toy.pin, today=TODAY)


def test_all_patches_in_canonical_form(toy: Toy) -> None:
    assert refresh.refresh_all(toy.series, toy.upstream, toy.pin, write=True, today=TODAY) == []
    path = toy.patches / "0002-add-second.patch"
    canonical = path.read_text()
    path.write_text(canonical.replace("@@ -", "@@ -1").replace("--- a/", "diff --git a/x b/x\nindex 1..2\n--- a/"))
    assert refresh.refresh_all(toy.series, toy.upstream, toy.pin, write=False, today=TODAY) == ["0002-add-second.patch"]
    assert path.read_text() != canonical
    refresh.refresh_all(toy.series, toy.upstream, toy.pin, write=True, today=TODAY)
    assert path.read_text() == canonical.replace("2026-11-30", "2027-01-02")
