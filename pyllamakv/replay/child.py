"""One scenario on one model in one library, in a process that may die: ``python -m pyllamakv.replay.child …``.

What happens is written to a file as it happens, one JSON object a line (``step``, ``check``, ``measure``, and ``end``
when the scenario came to its end), so that whatever kills the process leaves the record of how far it came.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllamakv.errors import DecodeError, PyllamakvError, StateError

from .scenario import find
from .stage import Stage

__all__ = ["main", "quiet"]


def _peak_memory() -> float | None:
    """Peak resident memory in MiB, where the platform tells."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def quiet() -> None:
    """No core dumps, and no debugger that upstream's abort handler starts to print a backtrace."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the scenario came to its end, whatever it found; 1 and a record of the error when it could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--path", action="append", default=[], metavar="MODEL=FILE", help="where a model's file is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args(arguments)
    paths = {name: Path(path) for name, _, path in (text.partition("=") for text in given.path)}
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    quiet()

    with given.record.open("a", encoding="utf-8") as record:

        def emit(event: dict[str, Any]) -> None:
            record.write(json.dumps(event) + "\n")
            record.flush()

        try:
            from pyllamakv.native import load

            library = load(given.library)
            emit({"library": str(library.path), "build": library.build_info})
            stage = Stage(library, given.model, paths.__getitem__, emit, threads=given.threads)
            start = time.perf_counter()
            try:
                find([given.scenario])[0].run(stage)
            except (DecodeError, StateError) as error:
                # a call of the C API failed where it had to succeed: that is a finding
                stage.hold("every call succeeds", False, str(error))
            emit({"end": True, "seconds": time.perf_counter() - start, "peak_mib": _peak_memory()})
            record.flush()
            stage.close()
        except PyllamakvError as error:
            emit({"error": f"{type(error).__name__}: {error}"})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
