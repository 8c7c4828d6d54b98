"""Counts the instructions that one process needs for the same tokens on the stock and on the patched library.

The program is ci/equivalence.c: llama.h alone, one thread, greedy. It is linked once and finds either library through
LD_LIBRARY_PATH, so that nothing but the library differs. Both libraries are built portable: valgrind knows no AVX-512.

A count is not a time, but it has no noise: two runs of one library differ by less than 0.001 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pyllamakv.build import driver, pin, source, toolchain
from pyllamakv.build.settings import Settings, from_environment
from pyllamakv.errors import BuildError, PyllamakvError
from pyllamakv.paths import cache_dir
from pyllamakv.replay import models

__all__ = ["Count", "Counter", "compile_program", "counter", "main", "measure", "parse_callgrind", "parse_perf"]

Counter = Literal["perf", "valgrind"]

PROGRAM = Path(__file__).with_name("equivalence.c")
LIMIT = 0.003


@dataclass(frozen=True)
class Count:
    """Instructions of the whole process on each library, and the hash of the tokens that it chose."""

    model: str
    tokens: int
    counter: Counter
    stock: int
    patched: int
    hashes: tuple[str, str]

    @property
    def ratio(self) -> float:
        """Patched to stock, less 1."""
        return self.patched / self.stock - 1

    @property
    def same(self) -> bool:
        """Whether both chose the same tokens."""
        return self.hashes[0] == self.hashes[1]


def counter() -> Counter:
    """The processor's counter where the system lets us read it (virtual machines often do not), else valgrind.

    Raises:
        BuildError: neither is there.
    """
    try:
        done = subprocess.run(_perf(["true"]), capture_output=True, text=True, check=False)
        parse_perf(done.stderr)
        return "perf"
    except (OSError, ValueError):
        pass
    try:
        subprocess.run(["valgrind", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(
            "instructions cannot be counted: `perf stat -e instructions:u` counts none here, and there is no valgrind "
            "(Debian, Ubuntu: apt-get install valgrind)"
        ) from None
    return "valgrind"


def parse_perf(text: str) -> int:
    """The count in what ``perf stat -x,`` prints.

    Raises:
        ValueError: it counted nothing.
    """
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions"):
            return int(fields[0])  # "<not supported>" and "<not counted>" are no numbers
    raise ValueError("perf counted no instructions")


def parse_callgrind(text: str) -> int:
    """The count in what callgrind prints at the end of a run.

    Raises:
        ValueError: it did not come to the end.
    """
    match = re.search(r"Collected : (\d+)", text)
    if match is None:
        raise ValueError("callgrind counted no instructions")
    return int(match[1])


def compile_program(folder: Path, stock: Path) -> Path:
    """ci/equivalence.c, linked against the library in ``stock``.

    Raises:
        BuildError: the compiler refused it; its words are in the message.
    """
    tree = source.obtain(pin.load())
    program = folder / "equivalence"
    compiler = toolchain.compilers().get("CC", "cc").split()
    command = [*compiler, "-O1", str(PROGRAM), "-o", str(program), f"-I{tree / 'include'}"]
    command += [f"-I{tree / 'ggml' / 'include'}", f"-L{stock}", "-lllama", "-Wl,--enable-new-dtags"]
    command += [f"-Wl,-rpath-link,{stock}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            "ci/equivalence.c does not compile", command=command, exit_code=done.returncode, output=done.stderr
        )
    return program


def measure(
    program: Path, libraries: dict[str, Path], model: str, path: Path, tokens: int, how: Counter, *, keep: Path
) -> Count:
    """Run ``program`` on both libraries; callgrind's profiles go to ``keep``.

    Raises:
        BuildError: a run failed; its last words are in the message.
    """
    found: dict[str, tuple[int, str]] = {}
    for variant, folder in libraries.items():
        command = [str(program), str(path), str(tokens)]
        if how == "perf":
            command = _perf(command)
        else:
            profile = keep / f"callgrind.{model}.{variant}"
            command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", *command]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        try:
            if done.returncode != 0:
                raise ValueError(f"exit code {done.returncode}")
            count = parse_perf(done.stderr) if how == "perf" else parse_callgrind(done.stderr)
        except ValueError as error:
            raise BuildError(f"{model} on {variant}: {error}", command=command, output=done.stderr[-2000:]) from None
        found[variant] = (count, done.stdout.strip())
    (stock, hash_stock), (patched, hash_patched) = found["stock"], found["patched"]
    return Count(model, tokens, how, stock, patched, (hash_stock, hash_patched))


def _perf(command: list[str]) -> list[str]:
    return ["perf", "stat", "-x,", "-e", "instructions:u", "--", *command]


def _settings() -> Settings:
    return replace(from_environment(), portable=True, prefix=None)


def main(arguments: list[str] | None = None) -> int:
    """0 where every model's count is within the limit, and the tokens are the same."""
    parser = argparse.ArgumentParser(prog="ci/equivalence", description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2-135m"], metavar="MODEL", help="default: smollm2-135m")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="tokens to decode (default: 256)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"the largest difference (default: {LIMIT})")
    parser.add_argument("--json", type=Path, metavar="F", help="write the counts to F")
    options = parser.parse_args(arguments)
    try:
        how = counter()
        libraries: dict[str, Path] = {
            variant: driver.ensure(variant, settings=_settings()).libdir for variant in ("stock", "patched")
        }
        keep = cache_dir("logs")
        keep.mkdir(parents=True, exist_ok=True)
        counts = []
        with tempfile.TemporaryDirectory() as folder:
            program = compile_program(Path(folder), libraries["stock"])
            for model in options.models:
                path = models.get(model)
                counts.append(measure(program, libraries, model, path, options.tokens, how, keep=keep))
                print(_line(counts[-1], options.limit), flush=True)
    except (PyllamakvError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if options.json:
        found = [asdict(count) | {"ratio": count.ratio} for count in counts]
        options.json.write_text(json.dumps({"schema": 1, "counts": found}, indent=2) + "\n", encoding="utf-8")
    wrong = [count for count in counts if not count.same or abs(count.ratio) > options.limit]
    if wrong and how == "valgrind":
        print(f"where they go: callgrind_annotate {keep}/callgrind.{wrong[0].model}.patched", file=sys.stderr)
    return 1 if wrong else 0


def _line(count: Count, limit: float) -> str:
    verdict = "ok" if count.same and abs(count.ratio) <= limit else "beyond the limit" if count.same else "other tokens"
    return (
        f"{count.model}: {count.tokens} tokens, stock {count.stock:,} instructions, patched {count.patched:,}: "
        f"{count.ratio:+.4%} ({count.counter}; {verdict})"
    )


if __name__ == "__main__":
    sys.exit(main())
