"""Plays operations in a child that may die: ``python -m pyllamakv.replay.search.player LIBRARY MODEL``.

The process loads the model once and forks for every example, so that an example costs two contexts and not a model.
It reads one JSON object a line and answers each with one: ``{"begin": settings}`` forks, an operation is carried out,
``{"end": true}`` ends the example. Where the child dies, its parent answers ``{"died": signal}`` in its place, and the
one who asked knows which operation it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyllamakv.errors import PyllamakvError

from .bounds import key_of, measure
from .script import FINISH, Failure, Op, Script

__all__ = ["Player", "main", "play"]

#: Seconds for one operation.
LIMIT = 60


class Player:
    """A model in a library. One example at a time: ``begin``, ``do`` until something fails, ``end``."""

    def __init__(self, library: Path, model: Path) -> None:
        self.model = model
        command = [sys.executable, "-m", "pyllamakv.replay.search.player", str(library), str(model)]
        env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        hello = self._answer()
        if "error" in hello:
            self.close()
            raise PyllamakvError(f"{model}: {hello['error']}")
        self.about: dict[str, Any] = hello
        self._alive = False
        #: Largest error of all comparisons that held, by FA and type of K/V, over the examples so far.
        self.worst: dict[str, float] = {}
        #: Comparisons with an oracle, and refusals, over the examples so far.
        self.compared = self.refusals = 0

    def _ask(self, what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PyllamakvError(f"the player of {self.model} is gone (exit code {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def begin(self, settings: dict[str, Any]) -> Failure | None:
        self.end()
        self._alive = True
        self._setting = key_of(settings)
        return self._judge(self._ask({"begin": settings}), "open")

    def do(self, op: Op) -> Failure | None:
        """Carries out one operation."""
        return self._judge(self._ask(op), op["op"])

    def _judge(self, answer: dict[str, Any], operation: str) -> Failure | None:
        self.worst[self._setting] = max(self.worst.get(self._setting, 0.0), answer.get("worst", 0.0))
        self.compared += answer.get("compared", 0)
        self.refusals += answer.get("refusals", 0)
        self.lengths: list[int] = answer.get("next", [])
        if "died" in answer:
            self._alive = False
            code = int(answer["died"])
            late = code == signal.SIGALRM
            how = (
                f"no answer in {LIMIT} s"
                if late
                else f"signal {code} ({signal.Signals(code).name})"
                if code
                else "exit"
            )
            return Failure("died", operation, how)
        if "failure" in answer:
            return Failure(**answer["failure"])
        return None

    def end(self) -> None:
        """The example's process goes."""
        if self._alive:
            self._ask({"end": True})
            self._alive = False

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()

    def __enter__(self) -> Player:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def play(player: Player, script: Script) -> tuple[Failure | None, int]:
    """The whole script and the final check; what went wrong, and the index of the operation that showed it."""
    failure = player.begin(script.settings)
    ops, at = [*script.ops, FINISH], -1
    while failure is None and at + 1 < len(ops):
        at += 1
        failure = player.do(ops[at])
    player.end()
    return failure, at


# the other side


def _read_line() -> bytes:
    """One line from standard input, and not a byte more: the rest may be meant for the parent or the child."""
    out = bytearray()
    while not out.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        out += byte
    return bytes(out)


def _write(answer: dict[str, Any]) -> None:
    os.write(_OUT, json.dumps(answer).encode() + b"\n")


_OUT = 1


def _example(engine: Any, settings: dict[str, Any], bounds: dict[str, float]) -> None:
    """In the child: operations until the end."""
    from .world import World  # loaded before the fork

    signal.alarm(LIMIT)
    world = World(engine, settings, bounds)
    _write({"ok": True})
    while line := _read_line():
        op = json.loads(line)
        if "end" in op:
            return
        signal.alarm(LIMIT)
        failure = world.play(op)
        done = {"worst": world.worst, "compared": world.compared, "refusals": world.refusals}
        world.compared = world.refusals = 0
        answer: dict[str, Any] = {**done, "next": [world.next_pos(s) for s in range(world.n_seq)]}
        if failure is not None:
            answer["failure"] = asdict(failure)
        _write(answer)


def _serve(engine: Any, bounds: dict[str, float]) -> None:
    while line := _read_line():
        asked = json.loads(line)
        if "begin" not in asked:
            _write({"ok": True})  # an end for an example that is gone
            continue
        child = os.fork()
        if child == 0:
            code = 70
            try:
                _example(engine, asked["begin"], bounds)
                code = 0
            except BaseException as error:
                print(f"player: {type(error).__name__}: {error}", file=sys.stderr)
                code = 71
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _write({"died": os.WTERMSIG(status)})
        elif os.WEXITSTATUS(status):
            _write({"died": 0})
        else:
            _write({"ok": True})


def main(arguments: list[str]) -> int:
    """Serves until standard input ends."""
    global _OUT
    # whatever the library prints must not come between the answers
    _OUT = os.dup(1)
    os.dup2(2, 1)
    from pyllamakv.native import load
    from pyllamakv.replay.child import quiet
    from pyllamakv.replay.engine import Engine

    from . import steps  # noqa: F401 - once, for all children

    quiet()
    try:
        library = load(Path(arguments[0]))
        engine = Engine(library, Path(arguments[1]))
        bounds = measure(engine)
    except PyllamakvError as error:
        _write({"error": str(error)})
        return 1
    about = {"library": str(library.path), "build": library.build_info, "architecture": engine.architecture}
    _write({**about, "n_vocab": engine.n_vocab, "bounds": bounds})
    _serve(engine, bounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
