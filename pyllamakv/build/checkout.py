"""Our series on somebody's own checkout of llama.cpp: all of it or nothing, and every misfit named."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import PatchError, SourceError
from .home import csrc_dir
from .info import build_info, header
from .patch import FilePatch, Hunk, Patch, apply_file
from .series import Series

__all__ = ["Applied", "Misfit", "apply_checkout", "apply_each", "reverse"]


@dataclass(frozen=True)
class Misfit:
    """One hunk (or whole file, where ``hunk`` is empty) that does not fit somebody's checkout, and why."""

    patch: str
    file: str
    hunk: str
    why: str


@dataclass(frozen=True)
class Applied:
    """What :func:`apply_checkout` did: the files written, or the hunks in the way, or that it was done before."""

    written: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    already: bool = False

    @property
    def ok(self) -> bool:
        """Whether the series is on the checkout now."""
        return not self.misfits


def apply_checkout(root: Path, series: Series) -> Applied:
    """Put the series and our C++ on the checkout at ``root``, all or nothing.

    The C++ goes to ``src/pyllamakv/``, and a last line of ``src/CMakeLists.txt`` takes it into the ``llama`` target, so
    that the checkout builds the way it did before. A misfit hunk does not hide the next one: every hunk that does not
    fit is reported, and the checkout stays as it was. Where the series is on already, the C++ alone is brought up to
    date.

    Raises:
        SourceError: ``root`` is not a llama.cpp checkout.
        OSError: a file cannot be read or written; those written before are put back.
    """
    if not (root / "include" / "llama.h").is_file():
        raise SourceError(f"{root} is not a llama.cpp checkout: it has no include/llama.h")
    paths = {change.path for patch in series.patches for change in patch.files} | {_CMAKE}
    before = {path: _read(root / path) for path in paths}
    already = bool(series.patches) and _is_applied(before, series)
    after = dict(before)
    misfits: list[Misfit] = []
    for patch in () if already else series.patches:
        for change in patch.files:
            after[change.path] = apply_each(after[change.path], change, patch, misfits)
    cmake = after[_CMAKE]
    if cmake is None:
        misfits.append(Misfit("", _CMAKE, "", "the file is not there, and our C++ must be added to it"))
    elif _INCLUDE not in cmake:
        after[_CMAKE] = cmake + ("" if cmake.endswith("\n") else "\n") + "\n" + _INCLUDE
    if misfits:
        return Applied(misfits=tuple(misfits))
    new = {path: text.encode() if text is not None else None for path, text in after.items() if text != before[path]}
    for path, content in _our_files(series).items():
        if not (root / path).is_file() or (root / path).read_bytes() != content:
            new[path] = content
    _write_all(root, new)
    return Applied(written=tuple(sorted(new)), already=already)


def _our_files(series: Series) -> dict[str, bytes]:
    csrc = csrc_dir()
    files = {
        f"src/pyllamakv/{path.relative_to(csrc).as_posix()}": path.read_bytes()
        for path in sorted(csrc.rglob("*"))
        if path.suffix in (".cpp", ".h")
    }
    stamp = {"pin": "", "series": series.digest, "patches": series.names, "digest": "", "variant": "patched"}
    unknown = {"backend": "", "portable": "", "compiler": "", "target": "", "flags": ""}
    files["src/pyllamakv/pkv-build-info.h"] = header(build_info(stamp, unknown)).encode()
    files["src/pyllamakv/pyllamakv.cmake"] = _CMAKE_TEXT.encode()
    return files


_CMAKE = "src/CMakeLists.txt"
_INCLUDE = 'include("${CMAKE_CURRENT_SOURCE_DIR}/pyllamakv/pyllamakv.cmake")\n'
_CMAKE_TEXT = """\
# The functions that pyllamakv's patches call.
file(GLOB PYLLAMAKV_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
target_sources(llama PRIVATE ${PYLLAMAKV_SOURCES})
target_include_directories(llama PRIVATE "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/include")
set_source_files_properties(${PYLLAMAKV_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
"""


def reverse(change: FilePatch) -> FilePatch:
    """The change that undoes ``change``."""
    swap = {"+": "-", "-": "+", " ": " "}
    hunks = tuple(
        Hunk(hunk.new_start, hunk.old_start, tuple((swap[sign], text) for sign, text in hunk.lines), hunk.section)
        for hunk in change.hunks
    )
    return FilePatch(change.new, change.old, hunks)


def _is_applied(files: Mapping[str, str | None], series: Series) -> bool:
    """Whether the whole series can be taken off again: then it is on."""
    now = dict(files)
    try:
        for patch in reversed(series.patches):
            for change in reversed(patch.files):
                now[change.path] = apply_file(now[change.path], reverse(change), patch=patch.name)
    except PatchError:
        return False
    return True


def apply_each(content: str | None, change: FilePatch, patch: Patch, misfits: list[Misfit]) -> str | None:
    """``content`` with those hunks of ``change`` that fit; the others go to ``misfits``."""
    try:
        return apply_file(content, change, patch=patch.name)
    except PatchError as error:
        if content is None or change.old is None or change.new is None:
            misfits.append(Misfit(patch.name, change.path, error.hunk, error.message))
            return content
    for hunk in change.hunks:
        try:
            content = apply_file(content, FilePatch(change.old, change.new, (hunk,)), patch=patch.name)
        except PatchError as error:
            why = error.message
            if _fits(content, reverse(FilePatch(change.old, change.new, (hunk,)))):
                why = "the hunk is on the file already"
            misfits.append(Misfit(patch.name, change.path, hunk.text, why))
    return content


def _fits(content: str | None, change: FilePatch) -> bool:
    try:
        apply_file(content, change)
    except PatchError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error}); it is not llama.cpp's file") from None


def _write_all(root: Path, new: Mapping[str, bytes | None]) -> None:
    """Write every file, or put back those already written. None removes a file.

    Contents are first written beside the checkout's own files under other names, so that a full disk shows before
    anything is replaced.
    """
    staging = Path(tempfile.mkdtemp(prefix=".pyllamakv-", dir=root))
    replaced: list[tuple[Path, bytes | None]] = []
    try:
        staged: list[tuple[Path, Path | None]] = []
        for number, (path, content) in enumerate(sorted(new.items())):
            if content is None:
                staged.append((root / path, None))
                continue
            part = staging / str(number)
            part.write_bytes(content)
            staged.append((root / path, part))
        with _put_back(replaced):
            for target, source in staged:
                old = target.read_bytes() if target.is_file() else None
                replaced.append((target, old))
                if source is None:
                    target.unlink(missing_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if old is not None:
                        shutil.copymode(target, source)
                    source.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _put_back(replaced: list[tuple[Path, bytes | None]]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for target, content in reversed(replaced):
            if content is None:
                target.unlink(missing_ok=True)
            else:
                target.write_bytes(content)
        raise
