"""``python -m pyllamakv.build``: the command line of this room. Bare options build.

argparse and not Typer: this must run before anything is installed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ArgumentError, PyllamakvError
from . import digest, pin, series, upstream_tests
from .checkout import apply_checkout
from .driver import build
from .home import patches_dir
from .process import Progress
from .refresh import edit, refresh, refresh_all
from .settings import add_arguments, from_arguments, from_environment
from .source import obtain
from .tree import Variant, prepare

__all__ = ["main"]

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 only where everything asked was done."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words.insert(0, "build")
    options = _parser().parse_args(words)
    command: Command = options.command
    try:
        return command(options)
    except (PyllamakvError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what is compiled stays, and the next build goes on from there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pyllamakv.build", description=_DESCRIPTION)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        sub.set_defaults(command=command)
        return sub

    sub = add("build", _build, "build and install a library (the default: options alone mean this)")
    add_arguments(sub)
    sub.add_argument("--program", action="append", default=[], help="one of llama.cpp's own programs to build as well")
    sub.add_argument("--quiet", action="store_true", help="say nothing but errors and the result")

    sub = add("apply", _apply, "put the series onto your own llama.cpp checkout, all of it or nothing")
    sub.add_argument("folder", type=Path, metavar="DIR")

    sub = add("tree", _tree, "write the source tree that would be built, and no more")
    sub.add_argument("folder", type=Path, metavar="DIR", help="the tree becomes DIR/tree/llama.cpp")
    sub.add_argument("--stock", action="store_true", help="without the series")

    sub = add("upstream-tests", _upstream_tests, "build llama.cpp's own tests of memory and models, and run them")
    sub.add_argument("names", nargs="*", metavar="NAME", help="any part of a test's name (default: all)")
    sub.add_argument("--stock", action="store_true", help="on the pinned llama.cpp as it is")
    sub.add_argument("--model", type=Path, metavar="FILE", help="a small GGUF model with a vocabulary")
    sub.add_argument("--zoo", type=Path, metavar="DIR", help="one model per architecture (default: made)")
    sub.add_argument("--list", action="store_true", help="say what there is, and no more")

    add("check", _check, "see that the series is well-formed and applies (for maintainers)")

    sub = add("edit", _edit, "write a tree in which to change one patch (for maintainers)")
    sub.add_argument(
        "name", metavar="NAME", help="a patch, by any part of its name; or NNNN-verb-object.patch for a new one"
    )
    sub.add_argument("folder", type=Path, metavar="DIR", help="a folder that does not exist yet")

    sub = add(
        "refresh", _refresh, "write patches again: one from an edited tree, or all in canonical form (for maintainers)"
    )
    sub.add_argument("name", metavar="NAME", nargs="?")
    sub.add_argument("folder", type=Path, metavar="DIR", nargs="?", help="the folder that `edit` made")
    sub.add_argument("--check", action="store_true", help="write nothing; fail where a patch is not canonical")

    sub = add("pin", _pin, "write pin.lock for a tree, and print the digest for pin.toml (for maintainers)")
    sub.add_argument("folder", type=Path, metavar="TREE")
    return parser


_DESCRIPTION = "The pinned llama.cpp with our patch series, as a library. `build --help` shows its options."


def _build(options: argparse.Namespace) -> int:
    progress = Progress(quiet=options.quiet)
    try:
        result = build(from_arguments(options), programs=options.program, progress=progress)
    finally:
        progress.close()
    print(result.libdir)
    return 0


def _apply(options: argparse.Namespace) -> int:
    done = apply_checkout(options.folder, series.load())
    if done.misfits:
        print(f"{options.folder}: nothing was changed, for {len(done.misfits)} hunks do not fit", file=sys.stderr)
        for misfit in done.misfits:
            print(f"\n{misfit.patch}: {misfit.file}: {misfit.why}", file=sys.stderr)
            print(textwrap.indent(misfit.hunk.rstrip("\n"), "    "), file=sys.stderr)
        return 1
    for path in done.written:
        print(path)
    if done.already:
        print(f"{options.folder} has the whole series already")
    else:
        print(f"the series is on {options.folder}: build it the way you build llama.cpp")
    return 0


def _tree(options: argparse.Namespace) -> int:
    root = prepare(options.folder, from_environment().source, "stock" if options.stock else "patched", report=_say)
    print(root)
    return 0


def _upstream_tests(options: argparse.Namespace) -> int:
    tests = upstream_tests.choose(options.names)
    if options.list:
        print("\n".join(f"{test.name}: {test.about}" for test in tests))
        return 0
    variant: Variant = "stock" if options.stock else "patched"
    findings = upstream_tests.run_all(
        tests,
        variant,
        model=options.model,
        zoo=options.zoo,
        done=lambda finding: _say(f"{finding.test.name}: {'ok' if finding.asked.passed else finding.asked.why}"),
    )
    print(upstream_tests.table(findings, variant))
    return 1 if any(finding.counts for finding in findings) else 0


def _check(options: argparse.Namespace) -> int:
    del options
    ours, pinned = series.load(), pin.load()
    wrong = [
        f"{patch.name}: the header lacks {', '.join(patch.missing_headers())}"
        for patch in ours.patches
        if patch.missing_headers()
    ]
    root = obtain(pinned, report=_say)
    changed = ours.apply(lambda path: (root / path).read_bytes().decode() if path in pinned.files else None)
    for line in wrong:
        print(line, file=sys.stderr)
    lines = sum(patch.changed_lines for patch in ours.patches)
    print(f"{len(ours.patches)} patches, {lines} changed lines in {len(changed)} files")
    return 1 if wrong else 0


def _edit(options: argparse.Namespace) -> int:
    pinned = pin.load()
    misfits = edit(series.load(), options.name, options.folder, obtain(pinned, report=_say), pinned)
    for misfit in misfits:
        print(f"does not fit, put it in by hand: {misfit.file}: {misfit.why}", file=sys.stderr)
        print(textwrap.indent(misfit.hunk.rstrip("\n"), "    "), file=sys.stderr)
    print(f"change files in {options.folder}, then: python -m pyllamakv.build refresh {options.name} {options.folder}")
    return 1 if misfits else 0


def _refresh(options: argparse.Namespace) -> int:
    pinned, today = pin.load(), datetime.datetime.now(datetime.timezone.utc).date()
    root = obtain(pinned, report=_say)
    if options.name is None:
        changed = refresh_all(series.load(), root, pinned, write=not options.check, today=today)
        for name in changed:
            print(f"{name}: {'not canonical' if options.check else 'written again'}")
        return 1 if options.check and changed else 0
    if options.folder is None:
        raise ArgumentError(f"refresh {options.name} needs the folder that `edit {options.name} DIR` made")
    done = refresh(series.load(), options.name, options.folder, root, pinned, today=today)
    print(f"{done.name}: {'written' if done.changed else 'unchanged'}")
    if done.broken is not None:
        print(f"a later patch does not fit any more:\n{done.broken}", file=sys.stderr)
    return 1 if done.broken is not None else 0


def _pin(options: argparse.Namespace) -> int:
    digests = digest.hash_tree(options.folder, digest.list_files(options.folder))
    (patches_dir() / "pin.lock").write_text(digest.write_lock(digests), encoding="utf-8")
    print(f'sha256 = "{digest.tree_digest(digests)}"')
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
