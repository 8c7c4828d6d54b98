"""Writes docs/patches/: a page for each patch of the series, and an index.

    python ci/docs_patches.py                 from the headers, docs/patches/src/ and docs/patches/numbers.json
    python ci/docs_patches.py --check         write nothing; exit code 1 where a page is missing, stale or left over
    python ci/docs_patches.py --numbers --stock F --patched F [--replay F] [--instructions F] [--work DIR]
                                              measure again: makes numbers.json out of what was measured, then the pages

``--stock`` and ``--patched`` take what `pyllamakv conformance --json` wrote, ``--replay`` that of `pyllamakv replay
--library both --json`, ``--instructions`` that of `ci/equivalence --json`, and ``--work`` a work folder of the build
driver, whose dependencies tell how many objects a patch compiles again. What is not given stays as it was.

The part of a page that a person writes is docs/patches/src/verb-object.md, with one heading for each of SECTIONS.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from pyllamakv.build import series, toolchain
from pyllamakv.build.patch import Patch

DOCS = Path(__file__).resolve().parent.parent / "docs" / "patches"
NUMBERS = DOCS / "numbers.json"
TEMPLATE = "page.md.j2"
INDEX_TEMPLATE = "index.md.j2"

#: Headings of docs/patches/src/*.md: why it happens, how to see it, why the cure is where it is, what is not done.
SECTIONS = ("Cause", "Reproduction", "Why here", "Refuses", "Reports")

#: Outcomes in the order of conformance's tables.
OUTCOMES = ("ok", "refused", "wrong", "nan", "died", "error")


class PageError(Exception):
    """A page cannot be made; the message says what is missing and where."""


def topic(patch: Patch) -> str:
    """The patch's name without its number, which changes as the series does."""
    return re.sub(r"^\d{4}-|\.patch$", "", patch.name)


