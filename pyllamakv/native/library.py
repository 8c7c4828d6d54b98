"""The loaded llama.cpp: functions, constants, what it was built from. One library per process."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import LibraryMismatchError, LibraryNotFoundError
from . import abi
from .callbacks import LogBridge
from .locate import find_binding, find_library

__all__ = ["Library", "load", "loaded"]

_PKV_ABI = 1
_DEVICE_CPU = "GGML_BACKEND_DEVICE_TYPE_CPU"


class _Functions:
    """Functions and constants of several shared libraries under one roof, looked up once each.

    On Linux and macOS, libllama's handle finds what ggml exports; Windows wants every DLL asked by name.
    """

    def __init__(self, ffi: Any, handles: list[Any]) -> None:
        self._handles = handles
        # Not declared in the binding, and declared but not exported.
        self._absent = (AttributeError, ffi.error)

    def __getattr__(self, name: str) -> Any:
        for handle in self._handles:
            try:
                value = getattr(handle, name)
            except self._absent:
                continue
            setattr(self, name, value)
            return value
        raise AttributeError(name)


class Library:
    """A libllama with its binding.

    ``lib`` has every function, enum value and integer macro of ``llama.h``, ``ggml-backend.h`` and ``gguf.h`` (and of
    ``pyllamakv.h`` where the library has ours); ``ffi`` is cffi's. Loading checks the binary interface first.
    """

    def __init__(self, path: Path, binding: ModuleType) -> None:
        self.path = path
        self.binding = binding
        self.ffi: Any = binding.ffi
        abi.check_layout(binding)
        self.lib: Any = _Functions(self.ffi, [self._open(p) for p in (path, *_siblings(path))])
        abi.check_functions(binding, self.lib, path)
        abi.check_defaults(binding, self.lib, path)
        version = self.optional("pkv_abi_version")
        if version is not None and version() != _PKV_ABI:
            raise LibraryMismatchError(
                f"{path} speaks version {version()} of the pkv_* interface, this package version {_PKV_ABI}: "
                "build the library again with this package"
            )
        self.has_pkv = version is not None
        self._log = LogBridge(self.ffi, self.lib)
        self.lib.llama_backend_init()
        self._load_backends()
        self.build_info = self._read_build_info()

    def __repr__(self) -> str:
        return f"<Library {self.path} ({self.variant})>"

    @property
    def variant(self) -> str:
        """``patched``, ``stock``, or ``foreign`` for a library that says nothing about itself."""
        return str(self.build_info.get("variant", "patched" if self.has_pkv else "foreign"))

    @property
    def version(self) -> str:
        """llama.cpp's own version text."""
        return self.text(self.lib.llama_version())

    def text(self, pointer: Any) -> str:
        """A C string, ``""`` for NULL."""
        return "" if pointer == self.ffi.NULL else self.ffi.string(pointer).decode("utf-8", "replace")

    def optional(self, name: str) -> Any | None:
        """A function that the library may lack (``pkv_*``), or None."""
        return getattr(self.lib, name, None)

    def reason(self) -> str:
        """Why the last ``pkv_*`` call on this thread was refused; empty without such a call."""
        last = self.optional("pkv_last_reason")
        return "" if last is None else self.text(last())

    def devices(self) -> list[tuple[str, str]]:
        """``(name, description)`` of every device that the library can compute on."""
        lib = self.lib
        found = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
        return [
            (self.text(lib.ggml_backend_dev_name(d)), self.text(lib.ggml_backend_dev_description(d))) for d in found
        ]

    def _open(self, path: Path) -> Any:
        try:
            return self.ffi.dlopen(os.fspath(path))
        except OSError as err:
            raise LibraryNotFoundError(f"{path} is there but cannot be loaded: {err}") from err

    def _load_backends(self) -> None:
        """A build with loadable backends keeps them beside libllama, where its own search does not look."""
        lib = self.lib
        if lib.ggml_backend_dev_by_type(getattr(lib, _DEVICE_CPU)) == self.ffi.NULL:
            lib.ggml_backend_load_all_from_path(os.fsencode(self.path.parent))
        if lib.ggml_backend_dev_by_type(getattr(lib, _DEVICE_CPU)) == self.ffi.NULL:
            raise LibraryMismatchError(f"{self.path} has no CPU backend, neither built in nor beside it: build again")

    def _read_build_info(self) -> dict[str, Any]:
        own = self.optional("pkv_build_info")
        beside = self.path.parent / "build-info.json"
        text = self.text(own()) if own is not None else beside.read_text("utf-8") if beside.is_file() else "{}"
        try:
            info = json.loads(text)
        except ValueError as err:
            raise LibraryMismatchError(f"the build info of {self.path} is not JSON: {err}") from err
        pin = str(info.get("pin", "")) if isinstance(info, dict) else ""
        if pin and self.binding.PIN and pin != self.binding.PIN:
            raise LibraryMismatchError(
                f"{self.path} was built from llama.cpp {pin[:12]}, the binding from "
                f"{self.binding.PIN[:12]}: build again"
            )
        return info if isinstance(info, dict) else {}


def _siblings(path: Path) -> list[Path]:
    """ggml's libraries beside libllama, where they have to be opened one by one."""
    if os.name != "nt":
        return []
    if hasattr(os, "add_dll_directory"):
        os.add_dll_directory(str(path.parent))
    names = ("ggml.dll", "ggml-base.dll", "ggml-cpu.dll", "libggml.dll", "libggml-base.dll", "libggml-cpu.dll")
    return [path.parent / name for name in names if (path.parent / name).is_file()]


def _import_binding(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pyllamakv.native._cdef", path)
    if spec is None or spec.loader is None:
        raise LibraryNotFoundError(f"the binding {path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as err:
        raise LibraryMismatchError(f"the binding {path} cannot be imported: {err}; build again") from err
    for name in ("ffi", "LAYOUT", "FUNCTIONS", "REQUIRED", "PIN"):
        if not hasattr(module, name):
            raise LibraryMismatchError(f"the binding {path} has no {name}: it is not one of ours, or cut short")
    return module


_lock = threading.Lock()
_loaded: Library | None = None


def loaded() -> Library | None:
    """The library of this process, if one was loaded."""
    return _loaded


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """Load libllama, once per process; see ``locate`` for where it is looked for.

    Args:
        path: a library file, or a folder that has one. None takes the one that is loaded, or the default.

    Raises:
        LibraryNotFoundError: there is none, or the system cannot load it.
        LibraryMismatchError: it is of another version, or another library is loaded already.
    """
    global _loaded
    with _lock:
        if _loaded is not None and path is None:
            return _loaded
        found = find_library(path)
        if _loaded is None:
            _loaded = Library(found, _import_binding(find_binding(found)))
        elif found != _loaded.path:
            raise LibraryMismatchError(
                f"{found} was asked for, but this process has loaded {_loaded.path} already, and two copies of "
                "llama.cpp in one process would share symbols: use a new process for the other one"
            )
        return _loaded
