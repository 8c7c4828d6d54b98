"""Loading: what is checked before a library is trusted, and what a loaded one tells. Libraries that cannot be loaded
into this process any more are compiled here, or tried in another one."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyllamakv import native
from pyllamakv.errors import LibraryMismatchError, LibraryNotFoundError
from pyllamakv.native import abi, callbacks

COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)


@pytest.fixture(scope="module")
def library() -> native.Library:
    return native.load()


def test_a_library_is_loaded_once(library: native.Library, tmp_path: Path) -> None:
    assert native.load() is library is native.loaded()
    assert native.load(library.path) is library
    assert native.load(library.path.parent) is library
    other = tmp_path / library.path.name
    shutil.copy(library.path, other)
    with pytest.raises(LibraryMismatchError, match=r"this process has loaded .* already"):
        native.load(other)


def test_what_it_says_about_itself(library: native.Library) -> None:
    assert library.variant in ("patched", "stock", "foreign")
    assert library.has_pkv == (library.variant == "patched")
    assert library.version
    assert any(name == "CPU" for name, _ in library.devices())
    assert library.optional("llama_no_such_function") is None
    assert str(library.path) in repr(library)


def test_every_declared_function_is_there(library: native.Library) -> None:
    missing = [f for f in library.binding.FUNCTIONS if library.optional(f) is None]
    assert [f for f in missing if not f.startswith("pkv_")] == []
    assert not (library.has_pkv and missing)


def test_layout_that_differs_is_named_by_struct_and_field(library: native.Library) -> None:
    binding: Any = SimpleNamespace(ffi=library.ffi, LAYOUT={k: dict(v) for k, v in library.binding.LAYOUT.items()})
    abi.check_layout(binding)
    batch = binding.LAYOUT["struct llama_batch"]
    batch["fields"] = {**batch["fields"], "pos": [20, 8]}
    with pytest.raises(LibraryMismatchError, match=r"llama_batch\.pos lies at byte 24 .* at byte 20"):
        abi.check_layout(binding)
    batch["fields"] = {"pos": [24, 8]}
    batch["size"] = 64
    with pytest.raises(LibraryMismatchError, match="llama_batch has 56 bytes for Python and 64"):
        abi.check_layout(binding)
    batch["fields"] = {"new_field": [0, 4]}
    with pytest.raises(LibraryMismatchError, match="no field new_field"):
        abi.check_layout(binding)


FAKE = """
#include <string.h>
{functions}
struct model {{ char bytes[{model}]; }}; struct context {{ char bytes[{context}]; }};
struct model llama_model_default_params(void) {{ struct model m; memset(&m, 0, sizeof m); return m; }}
struct context llama_context_default_params(void) {{
    struct context c; memset(&c, 0, sizeof c); memset(c.bytes, {fill}, sizeof c); return c;
}}
"""


def fake(library: native.Library, folder: Path, *, leave_out: str = "", larger: int = 0, fill: int = 7) -> Path:
    """A shared library with libllama's names: of another version."""
    skip = {"llama_model_default_params", "llama_context_default_params", leave_out}
    source = folder / "fake.c"
    source.write_text(
        FAKE.format(
            functions="\n".join(f"void {f}(void) {{}}" for f in library.binding.REQUIRED if f not in skip),
            model=library.ffi.sizeof("struct llama_model_params"),
            context=library.ffi.sizeof("struct llama_context_params") + larger,
            fill=fill,
        )
    )
    out = folder / library.path.name
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-w", "-o", str(out), str(source)], check=True)
    return out


def tried_elsewhere(path: Path) -> str:
    """The error that loading raises, from a process of its own."""
    code = (
        "import sys\nfrom pyllamakv import native, errors\n"
        "try:\n    native.load(sys.argv[1])\n"
        "except errors.PyllamakvError as err:\n    print(type(err).__name__, err)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, f"died with {done.returncode}: {done.stderr}"
    return done.stdout


@pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="compiles a library with cc")
def test_a_library_of_another_version_is_refused(library: native.Library, tmp_path: Path) -> None:
    lacking = fake(library, tmp_path, leave_out="llama_decode")
    assert "LibraryMismatchError" in (said := tried_elsewhere(lacking)) and "does not export llama_decode" in said
    moved = fake(library, tmp_path)
    said = tried_elsewhere(moved)
    assert "LibraryMismatchError" in said and "cannot be its default" in said and "struct llama_" in said
    # Structs that are larger than ours are returned without writing over anything.
    larger = fake(library, tmp_path, larger=700)
    assert "LibraryMismatchError" in tried_elsewhere(larger)


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path, library: native.Library) -> None:
    junk = tmp_path / library.path.name
    junk.write_bytes(b"\x7fELF junk")
    said = tried_elsewhere(junk)
    assert said.startswith(LibraryNotFoundError.__name__) and "cannot be loaded" in said


# Callbacks ------------------------------------------------------------------------------------------------------------


def test_log_lines_are_put_together_and_captured(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pyllamakv.llama")
    with native.captured_log() as lines:
        callbacks._receive(2, "loading")
        callbacks._receive(5, "...")
        callbacks._receive(5, " done\nsecond")
        callbacks._receive(4, "broken\n")
    callbacks._receive(2, "not captured\n")
    assert lines == [(logging.INFO, "loading... done"), (logging.INFO, "second"), (logging.ERROR, "broken")]
    assert [r.getMessage() for r in caplog.records][-1] == "not captured"


def test_a_handler_that_raises_does_not_reach_c(library: native.Library) -> None:
    class Broken(logging.Handler):
        seen = 0

        def emit(self, record: logging.LogRecord) -> None:
            Broken.seen += 1
            raise RuntimeError("no")

    logger = logging.getLogger("pyllamakv.llama")
    handler = Broken()
    logger.addHandler(handler)
    try:
        # Logs an error, and returns NULL.
        params = library.lib.llama_model_default_params()
        assert library.lib.llama_model_load_from_file(b"/no/such/file.gguf", params) == library.ffi.NULL
        assert Broken.seen
    finally:
        logger.removeHandler(handler)


def test_an_exception_in_the_abort_question_stops_and_is_kept(library: native.Library) -> None:
    def question() -> bool:
        raise KeyError("mine")

    flag = native.AbortFlag(library.ffi, question)
    assert flag.callback(library.ffi.NULL) is True
    assert flag.callback(library.ffi.NULL) is True
    with pytest.raises(KeyError, match="mine"):
        flag.reraise()
    flag.reraise()  # once
