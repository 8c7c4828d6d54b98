"""What llama.cpp can compute on, and what must be installed to build for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BuildError

__all__ = ["BACKENDS", "Backend", "require"]


@dataclass(frozen=True)
class Backend:
    """One choice of ``--backend``. ``compiler`` is the program that must be found, ``mend`` says how to get it."""

    name: str
    compiler: tuple[str, ...]
    homes: tuple[str, ...]
    mend: str


_TABLE = (
    Backend("cpu", (), (), ""),
    Backend(
        "cuda",
        ("nvcc",),
        ("CUDACXX", "CUDA_PATH", "CUDA_HOME"),
        "install NVIDIA's CUDA toolkit and put its bin folder on PATH, or set CUDACXX to its nvcc",
    ),
    Backend(
        "rocm",
        ("hipcc", "amdclang++"),
        ("HIPCXX", "ROCM_PATH", "HIP_PATH"),
        "install AMD's ROCm (packages hip-dev, rocblas-dev, hipblas-dev) and set ROCM_PATH to its folder",
    ),
    Backend(
        "vulkan",
        ("glslc",),
        ("VULKAN_SDK",),
        "install the Vulkan headers and the shader compiler (Debian: apt-get install libvulkan-dev glslc "
        "spirv-headers; elsewhere the LunarG SDK, and set VULKAN_SDK)",
    ),
)

BACKENDS = tuple(backend.name for backend in _TABLE)


def require(name: str, *, which: Callable[[str], str | None] = shutil.which) -> None:
    """See that the compiler for the backend ``name`` is there: said now, not after minutes of compiling.

    Raises:
        BuildError: it is not; the message says what was looked for, and how to get it.
    """
    backend = next(entry for entry in _TABLE if entry.name == name)
    if not backend.compiler:
        return
    for variable in backend.homes:
        value = os.environ.get(variable)
        if value and any(
            (place / program).exists() or place.name == program for place, program in _places(value, backend)
        ):
            return
    if any(which(program) for program in backend.compiler):
        return
    raise BuildError(
        f"--backend {name} needs {' or '.join(backend.compiler)}, which is neither on PATH nor below "
        f"{', '.join(backend.homes)}: {backend.mend}"
    )


def _places(value: str, backend: Backend) -> list[tuple[Path, str]]:
    root = Path(value)
    return [
        (place, name)
        for program in backend.compiler
        for name in (program, f"{program}.exe")
        for place in (root, root / "bin", root / "Bin")
        if place.exists()
    ]
