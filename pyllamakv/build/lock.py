"""One process at a time: an advisory lock on a file, by the operating system, so that a crash leaves none behind."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["locked"]


@contextlib.contextmanager
def locked(path: Path, *, waiting: Callable[[], None] | None = None, poll: float = 0.2) -> Iterator[None]:
    """Hold the lock file ``path`` (made where missing, never removed) during the block.

    ``waiting`` is called once, when another process holds it. ``poll`` is the seconds between tries.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while not _try(handle):
            if waiting is not None:
                waiting()
                waiting = None
            time.sleep(poll)
        try:
            yield
        finally:
            _release(handle)
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try(handle: int) -> bool:
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _release(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _release(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)
