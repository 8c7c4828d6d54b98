"""A process that may die: does what test_rubbish asks for, one request at a time, and says how it went.

Requests and answers are pickles on standard input and output. A request is a list of steps ``(target, method, args,
keywords)`` that run on fresh objects; the answer lists the outcome of each, ``("unexpected", traceback)`` for an
exception that callers should never see.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import pyllamakv as kv

# What would be too long to print.
LARGE: dict[str, Callable[[int], str]] = {
    "@long": lambda n: "a" * n,
    "@nested": lambda n: "root ::= " + "(" * n + '"a"' + ")" * n,
    "@rules": lambda n: "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(n)) + f'\nr{n} ::= "a"',
}
CONTEXT = {"n_ctx": 256, "n_batch": 32, "n_seq_max": 3, "n_threads": 1}


def special(value: Any) -> Any:
    """Values that a pickle cannot carry are spelled ``("@", name)``, containers are searched for them."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "@":
        if value[1] == "always":
            return lambda: True
        if value[1] == "never":
            return lambda: False
        if value[1] == "raises":
            return lambda: 1 / 0
        if value[1] == "object":
            return object()
    if isinstance(value, tuple) and len(value) == 2 and value[0] in LARGE:
        return LARGE[value[0]](value[1])
    if isinstance(value, tuple) and len(value) == 5 and value[0] == "@entry":
        return kv.Entry(*map(special, value[1:]))
    return [special(v) for v in value] if isinstance(value, list) else value


class Objects:
    """What steps act on: made when first asked for."""

    def __init__(self, model: kv.Model, options: dict[str, Any]) -> None:
        self.model = model
        self.decoded = options.pop("decoded", False)  # whether sequences 0 and 1 hold something from the start
        self.options = options
        self.context: Any = None
        self.sampler: Any = None

    def __getitem__(self, target: str) -> Any:
        if target in ("context", "memory") and self.context is None:
            self.context = self.model.context(**{**CONTEXT, **self.options})
            if self.decoded:
                self.context.decode(list(range(12)))
                self.context.decode(list(range(5)), seq=1)
        if target == "sampler" and self.sampler is None:
            self.sampler = kv.Sampler(self.model)
        return self.context.memory if target == "memory" else getattr(self, target)

    def close(self) -> None:
        for thing in (self.context, self.sampler):
            if thing is not None:
                thing.close()


def step(objects: Objects, target: str, method: str, args: list[Any], keywords: dict[str, Any]) -> tuple[str, str]:
    rows = [a for a in args if isinstance(a, tuple) and a[:1] == ("@rows",)]
    args = [special(a) for a in args]
    if rows:
        args = [np.full((rows[0][1], objects.model.n_embd_inp), rows[0][2], np.float32)]
    keywords = {k: special(v) for k, v in keywords.items()}
    try:
        if method == "@move":
            result = move(objects["memory"], *args)
        elif target == "new":
            result = getattr(kv, method)(*args, **keywords)
            result.close()
        elif method == "sample" and len(args) == 1 and isinstance(args[0], str) and args[0] == "context":
            result = objects["sampler"].sample(objects["context"])
        elif method.startswith("="):
            setattr(objects[target], method[1:], args[0] if args else None)
            result = None
        elif method.startswith("."):
            result = getattr(objects[target], method[1:])
        else:
            result = getattr(objects[target], method)(*args, **keywords)
        if isinstance(result, np.ndarray):
            result = result.sum()  # touch the memory that was handed out
        if isinstance(result, (kv.Context, kv.Sampler)) and method in ("context", "clone"):
            result.close()
    except kv.PyllamakvError as err:
        return type(err).__name__, str(err)
    except ZeroDivisionError:
        return "abort", ""  # what the abort callback raised, handed through
    except TypeError as err:
        if "argument" in str(err):  # wrong count or name of arguments: Python's own answer
            return "TypeError", str(err)
        return "unexpected", traceback.format_exc()
    except Exception:
        return "unexpected", traceback.format_exc()
    return "ok", ""


def move(memory: kv.Memory, src: int, dst: int, where: int, flip: int) -> None:
    """Save a sequence, turn some bits of one byte, load it as another one."""
    blob = bytearray(memory.save(src))
    blob[where % len(blob)] ^= flip
    memory.load(dst, blob)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    model = kv.Model(sys.argv[1])
    pickle.dump(("ready", model.library.has_pkv), answers)
    answers.flush()
    while True:
        try:
            options, steps = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        objects = Objects(model, options)
        pickle.dump([step(objects, *one) for one in steps], answers)
        answers.flush()
        objects.close()


if __name__ == "__main__":
    main()
