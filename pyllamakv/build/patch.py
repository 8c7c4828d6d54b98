"""Unified diffs: parsed, applied and made in pure Python.

Applying is strict. Every context and removed line must be there, byte for byte; only the line number may be off, and
then the hunk must fit in exactly one place. So a patch either lands where its author meant it to, or it is an error
that shows the hunk; there is no fuzz that could put a line into the wrong function.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import PatchError

__all__ = ["CONTEXT", "REQUIRED_HEADERS", "FilePatch", "Hunk", "Patch", "apply_file", "make_diff", "parse"]

CONTEXT = 3
REQUIRED_HEADERS = ("Description", "Origin", "Forwarded", "Bug", "Last-Update")
NO_NEWLINE = "\\ No newline at end of file"

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)$")
_HEADER = re.compile(r"^([A-Z][A-Za-z-]*):[ \t]*(.*)$")


@dataclass(frozen=True)
class Hunk:
    """One ``@@`` block. ``lines`` are (sign, text) with the text's line end kept; sign is ' ', '-' or '+'."""

    old_start: int
    new_start: int
    lines: tuple[tuple[str, str], ...]
    section: str = ""

    @property
    def old(self) -> list[str]:
        """Lines that must be there before."""
        return [text for sign, text in self.lines if sign != "+"]

    @property
    def new(self) -> list[str]:
        """Lines that are there after."""
        return [text for sign, text in self.lines if sign != "-"]

    @property
    def text(self) -> str:
        """The hunk as a diff shows it."""
        return "".join(_hunk_text(self))


@dataclass(frozen=True)
class FilePatch:
    """Every hunk for one file. ``old`` or ``new`` is None where the patch creates or deletes the file."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> str:
        """Path relative to the tree's root, with forward slashes."""
        path = self.new if self.new is not None else self.old
        assert path is not None
        return path


@dataclass(frozen=True)
class Patch:
    """A parsed patch file: DEP-3 header fields and the files it changes."""

    name: str
    header: Mapping[str, str]
    files: tuple[FilePatch, ...]
    preamble: str = field(default="", repr=False)

    @property
    def changed_lines(self) -> int:
        """Added plus removed lines."""
        return sum(sign != " " for file in self.files for hunk in file.hunks for sign, _ in hunk.lines)

    def named(self, header: str) -> list[str]:
        """The names in a header field; none where it is absent or speaks of all of them, "(all)"."""
        text = " ".join(self.header.get(header, "").split())
        return [] if not text or text.startswith("(") else re.split(r",\s*", text)

    def missing_headers(self) -> list[str]:
        """DEP-3 fields that the house wants and this patch lacks."""
        return [name for name in REQUIRED_HEADERS if not self.header.get(name)]


def parse(name: str, text: str) -> Patch:
    """The patch file ``name`` with content ``text``.

    Raises:
        PatchError: a hunk's counts disagree with its lines, a path leaves the tree, or nothing is changed at all.
    """
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    start = next((i for i, line in enumerate(lines) if _starts_file(lines, i)), len(lines))
    files: list[FilePatch] = []
    at = start
    while at < len(lines):
        if not _starts_file(lines, at):
            if re.match(
                r"^(diff|index|new file|deleted file|similarity|old mode|new mode|Index:|=+$|-- ?$|\s*$)", lines[at]
            ) or (
                files and re.match(r"^\d+\.\d+", lines[at])  # git's version, after "-- "
            ):
                at += 1
                continue
            raise PatchError(f"line {at + 1} belongs to no hunk: {lines[at]!r}", patch=name)
        at, file = _parse_file(name, lines, at)
        files.append(file)
    if not files:
        raise PatchError("the patch changes nothing: no '--- a/…' line was found", patch=name)
    paths = [file.path for file in files]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise PatchError("the same file is patched twice in one patch: join its hunks", patch=name, file=twice[0])
    preamble = "".join(f"{line}\n" for line in lines[:start] if not line.startswith(("diff ", "index ", "Index: ")))
    return Patch(name, _parse_header(preamble), tuple(files), preamble)


