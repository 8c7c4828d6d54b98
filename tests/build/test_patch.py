"""pyllamakv.build.patch: diffs that are made apply again; diffs that do not fit say why."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllamakv.build.checkout import reverse
from pyllamakv.build.patch import FilePatch, Hunk, apply_file, make_diff, parse
from pyllamakv.errors import PatchError

# few different lines, so that hunks repeat and context is ambiguous; odd ones, so that line ends and signs matter
LINE = st.sampled_from(
    ["", "a", "b", "}", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "\\ No newline", "-", " ", "\x0c", "x\r"]
)
TEXT = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=30), st.sampled_from(["", "\n"]))


def apply(old: str | None, diff: str) -> str | None:
    (change,) = parse("test.patch", diff).files
    return apply_file(old, change)


@given(old=TEXT, new=TEXT)
def test_diff_then_apply_gives_the_new_file(old: str, new: str) -> None:
    if old == new or not (old or new):
        return
    diff = make_diff("src/x.cpp", old, new)
    assert apply(old, diff) == new
    (change,) = parse("test.patch", diff).files
    assert apply_file(new, reverse(change)) == old


@given(new=TEXT.filter(bool))
def test_a_created_file_and_its_deletion(new: str) -> None:
    created = make_diff("a/b.h", None, new)
    assert apply(None, created) == new
    assert apply(new, make_diff("a/b.h", new, None)) is None
    with pytest.raises(PatchError, match="there already"):
        apply(new, created)


@given(old=TEXT, new=TEXT)
def test_the_same_input_gives_the_same_diff_with_three_lines_of_context(old: str, new: str) -> None:
    if not (old or new):
        return
    diff = make_diff("x", old, new)
    assert diff == make_diff("x", old, new)
    if old != new:
        for hunk in parse("p", diff).files[0].hunks:
            signs = "".join(sign for sign, _ in hunk.lines)
            assert len(signs) - len(signs.lstrip(" ")) <= 3
            assert len(signs) - len(signs.rstrip(" ")) <= 3


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@given(old=TEXT.filter(lambda t: t.strip("\n")), new=TEXT.filter(lambda t: t.strip("\n")))
def test_git_agrees(tmp_path_factory: pytest.TempPathFactory, old: str, new: str) -> None:
    if old == new:
        return
    folder = tmp_path_factory.mktemp("git")
    (folder / "x").write_bytes(old.encode())
    (folder / "p.patch").write_bytes(make_diff("x", old, new).encode())
    environment = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(["git", "apply", "--whitespace=nowarn", "p.patch"], cwd=folder, env=environment, check=True)
    assert (folder / "x").read_bytes() == new.encode()


def numbered(*lines: int) -> str:
    return "".join(f"line {i}\n" for i in lines)


def test_a_hunk_finds_its_place_when_lines_were_added_above() -> None:
    diff = make_diff("x", numbered(*range(20)), numbered(*range(10), 99, *range(10, 20)))
    moved = "new\n" * 7 + numbered(*range(20))
    assert apply(moved, diff) == "new\n" * 7 + numbered(*range(10), 99, *range(10, 20))


def test_a_hunk_that_fits_twice_is_an_error_unless_its_number_is_right() -> None:
    block = "{\n    return;\n}\n"
    diff = make_diff("x", block, block.replace("return", "abort"))
    assert apply(block + block, diff) == block.replace("return", "abort") + block  # line 1, as it says
    with pytest.raises(PatchError, match=r"several places \(lines 2, 5\)"):
        apply("top\n" + block + block, diff)


def test_hunks_of_one_file_keep_their_order() -> None:
    first = Hunk(10, 10, ((" ", "b\n"), ("-", "x\n"), ("+", "1\n")))
    second = Hunk(1, 1, ((" ", "a\n"), ("-", "x\n"), ("+", "2\n")))
    with pytest.raises(PatchError):
        apply_file("a\nx\nb\nx\n", FilePatch("f", "f", (first, second)))


def test_a_misfit_says_patch_file_hunk_and_what_differs() -> None:
    diff = make_diff("src/llama.cpp", numbered(*range(12)), numbered(*range(6), 77, *range(6, 12)))
    (change,) = parse("0001-fix-it.patch", diff).files
    with pytest.raises(PatchError) as caught:
        apply_file(numbered(*range(6), 55, *range(7, 12)), change, patch="0001-fix-it.patch")
    error = caught.value
    assert (error.patch, error.file) == ("0001-fix-it.patch", "src/llama.cpp")
    assert "+line 77" in error.hunk
    shown = str(error)
    assert "0001-fix-it.patch" in shown
    assert "src/llama.cpp" in shown
    assert "    +line 77" in shown
    assert "at line 7 it wants 'line 6', the file has 'line 55'" in shown


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PatchError, match="not in the tree") as caught:
        apply(None, make_diff("src/gone.cpp", "a\n", "b\n"))
    assert caught.value.file == "src/gone.cpp"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "changes nothing"),
        ("Description: x\n", "changes nothing"),
        ("--- a/x\n+++ b/x\n", "no hunk"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", "ends early"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n*b\n", "promises"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n+c\n", "belongs to no hunk|more lines"),
        ("--- a/x\n+++ b/x\n@@ nonsense @@\n", "not a hunk's head"),
        ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "renames"),
        ("--- x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "must begin with 'a/'"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "leaves the tree"),
        ("--- a//etc/x\n+++ b//etc/x\n@@ -1 +1 @@\n-a\n+b\n", "leaves the tree"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both sides"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/x\n+++ b/x\n@@ -5 +5 @@\n-a\n+b\n", "twice"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\nstray text\n", "belongs to no hunk"),
    ],
)
def test_a_malformed_patch_is_an_error_that_names_it(text: str, why: str) -> None:
    with pytest.raises(PatchError, match=why) as caught:
        parse("0007-bad.patch", text)
    assert caught.value.patch == "0007-bad.patch"


def test_the_header_is_dep3() -> None:
    text = (
        "Description: one line\n more of it\n .\n after a gap\nOrigin: vendor\nForwarded: no\nBug: A1, A2\n"
        "Last-Update: 2026-11-30\n---\nnot: header\n" + make_diff("x", "a\n", "b\n")
    )
    patch = parse("0001-x-y.patch", text)
    assert patch.header["Description"] == "one line\nmore of it\n\nafter a gap"
    assert patch.header["Bug"] == "A1, A2"
    assert "not" not in patch.header
    assert patch.missing_headers() == []
    assert parse("p", make_diff("x", "a\n", "b\n")).missing_headers() == [
        "Description", "Origin", "Forwarded", "Bug", "Last-Update",
    ]  # fmt: skip
    assert patch.changed_lines == 2


def test_what_git_adds_around_a_diff_is_left_alone() -> None:
    text = (
        "Description: x\n\ndiff --git a/x b/x\nindex 123..456 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@ int f()\n-a\n+b\n"
        "diff --git a/y b/y\nindex 1..2 100644\n--- a/y\t2026\n+++ b/y\t2026\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n\n"
    )
    patch = parse("p", text)
    assert [file.path for file in patch.files] == ["x", "y"]
    assert "diff --git" not in patch.preamble


def test_context_lines_stripped_by_an_editor_are_empty_lines() -> None:
    assert apply("a\n\nb\n", "--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n") == "a\n\nc\n"


def test_windows_line_ends_are_kept() -> None:
    old, new = "a\r\nb\r\n", "a\r\nc\r\n"
    assert apply(old, make_diff("x", old, new)) == new
    with pytest.raises(PatchError):
        apply("a\nb\n", make_diff("x", old, new))


def test_an_empty_file_cannot_be_created_by_a_diff(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="empty file"):
        make_diff("x", None, "")
