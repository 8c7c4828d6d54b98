"""C calls Python: log lines and the abort question. No exception ever travels through C."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["AbortFlag", "LogBridge", "captured_log"]

logger = logging.getLogger("pyllamakv.llama")

# ggml_log_level: NONE, DEBUG, INFO, WARN, ERROR, CONT
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONT = 5


class _Captures(threading.local):
    """Per thread: the open line, its level, and the lists that want to see every line."""

    def __init__(self) -> None:
        self.open = ""
        self.level = logging.INFO
        self.wanted: list[list[tuple[int, str]]] = []


_captures = _Captures()


@contextlib.contextmanager
def captured_log() -> Iterator[list[tuple[int, str]]]:
    """Collect what the library logs on this thread while the block runs: ``(logging level, line)``."""
    lines: list[tuple[int, str]] = []
    _captures.wanted.append(lines)
    try:
        yield lines
    finally:
        _captures.wanted = [wanted for wanted in _captures.wanted if wanted is not lines]


def _receive(level: int, text: str) -> None:
    """Put pieces together to lines (upstream prints progress dots bit by bit) and hand them on."""
    if level != _CONT:
        if _captures.open:
            _emit(_captures.open)
            _captures.open = ""
        _captures.level = _LEVELS.get(level, logging.INFO)
    *lines, _captures.open = (_captures.open + text).split("\n")
    for line in lines:
        _emit(line)


def _emit(line: str) -> None:
    line = line.rstrip()
    if line:
        for wanted in _captures.wanted:
            wanted.append((_captures.level, line))
        logger.log(_captures.level, "%s", line)


class LogBridge:
    """llama.cpp's log into the logger ``pyllamakv.llama``. Lives as long as the process, like the library."""

    def __init__(self, ffi: Any, functions: Any) -> None:
        # Without a handler, Python would print warnings itself; a library stays silent until it is asked to speak.
        logging.getLogger("pyllamakv").addHandler(logging.NullHandler())

        def receive(level: int, text: Any, _data: Any) -> None:
            # A logging handler of the user may raise anything; there is nobody above that could take it.
            with contextlib.suppress(Exception):
                _receive(int(level), ffi.string(text).decode("utf-8", "replace"))

        self._callback = ffi.callback("ggml_log_callback", receive, onerror=_quiet)
        functions.llama_log_set(self._callback, ffi.NULL)


def _quiet(*_: object) -> bool:
    """For cffi: an exception that reaches the edge (KeyboardInterrupt, say) is dropped instead of printed."""
    return True


class AbortFlag:
    """The abort callback of one context: ``question`` is asked between operations; true stops the decode.

    An exception out of ``question`` stops the decode too, and is kept for ``reraise``.
    """

    def __init__(self, ffi: Any, question: Callable[[], object]) -> None:
        self._question = question
        self._raised: BaseException | None = None
        self.callback = ffi.callback("ggml_abort_callback", self._ask, error=True)

    def _ask(self, _data: Any) -> bool:
        if self._raised is not None:
            return True
        try:
            return bool(self._question())
        except BaseException as err:
            self._raised = err
            return True

    def reraise(self) -> None:
        """Raise what ``question`` raised during the last decode, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
