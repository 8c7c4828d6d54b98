"""Generate the Python binding of llama.cpp from the pinned headers.

The compiler's preprocessor expands the headers; this module keeps the declarations that come from them, drops what
cffi does not read (attributes, inline code), and writes one Python module in cffi's out-of-line ABI form. Numbers that
only a compiler knows (macro values, array lengths, the size of every struct and the offset of every field) are read out
of an object file that the same compiler makes, so cross-compiling needs nothing more than a compiler.

The module has ``ffi``, ``CDEF`` (the declarations as text), ``LAYOUT`` (``{"struct name": {"size": bytes, "fields":
{field: [offset, bytes]}}}``), ``FUNCTIONS`` (every function declared), ``REQUIRED`` (those that any library of this
pin must export) and ``PIN``.

    python -m pyllamakv.build.bindgen --include DIR --include DIR --compiler cc --out _cdef.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pprint
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Bindgen", "Declarations", "generate", "main", "parse_preprocessed"]

MODULE = "pyllamakv.native._cdef"

# Headers whose every function is taken.
WHOLE_HEADERS = ("llama.h", "ggml-backend.h", "gguf.h", "pyllamakv.h")
# Headers of which all types are taken, but only the functions named below.
PARTIAL_HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-cpu.h", "ggml-opt.h")
PARTIAL_FUNCTIONS = re.compile(
    r"ggml_(version|commit|time_(init|us|ms)|nelements|nrows|nbytes|row_size|type_size|blck_size|type_name|op_name"
    r"|op_desc|element_size|is_quantized|is_contiguous|ftype_to_ggml_type|tensor_overhead|graph_overhead|init|free|reset"
    r"|new_tensor(_[1-4]d)?|get_(name|data|data_f32|tensor|first_tensor|next_tensor|mem_size|no_alloc)|set_name"
    r"|log_(get|set)|set_abort_callback|status_to_string|fp16_to_fp32(_row)?|fp32_to_fp16(_row)?|bf16_to_fp32_row"
    r"|threadpool_(new|free|params_default|params_init)|cpu_has_\w+|cpu_init|backend_cpu_\w+)$"
)
MACRO_PREFIXES = ("LLAMA_", "GGML_", "GGUF_", "PKV_")

# The two functions that return a large struct, declared once more with room behind it: a library of another version may
# write a larger struct than the headers say, and has to be found out before it writes over something else.
_PADDED = "\n".join(
    f"struct pyllamakv_{n} {{ struct llama_{n} value; unsigned char behind[1024]; }};\n"
    f"typedef struct pyllamakv_{n} (*pyllamakv_default_{n})(void);"
    for n in ("model_params", "context_params")
)

_MARK_BEGIN = b"<pyllamakv:probe"
_MARK_END = b"pyllamakv:probe>"


@dataclass
class Declarations:
    """What the headers declare, in source order, ready for cffi (array lengths may still be C expressions)."""

    text: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)


@dataclass
class Bindgen:
    """One run of the generator: which headers, which compiler, what to call the pin."""

    include: Sequence[Path]
    compiler: Sequence[str]
    headers: Sequence[Path | str] = ("llama.h", "gguf.h", "ggml-cpu.h")
    pin: str = ""

    @property
    def msvc(self) -> bool:
        """Whether the compiler takes cl.exe's options."""
        return Path(self.compiler[0]).stem.lower() in ("cl", "clang-cl")

    def source(self, body: str = "") -> str:
        """A C file that includes the headers."""
        lines = [f'#include "{os.fspath(h)}"'.replace("\\", "/") for h in self.headers]
        return "\n".join(["#include <stddef.h>", *lines, body, ""])

    def run(self, mode: str, source: str, work: Path) -> str:
        """Preprocess (``mode="E"``) or compile (``mode="c"``) ``source`` in ``work``; returns the standard output."""
        (work / "probe.c").write_text(source, encoding="utf-8")
        if self.msvc:
            dirs = [f"/I{d}" for d in self.include]
            how = ["/E"] if mode == "E" else ["/c", "/GL-", "/Foprobe.o"]
            command = [*self.compiler, "/nologo", "/TC", "/utf-8", *dirs, *how, "probe.c"]
        else:
            dirs = [f"-I{d}" for d in self.include]
            # With link-time optimisation an object holds no constants, and a gnu17 reading keeps `bool` a plain type.
            how = ["-E"] if mode == "E" else ["-c", "-fno-lto", "-O0", "-o", "probe.o"]
            command = [*self.compiler, "-x", "c", "-std=gnu11", "-w", *dirs, *how, "probe.c"]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, encoding="utf-8", errors="replace")
        except OSError as err:
            raise SystemExit(f"bindgen: cannot run the compiler {self.compiler[0]!r}: {err}") from err
        if done.returncode != 0:
            output = "\n".join("    " + line for line in (done.stderr or done.stdout).splitlines()[:40])
            raise SystemExit(f"bindgen: {shlex.join(command)} failed with exit code {done.returncode}:\n{output}")
        return done.stdout

    def probe(self, expressions: Sequence[str], work: Path) -> list[int]:
        """The values of integer constant expressions, as the target's compiler computes them (signed 64 bit).

        Eight bytes an expression in a constant array between two marks: an object file can be read without running it.
        """
        values = [f"V({e})" for e in expressions]
        marks = [", ".join(f"'{chr(b)}'" for b in mark) for mark in (_MARK_BEGIN, _MARK_END)]
        shifts = ", ".join(f"(unsigned char)((unsigned long long)(long long)(x) >> {s})" for s in range(56, -8, -8))
        body = f"#define V(x) {shifts}\nconst unsigned char pyllamakv_probe[] = {{\n{marks[0]},\n"
        body += ",\n".join([*values, marks[1]]) + "};"
        (work / "probe.o").unlink(missing_ok=True)
        self.run("c", self.source(body), work)
        blob = (work / "probe.o").read_bytes()
        begin = blob.find(_MARK_BEGIN) + len(_MARK_BEGIN)
        raw = blob[begin : begin + 8 * len(expressions)]
        if begin < len(_MARK_BEGIN) or blob[begin + len(raw) :][: len(_MARK_END)] != _MARK_END:
            raise SystemExit(f"bindgen: the object file made by {self.compiler[0]} does not hold the probed constants")
        return [int.from_bytes(raw[i : i + 8], "big", signed=True) for i in range(0, len(raw), 8)]

    def macros(self) -> list[str]:
        """Names of the headers' integer macros, in source order (values come from the probe)."""
        names: dict[str, None] = {}
        wanted = {Path(h).name for h in self.headers} | set(WHOLE_HEADERS) | set(PARTIAL_HEADERS)
        for folder in [*self.include, *(Path(h).parent for h in self.headers if Path(h).is_absolute())]:
            for path in sorted(Path(folder).glob("*.h")):
                if path.name in wanted:
                    names.update(dict.fromkeys(_integer_macros(path.read_text(encoding="utf-8"), names)))
        return list(names)


