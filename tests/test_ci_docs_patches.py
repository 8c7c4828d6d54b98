"""docs/patches: the pages are what their sources say, every patch has one, and the reproductions compile."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyllamakv.build import pin, series, source

ROOT = Path(__file__).parents[1]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_docs_patches", ROOT / "ci" / "docs_patches.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_docs_patches"] = module
    spec.loader.exec_module(module)
    return module


docs: Any = load()
PATCHES = series.load().patches
WRITTEN = "\n".join(f"# {name}\n\ntext of {name}\n" for name in docs.SECTIONS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A docs/patches with the templates and nothing written yet."""
    for name in (docs.TEMPLATE, docs.INDEX_TEMPLATE):
        shutil.copy(docs.DOCS / name, tmp_path / name)
    (tmp_path / "src").mkdir()
    return tmp_path


def test_committed_pages_are_up_to_date() -> None:
    assert docs.stale(docs.pages(PATCHES, docs.load_numbers())) == []


def test_patch_without_a_page_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(docs.PageError, match=r"docs/patches/src/open-caches-to-pyllamakv\.md"):
        docs.pages(PATCHES[:1], docs.load_numbers(), folder)


def test_page_without_a_patch_is_an_error(folder: Path) -> None:
    for name in ("open-caches-to-pyllamakv", "no-such-patch"):
        (folder / "src" / f"{name}.md").write_text(WRITTEN)
    with pytest.raises(docs.PageError, match="no-such-patch"):
        docs.pages(PATCHES[:1], docs.load_numbers(), folder)


def test_stale_names_what_differs_and_what_is_left_over(folder: Path) -> None:
    (folder / "src" / "open-caches-to-pyllamakv.md").write_text(WRITTEN)
    files = docs.pages(PATCHES[:1], docs.load_numbers(folder / "nothing.json"), folder)
    assert docs.stale(files, folder) == sorted(files)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert docs.stale(files, folder) == []
    (folder / "0099-gone.md").write_text("")
    assert docs.stale(files, folder) == ["0099-gone.md"]


def test_every_section_is_needed_and_no_other_allowed() -> None:
    assert docs.read_source(WRITTEN, "here")["Cause"] == "text of Cause"
    with pytest.raises(docs.PageError, match="Cause"):
        docs.read_source(WRITTEN.replace("# Cause", "# Couse"), "here")


def test_topic_is_the_name_without_its_number() -> None:
    assert docs.topic(PATCHES[0]) == "open-caches-to-pyllamakv"


def test_only_checks_that_both_runs_made_are_counted() -> None:
    def run(*outcomes: tuple[str, str, str]) -> dict[str, Any]:
        keys = ("property", "model", "outcome")
        return {"build": {}, "results": [dict(zip(keys, o, strict=True)) | {"setting": "f32"} for o in outcomes]}

    found = docs.conformance(
        run(("copy-then-save", "a", "wrong"), ("copy-then-save", "b", "wrong"), ("copy-then-save", "c", "n/a")),
        run(("copy-then-save", "a", "ok"), ("copy-then-save", "c", "n/a")),
    )

    assert found["models"] == 2
    assert found["properties"]["copy-then-save"]["stock"] == {"wrong": 1}
    assert found["properties"]["copy-then-save"]["patched"] == {"ok": 1}


def test_counts_read_like_a_sentence() -> None:
    assert docs._counts(docs._ordered(Counter(wrong=3, ok=110))) == "110 ok, 3 wrong"
    assert docs._counts({}) == "not applicable"


def reproductions() -> dict[str, str]:
    """The C of every page that has some."""
    found = {}
    for path in sorted((docs.DOCS / "src").glob("*.md")):
        text = docs.read_source(path.read_text(encoding="utf-8"), path.name)["Reproduction"]
        if "```c\n" in text:
            found[path.stem] = text.split("```c\n")[1].split("```")[0]
    return found


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.slow
def test_reproductions_compile(tmp_path: Path) -> None:
    tree = source.obtain(pin.load())
    file = tmp_path / "all.c"
    bodies = [
        f"void r{i}(struct llama_model * model);\nvoid r{i}(struct llama_model * model) {{\n{body}\n}}\n"
        for i, body in enumerate(reproductions().values())
    ]
    file.write_text('#include "reproduce.h"\n' + "".join(bodies))
    includes = [f"-I{folder}" for folder in (docs.DOCS, tree / "include", tree / "ggml" / "include")]
    command = ["cc", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function", *includes, str(file)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