def apply_file(content: str | None, change: FilePatch, *, patch: str = "") -> str | None:
    """``content`` (None where the file does not exist) after ``change``; None where the patch deletes the file.

    Raises:
        PatchError: a hunk fits nowhere, or in several places; nothing is applied then.
    """
    if change.old is None:
        if content is not None:
            raise PatchError("the patch creates a file that is there already", patch=patch, file=change.path)
        content = ""
    elif content is None:
        raise PatchError("the file to be patched is not in the tree", patch=patch, file=change.path)
    lines = _split(content)
    out: list[str] = []
    done = 0  # lines of the old file that are already in `out`
    for hunk in change.hunks:
        at = _find(lines, hunk, done, change, patch)
        out += lines[done:at]
        out += hunk.new
        done = at + len(hunk.old)
    out += lines[done:]
    if change.new is None:
        if out:
            raise PatchError(
                "the patch deletes a file that holds more than the patch knows of", patch=patch, file=change.path
            )
        return None
    return "".join(out)


def make_diff(path: str, old: str | None, new: str | None) -> str:
    """The unified diff from ``old`` to ``new``, empty where they are equal.

    Always the same text for the same input: ``a/`` and ``b/`` prefixes, no timestamps, no section after ``@@`` (it
    would change whenever a line above does), and the least context, up to three lines, with which every hunk fits in
    one place only. A line more of context is a line more that another patch, or upstream's next version, can break.

    Raises:
        PatchError: an empty file appears or goes, which a unified diff cannot say.
    """
    if old == new:
        return ""
    if not old and not new:
        raise PatchError("a unified diff cannot create or delete an empty file", file=path)
    old_lines, new_lines = _split(old or ""), _split(new or "")
    out = [
        f"--- a/{path}\n" if old is not None else "--- /dev/null\n",
        f"+++ b/{path}\n" if new is not None else "+++ /dev/null\n",
    ]
    for context in range(1, CONTEXT + 1):
        hunks = _hunks(old_lines, new_lines, context)
        if all(len(_places(old_lines, hunk.old, 0)) == 1 for hunk in hunks):
            break
    return "".join(out + [line for hunk in hunks for line in _hunk_text(hunk)])


def _hunks(old_lines: list[str], new_lines: list[str], context: int) -> list[Hunk]:
    hunks = []
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        lines: list[tuple[str, str]] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [(" ", line) for line in old_lines[i1:i2]]
            else:
                lines += [("-", line) for line in old_lines[i1:i2]]
                lines += [("+", line) for line in new_lines[j1:j2]]
        first, last = group[0], group[-1]
        old_start, new_start = _start(first[1], last[2]), _start(first[3], last[4])
        hunks.append(Hunk(old_start, new_start, tuple(lines)))
    return hunks


def _start(begin: int, end: int) -> int:
    """Line number in a hunk's range: counted from 1, but the line before where the range is empty."""
    return begin if begin == end else begin + 1


