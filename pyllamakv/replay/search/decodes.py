"""Operations that read tokens, or try to."""

from __future__ import annotations

from . import history as h
from .edits import clear, copy, keep, remove
from .operations import settled, step
from .script import Op, tokens_of
from .window import Part
from .world import Broken, World

__all__: list[str] = []


@step("decode")
def _decode(world: World, op: Op) -> None:
    parts = world.parts(op)
    if not parts:
        return
    code = world.window.decode_parts(parts, mix=op.get("mix", False), auto=op.get("auto", False))
    beyond = any(pos + len(tokens) > world.engine.n_ctx_train for _, pos, tokens in parts)
    if code == 0:
        _accept(world, parts)
    elif code == 1:
        if all(world.cells_used(seq) + _total(world, parts, seq) <= world.n_cells for seq, _, _ in parts):
            raise Broken("needless", "llama_decode finds no room although enough cells are free")
    elif not (code < 0 and beyond):
        raise Broken("call", f"llama_decode answers {code}")


def _total(world: World, parts: list[Part], seq: int) -> int:
    """New cells in the stream of ``seq``."""
    return sum(len(tokens) for other, _, tokens in parts if other == seq or world.settings.get("kv_unified"))


def _accept(world: World, parts: list[Part]) -> None:
    for (seq, pos, tokens), row in zip(parts, world.window.rows(len(parts)), strict=True):
        world.histories[seq] = h.decoded(world.histories[seq], pos, tokens)
        world.compare(seq, "", row, world.histories[seq])


@step("share")
def _share(world: World, op: Op) -> None:
    seqs = sorted({seq % world.n_seq for seq in op["seqs"]})
    before = world.histories[seqs[0]]
    # a recurrent state could not be two things at once: they have to hold the same
    if len(seqs) < 2 or h.poisoned(before) or any(world.histories[seq] != before for seq in seqs):
        return
    pos, tokens = world.next_pos(seqs[0]), tokens_of(op["seed"], op["count"], world.engine.n_vocab)
    code = world.window.decode_shared(seqs, pos, tokens)
    if code == 0:
        for seq in seqs:
            world.histories[seq] = h.decoded(before, pos, tokens)
        world.compare(seqs[0], "", world.window.rows(1)[0], world.histories[seqs[0]])
    elif code > 1:  # streams and recurrent states cannot share a token: 1 or -1, and nothing has changed
        raise Broken("call", f"llama_decode answers {code} to tokens of several sequences")


@step("abort")
def _abort(world: World, op: Op) -> None:
    parts = world.parts(op)
    if not parts:
        return
    code = world.window.decode_parts(parts, mix=op.get("mix", False), abort_after=op["after"])
    if code == 0:
        _accept(world, parts)
    elif code == 2 or code < -1:
        for seq, pos, tokens in parts:
            done = {pos - 1 + k: h.decoded(world.histories[seq], pos, tokens[:k]) for k in range(1, len(tokens) + 1)}
            settled(world, seq, done, "after an abort")
    elif code == -1 or any(world.cells_used(seq) + _total(world, parts, seq) <= world.n_cells for seq, _, _ in parts):
        raise Broken("call", f"llama_decode answers {code} to an abort")


@step("poison")
def _poison(world: World, op: Op) -> None:
    seq, count = op["seq"], op["count"]
    if h.poisoned(world.histories[seq]) or world.next_pos(seq) + count > world.engine.n_ctx_train:
        return
    pos = world.next_pos(seq)
    code = world.window.decode_nan(seq, pos, count)
    before = world.histories[seq]
    done = {pos - 1 + k: (*before, ("poison", pos, k)) for k in range(1, count + 1)}
    if code == 0:
        world.histories[seq] = done[pos - 1 + count]
    else:
        settled(world, seq, done, f"after a decode of NaN that answered {code}")
    if h.poisoned(world.histories[seq]):
        _cure(world, op, seq, pos)


def _cure(world: World, op: Op, seq: int, pos: int) -> None:
    """Gets rid of the poison before anybody else decodes; in a stream of its own it may stay."""
    how = op["how"]
    others = [s for s in range(world.n_seq) if s != seq and not h.poisoned(world.histories[s])]
    if how == "leave" and not world.settings.get("kv_unified"):
        return
    if how == "clear":
        clear(world, {"op": "clear", "data": False})
    elif how == "keep" and others:
        keep(world, {"op": "keep", "seq": others[0], "strict": False})
    elif how == "copy" and others:
        copy(world, {"op": "copy", "src": others[0], "dst": seq, "p0": -1, "p1": -1, "strict": True})
    elif how == "tail":
        remove(world, {"op": "remove", "seq": seq, "p0": pos, "p1": -1, "strict": True})
    if h.poisoned(world.histories[seq]):
        remove(world, {"op": "remove", "seq": seq, "p0": -1, "p1": -1, "strict": False})
