"""The series: which patches, in which order, and putting them on a tree, all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import PatchError, SourceError
from .home import patches_dir
from .patch import FilePatch, Hunk, Patch, apply_file, parse

__all__ = ["Applied", "Misfit", "Series", "apply_checkout", "load", "reverse"]

_NAME = re.compile(r"^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.patch$")


@dataclass(frozen=True)
class Series:
    """Patches in the order of ``patches/series``. ``digest`` is over their text: what a build is stamped with."""

    folder: Path
    patches: tuple[Patch, ...]
    digest: str

    @property
    def names(self) -> list[str]:
        """File names, in order."""
        return [patch.name for patch in self.patches]

    def upto(self, name: str) -> tuple[Patch, ...]:
        """The patches before ``name``, which may leave out the number and ``.patch``.

        Raises:
            PatchError: no patch, or more than one, has that name.
        """
        return self.patches[: self.names.index(self.resolve(name))]

    def resolve(self, name: str) -> str:
        """The file name that ``name`` stands for: the whole, or a part that only one patch has.

        Raises:
            PatchError: no patch, or more than one, has that name.
        """
        if name in self.names:
            return name
        found = [known for known in self.names if name in known]
        if len(found) != 1:
            what = (
                f"several patches are called so: {', '.join(found)}"
                if found
                else "the series has " + (", ".join(self.names) or "no patches")
            )
            raise PatchError(f"no single patch is meant by {name!r}; {what}")
        return found[0]

    def without(self, *names: str) -> Series:
        """The series with some patches left out (to prove that each is needed)."""
        gone = {self.resolve(name) for name in names}
        patches = tuple(patch for patch in self.patches if patch.name not in gone)
        return Series(self.folder, patches, _digest(self.folder, [patch.name for patch in patches]))

    def apply(self, read: Callable[[str], str | None]) -> dict[str, str | None]:
        """What the series makes of the files it touches; ``read`` gives a file's text, None where there is none.

        Raises:
            PatchError: a hunk does not fit; the message shows patch, file, hunk and the commands that mend it.
        """
        files: dict[str, str | None] = {}
        for patch in self.patches:
            try:
                for change in patch.files:
                    content = files[change.path] if change.path in files else read(change.path)
                    files[change.path] = apply_file(content, change, patch=patch.name)
            except PatchError as error:
                raise PatchError(
                    error.message, patch=error.patch, file=error.file, hunk=error.hunk, repair=_repair(patch.name)
                ) from None
        return files


def _repair(name: str) -> str:
    return (
        f"python -m pyllamakv.build edit {name} WORK     # the tree before this patch, and what fits of it\n"
        "…change the files in WORK until it is right…\n"
        f"python -m pyllamakv.build refresh {name} WORK  # writes the patch again"
    )


def load(folder: Path | None = None) -> Series:
    """The series in ``folder`` (default: ours).

    Raises:
        PatchError: a patch is missing, listed twice, misnamed, out of order or malformed, or is not in the series.
    """
    folder = patches_dir() if folder is None else folder
    try:
        listing = (folder / "series").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PatchError(f"{folder / 'series'} is missing: it lists the patches, one a line; restore it") from None
    names = [name for line in listing.splitlines() if (name := line.split("#", 1)[0].strip())]
    for name in names:
        if not _NAME.match(name):
            raise PatchError("a patch is named NNNN-verb-object.patch, in small letters and digits", patch=name)
        if names.count(name) > 1:
            raise PatchError("the series lists the patch twice", patch=name)
    if names != sorted(names):
        late = next(a for a, b in itertools.pairwise(names) if a > b)
        raise PatchError("the series is not in the order of its numbers", patch=late)
    orphans = sorted({path.name for path in folder.glob("*.patch")} - set(names))
    if orphans:
        raise PatchError("a patch lies in the folder but not in the series: list it or remove it", patch=orphans[0])
    patches = []
    for name in names:
        try:
            text = (folder / name).read_bytes().decode()
        except FileNotFoundError:
            raise PatchError("the series lists a patch that is not in the folder", patch=name) from None
        except UnicodeDecodeError as error:
            raise PatchError(f"the patch is not UTF-8: {error}", patch=name) from None
        patches.append(parse(name, text))
    return Series(folder, tuple(patches), _digest(folder, names))


def _digest(folder: Path, names: list[str]) -> str:
    whole = hashlib.sha256()
    for name in names:
        whole.update(f"{name}\n".encode())
        whole.update((folder / name).read_bytes())
    return whole.hexdigest()


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


def apply_checkout(root: Path, series: Series, extra: Mapping[str, Path] | None = None) -> Applied:
    """Put the series on the checkout at ``root``, all or nothing, and copy ``extra`` (path in the tree: file) to it.

    A misfit hunk does not hide the next one: every hunk that does not fit is reported, and the checkout stays as it
    was. A checkout that has the whole series already is left alone.

    Raises:
        SourceError: ``root`` is not a llama.cpp checkout.
        OSError: a file cannot be read or written; those written before are put back.
    """
    if not (root / "include" / "llama.h").is_file():
        raise SourceError(f"{root} is not a llama.cpp checkout: it has no include/llama.h")
    before: dict[str, str | None] = {}
    for patch in series.patches:
        for change in patch.files:
            if change.path not in before:
                before[change.path] = _read(root / change.path)
    if series.patches and _is_applied(before, series):
        return Applied(already=True)
    after = dict(before)
    misfits: list[Misfit] = []
    for patch in series.patches:
        for change in patch.files:
            after[change.path] = _apply_each(after[change.path], change, patch, misfits)
    if misfits:
        return Applied(misfits=tuple(misfits))
    new = {path: text.encode() if text is not None else None for path, text in after.items() if text != before[path]}
    for path, file in (extra or {}).items():
        new[path] = file.read_bytes()
    _write_all(root, new)
    return Applied(written=tuple(sorted(new)))


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


def _apply_each(content: str | None, change: FilePatch, patch: Patch, misfits: list[Misfit]) -> str | None:
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