def _split(text: str) -> list[str]:
    """Lines with their ends kept, split at ``\\n`` alone (str.splitlines knows a dozen more, form feed among them)."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _hunk_text(hunk: Hunk) -> Iterable[str]:
    def span(start: int, count: int) -> str:
        return str(start) if count == 1 else f"{start},{count}"

    yield f"@@ -{span(hunk.old_start, len(hunk.old))} +{span(hunk.new_start, len(hunk.new))} @@{hunk.section}\n"
    for sign, text in hunk.lines:
        if text.endswith("\n"):
            yield sign + text
        else:
            yield f"{sign}{text}\n{NO_NEWLINE}\n"


def _starts_file(lines: list[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _parse_file(name: str, lines: list[str], at: int) -> tuple[int, FilePatch]:
    old, new = _path(name, lines[at][4:], "a/"), _path(name, lines[at + 1][4:], "b/")
    if old is None and new is None:
        raise PatchError(f"line {at + 1}: both sides are /dev/null", patch=name)
    if old is not None and new is not None and old != new:
        raise PatchError(f"line {at + 1}: renames are not supported ({old} to {new})", patch=name)
    at += 2
    hunks: list[Hunk] = []
    while at < len(lines) and lines[at].startswith("@@"):
        at, hunk = _parse_hunk(name, old if old is not None else new or "", lines, at)
        hunks.append(hunk)
    if not hunks:
        raise PatchError("no hunk follows the file's name", patch=name, file=new or old or "")
    return at, FilePatch(old, new, tuple(hunks))


def _path(name: str, text: str, prefix: str) -> str | None:
    path = text.split("\t")[0].rstrip()
    if path == "/dev/null":
        return None
    if not path.startswith(prefix):
        raise PatchError(f"the path {path!r} must begin with {prefix!r}", patch=name)
    path = path[len(prefix) :]
    if path.startswith("/") or ".." in path.split("/") or "\\" in path or ":" in path or not path:
        raise PatchError(f"the path {path!r} leaves the tree", patch=name)
    return path


def _parse_hunk(name: str, file: str, lines: list[str], at: int) -> tuple[int, Hunk]:
    match = _HUNK.match(lines[at])
    if match is None:
        raise PatchError(f"line {at + 1} is not a hunk's head: {lines[at]!r}", patch=name, file=file)
    old_left, new_left = (int(match[i]) if match[i] is not None else 1 for i in (2, 4))
    first = at
    at += 1
    body: list[tuple[str, str]] = []
    while old_left > 0 or new_left > 0:
        line = lines[at] if at < len(lines) else None
        # an editor that strips trailing blanks turns an empty context line " " into ""
        sign, text = (" ", "") if line == "" else (line[0], line[1:]) if line is not None else ("", "")
        if sign not in (" ", "-", "+"):
            what = "ends early" if line is None else f"has {line!r} at line {at + 1}"
            raise PatchError(
                f"the hunk at line {first + 1} {what}: its head promises {old_left} old and {new_left} new lines more",
                patch=name,
                file=file,
            )
        old_left -= sign != "+"
        new_left -= sign != "-"
        at += 1
        newline = "\n"
        if at < len(lines) and lines[at].startswith("\\"):
            newline = ""
            at += 1
        body.append((sign, text + newline))
    if old_left or new_left:
        raise PatchError(f"the hunk at line {first + 1} has more lines than its head says", patch=name, file=file)
    return at, Hunk(int(match[1]), int(match[3]), tuple(body), match[5])


def _find(lines: list[str], hunk: Hunk, done: int, change: FilePatch, patch: str) -> int:
    """Index in the old file at which ``hunk`` fits, not before ``done`` (earlier hunks hold the lines up to there)."""
    old = hunk.old
    if not old:  # nothing to go by: right only where there is nothing else, that is in a new or empty file
        if lines:
            raise _misfit("the hunk has no context, so nothing tells where it belongs", hunk, change, patch)
        return 0
    expected = hunk.old_start - 1
    if expected >= done and lines[expected : expected + len(old)] == old:
        return expected
    places = _places(lines, old, done)
    if len(places) == 1:
        return places[0]
    if places:
        where = ", ".join(str(at + 1) for at in places[:6])
        raise _misfit(
            f"the hunk fits in several places (lines {where}): its line number must be right", hunk, change, patch
        )
    raise _misfit(_why_not(lines, old, expected), hunk, change, patch)


def _places(lines: list[str], old: list[str], done: int) -> list[int]:
    """Indices, from ``done`` on, at which the lines ``old`` stand."""
    return [
        at
        for at in range(done, len(lines) - len(old) + 1)
        if lines[at : at + 1] == old[:1] and lines[at : at + len(old)] == old
    ]


def _why_not(lines: list[str], old: list[str], expected: int) -> str:
    """Say how far the hunk fits at its best place: the first line that differs is what its author wants to know."""
    best, best_at = -1, expected
    for at in range(max(len(lines) - 1, 0)):
        same = sum(a == b for a, b in zip(lines[at : at + len(old)], old, strict=False))
        if same > best or (same == best and abs(at - expected) < abs(best_at - expected)):
            best, best_at = same, at
    if best <= 0:
        return "the hunk does not fit: none of its lines is in the file"
    for offset, want in enumerate(old):
        have = lines[best_at + offset] if best_at + offset < len(lines) else None
        if have != want:
            got = "the file ends" if have is None else f"the file has {have.rstrip()!r}"
            return (
                f"the hunk does not fit: nearest is line {best_at + 1}, where {best} of {len(old)} lines agree; "
                f"at line {best_at + offset + 1} it wants {want.rstrip()!r}, {got}"
            )
    return "the hunk does not fit"


def _misfit(message: str, hunk: Hunk, change: FilePatch, patch: str) -> PatchError:
    return PatchError(message, patch=patch, file=change.path, hunk=hunk.text)


def _parse_header(preamble: str) -> dict[str, str]:
    """DEP-3: RFC 2822-like fields; a line that begins with a blank continues the field, `` .`` is an empty line."""
    header: dict[str, str] = {}
    current = ""
    for line in preamble.split("\n"):
        if line == "---":
            break
        match = _HEADER.match(line)
        if match:
            current = match[1]
            header[current] = match[2].strip()
        elif current and line[:1] in (" ", "\t"):
            more = line.strip()
            header[current] += "\n" + ("" if more == "." else more)
        elif not line.strip():
            current = ""
    return header
