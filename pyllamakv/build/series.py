"""The series: which patches, in which order, and putting them on a tree, all or nothing."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import PatchError
from .home import patches_dir
from .patch import Patch, apply_file, parse

__all__ = ["Series", "load"]

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
