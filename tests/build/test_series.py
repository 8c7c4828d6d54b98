"""pyllamakv.build.series: what a series must be, and that it is applied in order."""

from __future__ import annotations

import pytest

from pyllamakv.build import series
from pyllamakv.errors import PatchError

from .conftest import FILES, HEADER, Toy


def read(path: str) -> str | None:
    return FILES.get(path)


def test_patches_build_on_each_other(toy: Toy) -> None:
    changed = toy.series.apply(read)
    assert list(changed) == ["src/llama.cpp"]
    assert "int line_20;\nint first;\nint second;\nint line_21;\n" in str(changed["src/llama.cpp"])


def test_the_digest_is_of_text_and_order(toy: Toy) -> None:
    before = toy.series.digest
    assert before == toy.series.digest
    path = toy.patches / "0002-add-second.patch"
    path.write_text(path.read_text().replace("Forwarded: no", "Forwarded: yes"))
    assert toy.series.digest != before


def test_a_failing_patch_shows_the_commands_that_mend_it(toy: Toy) -> None:
    without = toy.series.without("add-first")
    with pytest.raises(PatchError) as caught:
        without.apply(read)
    error = caught.value
    assert error.patch == "0002-add-second.patch"
    assert error.file == "src/llama.cpp"
    assert "+int second;" in error.hunk
    assert "python -m pyllamakv.build edit 0002-add-second.patch" in str(error)
    assert "python -m pyllamakv.build refresh 0002-add-second.patch" in str(error)


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        ("0001-add-first.patch\n0001-add-first.patch\n0002-add-second.patch\n", "twice"),
        ("0002-add-second.patch\n0001-add-first.patch\n", "order of its numbers"),
        ("0001-add-first.patch\n", "not in the series"),
        ("0001-add-first.patch\n0002-add-second.patch\n0003-gone.patch\n", "NNNN-verb-object|not in the folder"),
        ("1-add-first.patch\n0002-add-second.patch\n", "NNNN-verb-object"),
        ("../0001-add-first.patch\n", "NNNN-verb-object"),
    ],
)
def test_a_wrong_listing_is_an_error(toy: Toy, listing: str, why: str) -> None:
    (toy.patches / "series").write_text(listing)
    with pytest.raises(PatchError, match=why):
        series.load(toy.patches)


def test_comments_and_blank_lines_are_no_patches(toy: Toy) -> None:
    (toy.patches / "series").write_text("# one\n\n0001-add-first.patch  # first\n0002-add-second.patch\n")
    assert toy.series.names == ["0001-add-first.patch", "0002-add-second.patch"]


def test_no_series_is_an_error_that_names_the_file(toy: Toy) -> None:
    (toy.patches / "series").unlink()
    with pytest.raises(PatchError, match="series is missing"):
        series.load(toy.patches)


def test_a_patch_that_is_not_utf8_is_an_error(toy: Toy) -> None:
    (toy.patches / "0002-add-second.patch").write_bytes(HEADER.encode() + b"\xff")
    with pytest.raises(PatchError, match="not UTF-8"):
        series.load(toy.patches)


def test_a_part_of_a_name_is_enough_where_it_is_clear(toy: Toy) -> None:
    ours = toy.series
    assert ours.resolve("second") == "0002-add-second.patch"
    assert [patch.name for patch in ours.upto("second")] == ["0001-add-first.patch"]
    with pytest.raises(PatchError, match="several"):
        ours.resolve("add")
    with pytest.raises(PatchError, match="the series has 0001"):
        ours.resolve("third")