def _integer_macros(text: str, known: dict[str, None]) -> Iterator[str]:
    seen = set(known)
    for line in re.sub(r"/\*.*?\*/", " ", text, flags=re.S).splitlines():
        found = re.match(r"\s*#\s*define\s+(\w+)\s+(\S.*?)\s*(//.*)?$", line)
        if found is None or not found[1].startswith(MACRO_PREFIXES):
            continue
        value = found[2].strip("()")
        if re.fullmatch(r"-?(0[xX])?[0-9a-fA-F]+[uUlL]*", value) or value in seen:
            seen.add(found[1])
            yield found[1]


def _own_lines(text: str, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(header name, line) of the preprocessed lines that come from our headers."""
    current = ""
    for line in text.splitlines():
        marker = re.match(r'\s*#\s*(?:line\s+)?\d+\s+"((?:[^"\\]|\\.)*)"', line)
        if marker is not None:
            base = re.split(r"[\\/]", marker[1].replace("\\\\", "\\"))[-1]
            current = base if base in names else ""
        elif current and not line.lstrip().startswith("#"):
            yield current, line


def _strip_calls(text: str, word: str) -> str:
    """Remove every ``word(...)``, balanced."""
    out, at = [], 0
    for found in re.finditer(rf"\b{word}\s*\(", text):
        if found.start() < at:
            continue
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        out.append(text[at : found.start()])
        at = end
    return "".join([*out, text[at:]])


def _statements(text: str) -> Iterator[str]:
    """Top-level declarations, without the closing semicolon; function bodies end a declaration too."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        if char in "{(":
            depth += 1
        elif char in "})":
            depth -= 1
            if depth == 0 and char == "}" and re.match(r"\s*(static|inline|__inline)\b", text[start:]):
                start = i + 1
        elif char == ";" and depth == 0:
            yield text[start:i].strip()
            start = i + 1


def parse_preprocessed(text: str, names: Sequence[str] = (*WHOLE_HEADERS, *PARTIAL_HEADERS)) -> Declarations:
    """Turn a preprocessor's output into declarations: all types of the named headers, and the functions we bind.

    A function in upstream's deprecated list is declared but not required: another build may leave it out.
    """
    out = Declarations()
    seen: set[str] = set()
    chunks: list[tuple[str, list[str]]] = []
    for header, line in _own_lines(text, frozenset(names)):
        if not chunks or chunks[-1][0] != header:
            chunks.append((header, []))
        chunks[-1][1].append(line)
    for header, lines in chunks:
        body = re.sub(r'"(?:[^"\\]|\\.)*"', '""', "\n".join(lines))
        for statement in _statements(body):
            deprecated = re.search(r"\b(__attribute__|__declspec)\s*\(\s*\(?\s*deprecated\b", statement) is not None
            for word in ("__attribute__", "__declspec", "__asm__", "_Alignas", "alignas"):
                statement = _strip_calls(statement, word)
            statement = re.sub(r"\b(extern|__extension__|_Noreturn|__cdecl|__restrict(__)?)\b", " ", statement)
            statement = re.sub(r"[ \t]*\n\s*", "\n    ", re.sub(r"[ \t]+", " ", statement)).strip()
            if not statement or re.match(r"(static|inline|__inline|_Static_assert|static_assert)\b", statement):
                continue
            function = None
            if not statement.startswith("typedef") and "{" not in statement:
                function = re.search(r"\b(\w+)\s*\(", statement)
            if function is not None:
                if header in PARTIAL_HEADERS and not PARTIAL_FUNCTIONS.match(function[1]):
                    continue
                out.functions.append(function[1])
                if header == "llama.h" and not deprecated:
                    out.required.append(function[1])
            if statement + ";" not in seen:  # C allows a typedef twice, cffi does not
                seen.add(statement + ";")
                out.text.append(statement + ";")
    return out


def _resolve_dimensions(bindgen: Bindgen, text: str, work: Path) -> str:
    """Replace array lengths that are not plain numbers (``64 / sizeof(int32_t)``) by what the compiler says."""
    wanted = sorted({d for d in re.findall(r"\[([^\]]+)\]", text) if not d.strip().isdigit()})
    values = dict(zip(wanted, bindgen.probe(wanted, work), strict=True)) if wanted else {}
    return re.sub(r"\[([^\]]+)\]", lambda m: f"[{values.get(m[1], m[1].strip())}]", text)


def _layout(bindgen: Bindgen, ffi: Any, work: Path) -> dict[str, dict[str, Any]]:
    """Size of every complete struct and offset and size of its fields, from the compiler."""
    typedefs, structs, unions = ffi.list_types()
    spelled = [f"struct {n}" for n in structs] + [f"union {n}" for n in unions]
    # An anonymous struct can be spelled by its typedef only.
    known = {t: ffi.typeof(t) for t in (*spelled, *typedefs)}
    spelled += [t for t in typedefs if t not in structs and known[t].kind == "struct" and known[t].cname == t]
    spelled = sorted(t for t in spelled if not t.split()[-1].startswith(("$", "_")) and known[t].fields is not None)
    wanted: list[tuple[str, str | None]] = []
    expressions: list[str] = []
    for name in spelled:
        wanted.append((name, None))
        expressions.append(f"sizeof({name})")
        for member, _ in ffi.typeof(name).fields:
            if member:  # the members of an anonymous union are not addressable under one name
                wanted.append((name, member))
                expressions += [f"offsetof({name}, {member})", f"sizeof((({name} *) 0)->{member})"]
    values = iter(bindgen.probe(expressions, work))
    layout: dict[str, dict[str, Any]] = {}
    for name, member_name in wanted:
        if member_name is None:
            layout[name] = {"size": next(values), "fields": {}}
        else:
            layout[name]["fields"][member_name] = [next(values), next(values)]
    return layout


def generate(bindgen: Bindgen) -> str:
    """The text of the binding module."""
    try:
        import cffi
    except ImportError as err:
        raise SystemExit("bindgen: cffi is not installed for this Python: pip install cffi") from err

    with tempfile.TemporaryDirectory(prefix="pyllamakv-bindgen-") as folder:
        work = Path(folder)
        declared = parse_preprocessed(bindgen.run("E", bindgen.source(), work))
        if "llama_decode" not in declared.functions:
            raise SystemExit(f"bindgen: llama_decode is not declared by {[str(h) for h in bindgen.headers]}")
        names = bindgen.macros()
        defines = [f"#define {n} {v}" for n, v in zip(names, bindgen.probe(names, work), strict=True)]
        text = "\n".join([*defines, *declared.text])
        cdef = _resolve_dimensions(bindgen, text, work)
        ffi = cffi.FFI()
        ffi.cdef(cdef)
        layout = _layout(bindgen, ffi, work)
        ffi.cdef(_PADDED)
        ffi.set_source(MODULE, None)
        with contextlib.redirect_stdout(None):  # cffi announces the file it writes
            ffi.emit_python_code(str(work / "_cdef.py"))
        emitted = (work / "_cdef.py").read_text(encoding="utf-8")

    return "\n".join(
        [
            '"""Binding of llama.cpp, made from its headers when it was built. Do not edit."""',
            emitted,
            f"PIN = {bindgen.pin!r}",
            f"FUNCTIONS = {pprint.pformat(declared.functions, width=118, compact=True)}",
            f"REQUIRED = {pprint.pformat(declared.required, width=118, compact=True)}",
            f"LAYOUT = {pprint.pformat(layout, width=118, compact=True, sort_dicts=False)}",
            f'CDEF = """\\\n{cdef}\n"""',
            "",
        ]
    )


def _default_pin() -> str:
    """The commit in patches/pin.toml of a source checkout; empty when there is none."""
    path = Path(__file__).resolve().parents[2] / "patches" / "pin.toml"
    found = re.search(r'"([0-9a-f]{40})"', path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; writes the module only if its content changed, so that nothing is rebuilt for nothing."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m pyllamakv.build.bindgen", description=summary)
    parser.add_argument("--include", type=Path, action="append", required=True, help="folder of llama.cpp headers")
    parser.add_argument("--compiler", default="cc", help="C compiler, with options if need be (a quoted command line)")
    parser.add_argument("--compiler-arg", action="append", default=[], help="one more option for the compiler")
    parser.add_argument("--pkv-header", type=Path, help="pyllamakv.h")
    parser.add_argument("--pin", default=None, help="upstream commit the headers come from")
    parser.add_argument("--out", type=Path, required=True, help="module to write")
    args = parser.parse_args(argv)
    compiler = [args.compiler] if Path(args.compiler).exists() else shlex.split(args.compiler, posix=os.name != "nt")
    headers: list[Path | str] = list(Bindgen.headers)
    if args.pkv_header is not None:
        headers.append(args.pkv_header.resolve())
    bindgen = Bindgen(
        include=[d.resolve() for d in args.include],
        compiler=[*compiler, *args.compiler_arg],
        headers=headers,
        pin=_default_pin() if args.pin is None else args.pin,
    )
    text = generate(bindgen)
    out: Path = args.out
    if out.is_file() and out.read_text(encoding="utf-8") == text:
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name(f".{out.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8", newline="\n")
    scratch.replace(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
