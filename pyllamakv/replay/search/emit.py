"""A failing script as a program: the calls one by one, with their numbers, and the fresh context beside them.

It needs the package, the model and a library; nothing of the search's judgement is in it, so that a reader sees what is
called and what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .bounds import bound_of
from .history import positions
from .player import Player
from .script import FINISH, Failure, Op, Script, tokens_of

__all__ = ["program"]

_HEAD = '''"""{about}

{model}, found by `pyllamakv search`. The last lines say what came out and what should have.

    python {name}.py --model {model} [--library PATH]
"""

import argparse
from pathlib import Path

from pyllamakv.native import find_library, load
from pyllamakv.replay.engine import PARTIAL_ONLY, Engine
from pyllamakv.replay.oracle import nmse
from pyllamakv.replay.search.window import SearchWindow

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path, required=True)
parser.add_argument("--library", help="a folder or file; the installed library by default")
given = parser.parse_args()

SETTINGS = {settings}
engine = Engine(load(find_library(given.library)), given.model)
ctx = SearchWindow(engine, SETTINGS)
slots = {{}}


def show(what, value):
    print(f"{{what:60}} {{value}}   positions", *(ctx.positions(seq) for seq in range(SETTINGS["n_seq_max"])))


def fresh():
    global ctx
    ctx.close()
    ctx = SearchWindow(engine, SETTINGS)


# what was done: (sequence, position of the first token, tokens)
'''


class _Lines:
    """Where each sequence goes on, from the player: positions are not part of a script."""

    def __init__(self, n_vocab: int, n_seq: int) -> None:
        self.n_vocab, self.n_seq = n_vocab, n_seq
        self.next = [0] * n_seq
        self.kept: dict[int, tuple[int, int]] = {}

    def parts(self, op: Op) -> str:
        out: dict[int, str] = {}
        for i, (seq, count) in enumerate(op["parts"]):
            if seq < self.n_seq and seq not in out:
                tokens = list(tokens_of(op["seed"] + 7919 * i, count, self.n_vocab))
                out[seq] = f"({seq}, {self.next[seq]}, {tokens})"
        auto = ", auto=True" if op.get("auto") else ""
        return f"[{', '.join(out.values())}], mix={op.get('mix', False)}{auto}"

    def lines(self, op: Op) -> Iterator[str]:
        """The calls of one operation."""
        kind = op["op"]
        if kind == "poison":
            pos = self.next[op["seq"]]
            yield f"ctx.decode_nan({op['seq']}, {pos}, {op['count']})"
            others = [s for s in range(self.n_seq) if s != op["seq"]]
            yield from {
                "clear": ["ctx.clear(False)"],
                "keep": [f"ctx.keep({others[0]}, strict=False)"] if others else [],
                "copy": [f"ctx.copy({others[0]}, {op['seq']}, -1, -1, strict=True)"] if others else [],
                "tail": [f"ctx.remove({op['seq']}, {pos}, -1, strict=True)"],
                "whole": [f"ctx.remove({op['seq']}, -1, -1, strict=False)"],
            }.get(op["how"], [])
        elif kind == "restore_all" and op["fresh"]:
            yield "fresh()"
            yield f"ctx.try_load_whole(slots[{op['slot']}])"
        elif kind == "move":
            for seq in range(self.n_seq):
                yield f"slots['move', {seq}] = ctx.save({seq})"
            yield "fresh()"
            for seq in range(self.n_seq):
                yield f"ctx.try_load({seq}, slots['move', {seq}])"
        elif kind == "damage":
            yield f"slots['damaged'] = bytearray(slots[{op['slot']}])"
            at = f"int({op['at']!r} * len(slots['damaged']))"
            yield f"del slots['damaged'][{at}:]" if op["how"] == "cut" else f"slots['damaged'][{at}] ^= 0x55"
            yield f"ctx.try_load({op['seq']}, bytes(slots['damaged']))"
            if op["how"] == "flip":
                yield f"ctx.remove({op['seq']}, -1, -1, strict=False)"
        elif kind == "share":
            seqs = sorted({seq % self.n_seq for seq in op["seqs"]})
            tokens = list(tokens_of(op["seed"], op["count"], self.n_vocab))
            yield f"ctx.decode_shared({seqs}, {self.next[seqs[0]]}, {tokens})"
        elif kind == "checkpoint":
            self.kept[op["slot"]] = (op["seq"], self.next[op["seq"]])
            yield f"slots['checkpoint', {op['slot']}] = ctx.save_ext({op['seq']}, PARTIAL_ONLY)"
        elif kind == "rewind" and op["slot"] in self.kept:
            seq, end = self.kept[op["slot"]]
            yield f"ctx.try_load({seq}, slots['checkpoint', {op['slot']}], PARTIAL_ONLY)"
            yield f"ctx.seq_rm({seq}, {end}, -1)"
        elif kind in _SIMPLE:
            yield _SIMPLE[kind](self, op)


_SIMPLE: dict[str, Callable[[_Lines, Op], str]] = {
    "decode": lambda at, op: f"ctx.decode_parts({at.parts(op)})",
    "abort": lambda at, op: f"ctx.decode_parts({at.parts(op)}, abort_after={op['after']})",
    "remove": lambda _, op: f"ctx.remove({op['seq']}, {op['p0']}, {op['p1']}, strict={op['strict']})",
    "copy": lambda _, op: f"ctx.copy({op['src']}, {op['dst']}, {op['p0']}, {op['p1']}, strict={op['strict']})",
    "keep": lambda _, op: f"ctx.keep({op['seq']}, strict={op['strict']})",
    "shift": lambda _, op: f"ctx.shift({op['seq']}, {op['p0']}, {op['p1']}, {op['delta']}, strict={op['strict']})",
    "divide": lambda _, op: f"ctx.divide({op['seq']}, {op['p0']}, {op['p1']}, {op['by']}, strict={op['strict']})",
    "clear": lambda _, op: f"ctx.clear({op['data']})",
    "save": lambda _, op: f"slots[{op['slot']}] = ctx.save({op['seq']})",
    "save_all": lambda _, op: f"slots[{op['slot']}] = ctx.save_whole()",
    "restore": lambda _, op: f"ctx.try_load({op['seq']}, slots[{op['slot']}])",
    "restore_all": lambda _, op: f"ctx.try_load_whole(slots[{op['slot']}])",
    "scrub": lambda _, op: f"ctx.lib.pkv_set_scrub(ctx.ctx, {int(op['eager'])})",
    "sync": lambda *_: "ctx.lib.pkv_memory_sync(ctx.ctx)",
    "compact": lambda *_: "ctx.lib.pkv_memory_compact(ctx.ctx)",
}


def program(player: Player, script: Script, name: str = "failing") -> str:
    """Source of the program; plays the script once more to learn the positions."""
    n_seq = int(script.settings.get("n_seq_max", 1))
    at = _Lines(player.about["n_vocab"], n_seq)
    out: list[str] = []
    failure = player.begin(script.settings)
    for op in [*script.ops, FINISH]:
        if failure is not None:
            break
        failure = player.do(op)
        for line in at.lines(op):
            call = line.startswith("ctx.")
            out.append(f"show({line.split('(', 1)[0][4:]!r}, {line})" if call else line)
        if failure is None or failure.operation != "finish":
            at.next = player.lengths or at.next
    player.end()
    about = f"{failure.operation}: {failure.kind}: {failure.detail}" if failure else "nothing is wrong any more"
    bound = bound_of(player.about["bounds"], script.settings)
    head = _HEAD.format(about=about, model=script.model, name=name, settings=script.settings)
    return head + "\n".join(out) + "\n" + _verdict(script, failure, at, bound)


def _verdict(script: Script, failure: Failure | None, at: _Lines, bound: float) -> str:
    if failure is None or failure.history is None or failure.seq is None:
        return f"\n# {failure.kind}: {failure.detail}\n" if failure else ""
    history = tuple(tuple(tuple(v) if isinstance(v, list) else v for v in step) for step in failure.history)
    seq = failure.seq
    lines = ["", "# what came out"]
    if failure.operation in ("finish", "check"):
        done = int(max(positions(history))) - at.next[seq] + 1
        tail = [step for step in history if step[0] == "decode"][-done:]
        if "saved" in failure.detail:
            lines += [
                f"blob = ctx.save({seq})",
                "ctx = SearchWindow(engine, SETTINGS)",
                f"ctx.try_load({(seq + 1) % at.n_seq}, blob)",
            ]
            seq = (seq + 1) % at.n_seq
        lines += [f"ctx.decode_parts([({seq}, {step[1]}, {list(step[2])})])" for step in tail]
        lines.append("got = ctx.rows(1)[0]")
    else:
        parts = [part[0] for part in script.ops[-1].get("parts", [[seq]])]
        unique = list(dict.fromkeys(parts))
        lines.append(f"got = ctx.rows({len(unique)})[{unique.index(seq)}]")
    lines += ["", "# what should have come out: a fresh context, the same history"]
    settings = "{**SETTINGS, 'n_seq_max': 1, 'kv_unified': False, 'n_rs_seq': 0, 'n_ctx': 256}"
    if any(step[0] == "merge" for step in history):
        return "\n".join([*lines, f"# history: {history}", ""])
    lines.append(f"oracle = SearchWindow(engine, {settings.replace('}', ', ' + repr('swa_full') + ': True}')})")
    lines += [_oracle_line(step) for step in history]
    lines += [
        "error = nmse(got, oracle.rows(1)[0])",
        f"print('error', error, 'bound', {bound:.1e})",
        f"raise SystemExit(0 if error <= {bound:.1e} else 1)",
        "",
    ]
    assert positions(history)
    return "\n".join(lines)


def _oracle_line(step: tuple[Any, ...]) -> str:
    if step[0] == "decode":
        return f"oracle.decode_parts([(0, {step[1]}, {list(step[2])})])"
    if step[0] == "remove":
        return f"oracle.remove(0, {step[1]}, {step[2]}, strict=False)"
    name = "shift" if step[0] == "shift" else "divide"
    return f"oracle.{name}(0, {step[1]}, {step[2]}, {step[3]}, strict=False)"
