"""Where the library and the binding are looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pyllamakv.errors import LibraryNotFoundError
from pyllamakv.native import locate
from pyllamakv.native.locate import find_binding, find_library, library_names

NAME = library_names()[0]


@pytest.fixture(autouse=True)
def nothing_around(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, no installed library, an empty cache."""
    monkeypatch.delenv("PYLLAMAKV_LIBRARY", raising=False)
    monkeypatch.delenv("PYLLAMAKV_CDEF", raising=False)
    monkeypatch.setattr(locate, "_installed_binding", lambda: None)


def prefix(folder: Path, variant: str = "", when: int = 0) -> Path:
    """A build: libraries, binding, info."""
    for name in (f"lib/{NAME}", "native/_cdef.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    info = folder / "lib" / "build-info.json"
    info.write_text(json.dumps({"variant": variant}))
    os.utime(info, (when, when))
    return folder


def test_a_path_may_be_the_file_its_folder_or_the_prefix(tmp_path: Path) -> None:
    made = prefix(tmp_path / "made")
    for path in (made, made / "lib", made / "lib" / NAME, str(made)):
        assert find_library(path) == (made / "lib" / NAME).resolve()


def test_the_order_is_path_environment_installed_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = prefix(own_cache / "builds" / "a-patched", "patched")
    assert find_library() == (cached / "lib" / NAME).resolve()
    installed = prefix(tmp_path / "installed")
    monkeypatch.setattr(locate, "_installed_binding", lambda: installed / "native" / "_cdef.py")
    assert find_library() == (installed / "lib" / NAME).resolve()
    named = prefix(tmp_path / "named")
    monkeypatch.setenv("PYLLAMAKV_LIBRARY", str(named))
    assert find_library() == (named / "lib" / NAME).resolve()
    given = prefix(tmp_path / "given")
    assert find_library(given) == (given / "lib" / NAME).resolve()


def test_of_several_builds_the_newest_patched_one_counts(own_cache: Path) -> None:
    prefix(own_cache / "builds" / "old-patched", "patched", when=1000)
    new = prefix(own_cache / "builds" / "new-patched", "patched", when=2000)
    prefix(own_cache / "builds" / "stock", "stock", when=3000)
    half = own_cache / "builds" / "half" / "lib"
    half.mkdir(parents=True)
    (half / "build-info.json").write_text('{"variant": "patch')
    assert find_library() == (new / "lib" / NAME).resolve()


def test_none_found_names_the_places_and_the_command(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LibraryNotFoundError, match=r"python -m pyllamakv\.build --backend cpu") as caught:
        find_library()
    assert str(own_cache) in str(caught.value)
    with pytest.raises(LibraryNotFoundError, match=r"the path given says .*gone, which does not exist"):
        find_library(tmp_path / "gone")
    monkeypatch.setenv("PYLLAMAKV_LIBRARY", str(tmp_path))
    with pytest.raises(LibraryNotFoundError, match=f"PYLLAMAKV_LIBRARY says .*holds none .*{NAME}"):
        find_library()


def test_the_binding_follows_the_library(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LibraryNotFoundError, match="neither the package nor the cache has one"):
        find_binding()
    cached = prefix(own_cache / "builds" / "a", "patched")
    assert find_binding() == (cached / "native" / "_cdef.py").resolve()
    given = prefix(tmp_path / "given")
    assert find_binding(given / "lib" / NAME) == (given / "native" / "_cdef.py").resolve()
    monkeypatch.setenv("PYLLAMAKV_CDEF", str(tmp_path / "gone.py"))
    with pytest.raises(LibraryNotFoundError, match=r"PYLLAMAKV_CDEF names .*gone\.py, which is no file"):
        find_binding()