def read_source(text: str, where: str) -> dict[str, str]:
    """The sections of a page's written part.

    Raises:
        PageError: one of SECTIONS is missing or empty, or there is another.
    """
    found: dict[str, str] = {}
    for part in re.split(r"^# ", "\n" + text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        found[heading.strip()] = body.strip()
    missing = [name for name in SECTIONS if not found.get(name)]
    unknown = [name for name in found if name not in SECTIONS]
    if missing or unknown:
        raise PageError(f"{where}: lacks {missing or 'nothing'}, has unknown headings {unknown or 'none'}")
    return found


def diff(patch: Patch) -> str:
    """The patch without its header."""
    lines = []
    for file in patch.files:
        lines.append(f"--- {'/dev/null' if file.old is None else 'a/' + file.old}\n")
        lines.append(f"+++ {'/dev/null' if file.new is None else 'b/' + file.new}\n")
        lines += [hunk.text for hunk in file.hunks]
    return "".join(lines).rstrip("\n")


#
# numbers
#


def conformance(stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """Counts by property, out of two runs; only checks that both made count."""
    from pyllamakv.replay.conformance.registry import all_properties

    def keys(run: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {(r["property"], r["model"], r["setting"]) for r in run["results"]}

    both = keys(stock) & keys(patched)
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for library, run in (("stock", stock), ("patched", patched)):
        for r in run["results"]:
            if (r["property"], r["model"], r["setting"]) in both and r["outcome"] != "n/a":
                counts[r["property"]][library][r["outcome"]] += 1
    return {
        "models": len({model for _, model, _ in both}),
        "settings": sorted({setting for _, _, setting in both}),
        "builds": {"stock": _build(stock), "patched": _build(patched)},
        "properties": {
            p.name: {
                "means": p.means,
                "defects": list(p.defects),
                "stock": _ordered(counts[p.name]["stock"]),
                "patched": _ordered(counts[p.name]["patched"]),
            }
            for p in all_properties()
            if p.name in counts
        },
    }


def replay(run: dict[str, Any]) -> dict[str, Any]:
    """Outcomes by scenario and model."""
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for r in run["results"]:
        found[r["scenario"]][r["model"]][r["library"]] = r["outcome"]
    return {scenario: dict(models) for scenario, models in found.items()}


def rebuilt(work: Path, patches: Iterable[Patch]) -> dict[str, Any]:
    """How many of the library's objects depend on the files that each patch changes, by Ninja's own record."""
    ninja = toolchain.find().ninja or "ninja"
    done = subprocess.run([ninja, "-C", str(work), "-t", "deps"], capture_output=True, text=True, check=True)
    depends: dict[str, set[str]] = {}
    for block in done.stdout.split("\n\n"):
        head, *rest = block.strip().splitlines() or [""]
        name = head.partition(": #deps")[0]
        if re.match(r"llama/(src|ggml)/", name):
            depends[name] = {line.strip().partition("tree/llama.cpp/")[2] for line in rest}
    objects = {topic(p): sum(bool(d & {f.path for f in p.files}) for d in depends.values()) for p in patches}
    return {"of": len(depends), "objects": objects}


def _build(run: dict[str, Any]) -> dict[str, Any]:
    build = run.get("build") or {}
    return {key: build.get(key) for key in ("pin", "series", "digest", "compiler", "flags")}


def _ordered(counts: Counter[str]) -> dict[str, int]:
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


#
# pages
#


def pages(patches: tuple[Patch, ...], numbers: dict[str, Any], folder: Path = DOCS) -> dict[str, str]:
    """Every file that belongs into ``folder``, by name.

    Raises:
        PageError: a patch has no written part, or a written part has no patch.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown out of our own files
    )
    sources = {path.stem: path for path in (folder / "src").glob("*.md")}
    missing = [topic(p) for p in patches if topic(p) not in sources]
    if missing:
        raise PageError(
            "these patches have no page: "
            + ", ".join(f"docs/patches/src/{name}.md" for name in missing)
            + f"; write one with the headings {', '.join(SECTIONS)}"
        )
    orphans = sorted(set(sources) - {topic(p) for p in patches})
    if orphans:
        raise PageError(f"no patch is called {', '.join(orphans)}: remove docs/patches/src/{orphans[0]}.md")

    files: dict[str, str] = {}
    rows = []
    for patch in patches:
        path = sources[topic(patch)]
        facts = _facts(patch, numbers)
        written = read_source(path.read_text(encoding="utf-8"), f"docs/patches/src/{path.name}")
        text = environment.get_template(TEMPLATE).render(patch=patch, diff=diff(patch), written=written, **facts)
        files[patch.name.replace(".patch", ".md")] = _tidy(text)
        rows.append({"patch": patch, **facts})
    files["README.md"] = _tidy(environment.get_template(INDEX_TEMPLATE).render(rows=rows, numbers=numbers))
    return files


def _facts(patch: Patch, numbers: dict[str, Any]) -> dict[str, Any]:
    """What the templates ask of one patch."""
    summary, _, rest = patch.header["Description"].partition("\n")
    bugs = [] if patch.header["Bug"].startswith("(") else patch.header["Bug"].split()
    names, witnesses = patch.named("Scenario"), patch.named("Property")
    measured = numbers["conformance"]
    properties = {n: p for n, p in measured.get("properties", {}).items() if set(p["defects"]) & set(bugs)}
    cost = numbers["cost"]
    return {
        "name": topic(patch),
        "summary": summary,
        "story": " ".join(line.strip() for line in rest.splitlines()),
        "bugs": bugs,
        "properties": properties,
        "bad": {
            library: sum(sum(p[library].get(o, 0) for o in ("wrong", "nan", "died")) for p in properties.values())
            for library in ("stock", "patched")
        },
        "checks": sum(sum(p["stock"].values()) for p in properties.values()),
        "models": measured.get("models"),
        "settings": measured.get("settings", []),
        "scenarios": {n: numbers["replay"][n] for n in names if n in numbers["replay"]},
        "unmeasured": [n for n in names if n not in numbers["replay"]],
        "witnesses": witnesses,
        "objects": cost.get("objects", {}).get(topic(patch)),
        "all_objects": cost.get("of"),
        "instructions": numbers["instructions"],
        "counts": _counts,
    }


def _counts(found: dict[str, int]) -> str:
    """`110 ok, 3 wrong`."""
    return ", ".join(f"{count} {outcome}" for outcome, count in found.items()) or "not applicable"


def _tidy(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines())).strip() + "\n"


def stale(files: dict[str, str], folder: Path = DOCS) -> list[str]:
    """Names of pages that are missing, differ, or belong to no patch any more."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in there.keys() | files.keys() if there.get(name) != files.get(name))


def load_numbers(path: Path = NUMBERS) -> dict[str, Any]:
    """numbers.json; empty parts where nothing has been measured."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"schema": 1, "conformance": {}, "replay": {}, "instructions": [], "cost": {}} | found


def measure(options: argparse.Namespace, patches: tuple[Patch, ...]) -> dict[str, Any]:
    """numbers.json anew, as far as results are given."""
    numbers = load_numbers()
    if options.stock and options.patched:
        numbers["conformance"] = conformance(_json(options.stock), _json(options.patched))
    if options.replay:
        numbers["replay"] |= replay(_json(options.replay))
    if options.instructions:
        numbers["instructions"] = _json(options.instructions)["counts"]
    if options.work:
        numbers["cost"] = rebuilt(options.work, patches)
    return numbers


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; compare")
    parser.add_argument("--numbers", action="store_true", help="make numbers.json anew")
    for name in ("stock", "patched", "replay", "instructions", "work"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args(arguments)
    patches = series.load().patches
    if options.numbers:
        NUMBERS.write_text(json.dumps(measure(options, patches), indent=1) + "\n", encoding="utf-8")
    try:
        files = pages(patches, load_numbers())
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    old = stale(files)
    if options.check:
        for name in old:
            print(f"docs/patches/{name} is not what its sources say: run ci/docs_patches.py", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        if name in files:
            (DOCS / name).write_text(files[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
    print(f"{len(patches)} patches; written or removed: {', '.join(old) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
