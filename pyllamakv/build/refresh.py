"""For maintainers: change a patch by changing files.

    python -m pyllamakv.build edit NAME DIR      a tree in DIR with the series up to and with NAME
    …change files in DIR…
    python -m pyllamakv.build refresh NAME DIR   NAME is written again, as the difference from the patches before it
    python -m pyllamakv.build refresh            every patch in its canonical form: exact line numbers, no fluff

The same files give the same patch, byte for byte, on every machine.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import PatchError, SourceError
from ..paths import atomic_folder, atomic_write
from .checkout import Misfit, apply_each
from .digest import built_from, list_files
from .patch import REQUIRED_HEADERS, Patch, apply_file, make_diff, parse
from .pin import Pin
from .series import Series, load

__all__ = ["Refreshed", "canonical", "edit", "refresh", "refresh_all", "template"]

NOTE = ".pyllamakv-edit.json"


@dataclass(frozen=True)
class Refreshed:
    """A patch written again: whether its text changed, and the first later patch that does not fit it any more."""

    name: str
    changed: bool
    broken: PatchError | None


def edit(series: Series, name: str, folder: Path, pristine: Path, pin: Pin) -> list[Misfit]:
    """Fill ``folder`` (which must not exist) with the tree as patch ``name`` leaves it; a new name adds a patch.

    Returns:
        The hunks of ``name`` that do not fit, to be put in by hand.

    Raises:
        PatchError: an earlier patch does not fit.
        SourceError: ``folder`` is there already.
    """
    if folder.exists():
        raise SourceError(f"{folder} is there already, and may hold somebody's work: name a new folder")
    before, patch = _before(series, name)
    files = _base(before, pristine, pin)
    misfits: list[Misfit] = []
    if patch is not None:
        for change in patch.files:
            content = files.get(change.path)
            text = apply_each(content.decode() if content is not None else None, change, patch, misfits)
            if text is None:
                files.pop(change.path, None)
            else:
                files[change.path] = text.encode()
    note = {"patch": name if patch is None else patch.name, "before": before.digest, "pin": pin.digest}
    with atomic_folder(folder.absolute()) as target:
        for path, content in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
        (target / NOTE).write_text(json.dumps(note), encoding="utf-8")
    return misfits


def refresh(series: Series, name: str, folder: Path, pristine: Path, pin: Pin, *, today: datetime.date) -> Refreshed:
    """Write patch ``name`` as the difference between the patches before it and the tree in ``folder``.

    The header stays; ``Last-Update`` becomes ``today`` where the difference changed. A new patch gets a header to be
    filled in, and a line in the series.

    Raises:
        SourceError: ``folder`` was not made by :func:`edit` for this patch, or for another state of the series.
        PatchError: there is no difference.
    """
    before, patch = _before(series, name)
    name = name if patch is None else patch.name
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        raise SourceError(f"{folder} was not made by `python -m pyllamakv.build edit {name} DIR`: make it so") from None
    if note != {"patch": name, "before": before.digest, "pin": pin.digest}:
        raise SourceError(
            f"{folder} was made for {note.get('patch')} on another state of the series; the difference would take in "
            f"what changed since. Make a new folder with `python -m pyllamakv.build edit {name} DIR` and copy your "
            "changes to it"
        )
    old = _base(before, pristine, pin)
    new = {path: (folder / path).read_bytes() for path in {*list_files(folder), *_known(folder, old)}}
    body = _difference(old, new)
    if not body:
        raise PatchError(f"{folder} is what the patches before {name} make: there is nothing to write", patch=name)
    preamble = template(name) if patch is None else patch.preamble
    changed = _write(series, name, preamble, body, today)
    return Refreshed(name, changed, _broken(series.folder, pristine, pin))


def refresh_all(series: Series, pristine: Path, pin: Pin, *, write: bool, today: datetime.date) -> list[str]:
    """Names of the patches whose text is not canonical; written again where ``write`` is set.

    Raises:
        PatchError: a patch does not fit.
    """
    changed = []
    for patch in series.patches:
        before, _ = _before(series, patch.name)
        old = _base(before, pristine, pin)
        body = canonical(patch, old)
        text = (series.folder / patch.name).read_text(encoding="utf-8")
        if text != patch.preamble + body:
            changed.append(patch.name)
            if write:
                _write(series, patch.name, patch.preamble, body, today)
    return changed


def canonical(patch: Patch, old: Mapping[str, bytes]) -> str:
    """The hunks of ``patch`` on the tree ``old``, as :func:`.patch.make_diff` writes them."""
    new = dict(old)
    for change in patch.files:
        content = old.get(change.path)
        text = apply_file(content.decode() if content is not None else None, change, patch=patch.name)
        if text is None:
            new.pop(change.path, None)
        else:
            new[change.path] = text.encode()
    return _difference(old, new)


def template(name: str) -> str:
    """The header of a new patch, to be filled in."""
    title = re.sub(r"^\d+-|\.patch$", "", name).replace("-", " ")
    fields = {"Description": f"{title}\n …why, and what the user sees…", "Origin": "vendor", "Forwarded": "no"}
    lines = [f"{key}: {fields.get(key, '')}".rstrip() for key in REQUIRED_HEADERS]
    return "\n".join([*lines, "---", ""])


def _before(series: Series, name: str) -> tuple[Series, Patch | None]:
    """The series up to ``name``, and the patch of that name; the whole series and None where it is a new one."""
    try:
        full = series.resolve(name)
    except PatchError:
        if re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", name) and name > max(series.names, default=""):
            return series, None
        raise
    index = series.names.index(full)
    return series.without(*series.names[index:]), series.patches[index]


def _base(series: Series, pristine: Path, pin: Pin) -> dict[str, bytes]:
    files = {path: (pristine / path).read_bytes() for path in pin.files}
    for path, text in series.apply(lambda path: files[path].decode() if path in files else None).items():
        if text is None:
            files.pop(path, None)
        else:
            files[path] = text.encode()
    return files


def _known(folder: Path, old: Mapping[str, bytes]) -> list[str]:
    return [path for path in old if (folder / path).is_file()]


def _difference(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str:
    paths = sorted(
        path for path in {*old, *new} if old.get(path) != new.get(path) and (path in old or built_from(path))
    )
    return "".join(
        make_diff(path, *(side[path].decode() if path in side else None for side in (old, new))) for path in paths
    )


def _write(series: Series, name: str, preamble: str, body: str, today: datetime.date) -> bool:
    path = series.folder / name
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    changed = not text.endswith(body) or text[: len(text) - len(body)] != preamble
    if changed:
        date = f"Last-Update: {today.isoformat()}"
        preamble = re.sub(r"(?m)^Last-Update:.*$", date, preamble, count=1)
        parse(name, preamble + body)
        with atomic_write(path) as file:
            file.write((preamble + body).encode())
    if name not in series.names:
        listing = series.folder / "series"
        before = listing.read_text(encoding="utf-8")
        with atomic_write(listing) as file:
            file.write((before + ("" if before.endswith("\n") or not before else "\n") + name + "\n").encode())
    return changed


def _broken(folder: Path, pristine: Path, pin: Pin) -> PatchError | None:
    """The first misfit of the series as it is on disk now: a patch that was changed may move a later one's ground."""
    try:
        _base(load(folder), pristine, pin)
    except PatchError as error:
        return error
    return None
