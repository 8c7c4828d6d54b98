"""From the pinned llama.cpp and our patch series to a library: ``python -m pyllamakv.build``.

Standard library only, and nothing else of pyllamakv but its errors and paths: this room runs before anything is
compiled or installed (the binding generator alone needs cffi).

    pin, digest, source   which llama.cpp, how to get it, how to know it is the right one
    patch, series         unified diffs, applied without a ``patch`` program
    tree                  pristine files + series in a work folder, stamped
    toolchain, backends   what to compile with, and for
    process, driver       running it, and saying what went wrong
    refresh               for maintainers: edit a patch, write it again
"""

from __future__ import annotations

__all__: list[str] = []
