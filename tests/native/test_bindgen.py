"""The binding generator, on headers made for the purpose and on the ones that the installed library was built from."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyllamakv.build.bindgen import Bindgen, generate, main, parse_preprocessed

COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on PATH")

LLAMA_H = """
#pragma once
#include "ggml.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#define LLAMA_API __attribute__ ((visibility ("default")))
#define DEPRECATED(func, hint) func __attribute__((deprecated(hint)))
#define LLAMA_DEFAULT_SEED 0xFFFFFFFF
#define LLAMA_TOKEN_NULL -1
#define LLAMA_MAGIC_A 0x67676c61u // 'ggla'
#define LLAMA_MAGIC LLAMA_MAGIC_A
#define LLAMA_NAME "no number"
#define LLAMA_TWICE(x) ((x) + (x))
struct llama_context;
typedef int32_t llama_token;
typedef struct llama_batch { int32_t n; llama_token * token; } llama_batch;
typedef struct llama_batch llama_batch_t;
enum llama_kind { LLAMA_KIND_A = -1, LLAMA_KIND_B = 1 << 3, LLAMA_KIND_C = LLAMA_KIND_B };
struct llama_override { char key[128]; union { int64_t i; double f; char text[GGML_MAX_NAME / sizeof(int32_t)]; }; };
struct llama_model_params { bool a; double b; };
struct llama_context_params { uint32_t n_ctx; bool flag; enum llama_kind kind; void (*call)(float, void * data); };
LLAMA_API int32_t llama_decode(struct llama_context * ctx, struct llama_batch batch);
LLAMA_API struct llama_model_params llama_model_default_params(void);
LLAMA_API void llama_write(struct llama_context * ctx, FILE * file);
DEPRECATED(LLAMA_API int32_t llama_old(const char * text), "use llama_decode; really (now)");
static inline int llama_helper(int x) { if (x) { return 1; } return 2; }
"""
GGML_H = """
#pragma once
#include <stddef.h>
#include <stdint.h>
#define GGML_MAX_NAME 64
struct ggml_tensor { int64_t ne[4]; char name[GGML_MAX_NAME]; int32_t op_params[GGML_MAX_NAME / sizeof(int32_t)]; };
typedef struct ggml_tensor * ggml_ref;
typedef struct ggml_tensor * ggml_ref;
static const size_t GGML_TENSOR_SIZE = sizeof(struct ggml_tensor);
extern size_t ggml_nbytes(const struct ggml_tensor * tensor);
extern struct ggml_tensor * ggml_add_by_hand(struct ggml_tensor * a, struct ggml_tensor * b);
"""


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    (tmp_path / "llama.h").write_text(LLAMA_H)
    (tmp_path / "ggml.h").write_text(GGML_H)
    return tmp_path


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("made", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(headers: Path, out: Path) -> Any:
    arguments = ["--include", str(headers), "--compiler", str(COMPILER), "--pin", "abc", "--out", str(out)]
    # The generator's usual headers; these are there to be found, and empty.
    for name in ("gguf.h", "ggml-cpu.h"):
        (headers / name).write_text("")
    assert main(arguments) == 0
    return load(out)


@needs_compiler
def test_types_functions_and_numbers_come_from_the_headers(headers: Path) -> None:
    made = run(headers, headers / "out" / "_cdef.py")
    assert made.PIN == "abc"
    assert made.FUNCTIONS == ["ggml_nbytes", "llama_decode", "llama_model_default_params", "llama_write", "llama_old"]
    assert made.REQUIRED == ["llama_decode", "llama_model_default_params", "llama_write"]  # a deprecated one may go
    lib = made.ffi.dlopen(None)
    assert (lib.LLAMA_DEFAULT_SEED, lib.LLAMA_TOKEN_NULL, lib.LLAMA_MAGIC) == (0xFFFFFFFF, -1, 0x67676C61)
    assert (lib.LLAMA_KIND_A, lib.LLAMA_KIND_C) == (-1, 8)
    assert not hasattr(made.ffi.new("struct llama_batch *"), "LLAMA_NAME")
    assert "LLAMA_TWICE" not in made.CDEF and "llama_helper" not in made.CDEF


@needs_compiler
def test_layout_is_the_compilers(headers: Path) -> None:
    made = run(headers, headers / "_cdef.py")
    ffi, layout = made.ffi, made.LAYOUT
    assert layout["struct ggml_tensor"]["fields"]["op_params"] == [96, 64]  # 64 / sizeof(int32_t) was worked out
    assert layout["struct llama_override"]["size"] == ffi.sizeof("struct llama_override") == 144
    assert layout["struct llama_batch"] == {"size": 16, "fields": {"n": [0, 4], "token": [8, 8]}}
    for name, entry in layout.items():
        assert ffi.sizeof(name) == entry["size"]
        for member, (offset, _) in entry["fields"].items():
            assert ffi.offsetof(name, member) == offset


@needs_compiler
def test_a_second_run_leaves_the_file_alone(headers: Path) -> None:
    out = headers / "_cdef.py"
    run(headers, out)
    before = out.stat().st_mtime_ns
    run(headers, out)
    assert out.stat().st_mtime_ns == before
    (headers / "llama.h").write_text(LLAMA_H.replace("llama_write", "llama_put"))
    assert "llama_put" in run(headers, out).FUNCTIONS
    assert sorted(p.name for p in headers.iterdir() if p.name.startswith(".")) == []


@needs_compiler
def test_a_compilers_error_is_shown_with_the_command(headers: Path, tmp_path: Path) -> None:
    (headers / "llama.h").write_text("#error these are not the headers\n")
    with pytest.raises(SystemExit, match=r"(?s)probe\.c failed with exit code .*these are not the headers"):
        generate(Bindgen(include=[headers], compiler=[str(COMPILER)], headers=["llama.h"]))
    (headers / "llama.h").write_text("int other(void);\n")
    with pytest.raises(SystemExit, match="llama_decode is not declared"):
        generate(Bindgen(include=[headers], compiler=[str(COMPILER)], headers=["llama.h"]))


def test_a_missing_compiler_is_named(headers: Path) -> None:
    with pytest.raises(SystemExit, match="cannot run the compiler 'no-such-cc'"):
        generate(Bindgen(include=[headers], compiler=["no-such-cc"], headers=["llama.h"]))


def test_what_msvc_prints_is_understood() -> None:
    text = (
        '#line 1 "C:\\\\src\\\\include\\\\llama.h"\n'
        "__declspec(dllimport) int llama_decode(struct llama_context * ctx);\n"
        '__declspec(deprecated("old; use (the) other")) __declspec(dllimport) int llama_old(int a);\n'
        "#pragma warning(push)\n"
        '#line 90 "C:\\\\Program Files\\\\ucrt\\\\stdio.h"\n'
        "int __cdecl printf(char const * format, ...);\n"
        '#line 7 "C:\\\\src\\\\include\\\\llama.h"\n'
        "struct llama_pair { int a; int b; };\n"
    )
    declared = parse_preprocessed(text)
    assert declared.functions == ["llama_decode", "llama_old"]
    assert declared.required == ["llama_decode"]
    assert "printf" not in "".join(declared.text)
    assert declared.text[0] == "int llama_decode(struct llama_context * ctx);"
    assert declared.text[-1].startswith("struct llama_pair {")


def test_msvc_gets_its_own_options() -> None:
    assert Bindgen(include=[], compiler=["C:/VC/cl.exe"]).msvc
    assert Bindgen(include=[], compiler=["clang-cl"]).msvc
    assert not Bindgen(include=[], compiler=["x86_64-w64-mingw32-gcc"]).msvc
