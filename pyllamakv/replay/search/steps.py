"""The operations: what each one does to the context, and what the sequences must be when it says that it was done.

A refusal has to leave everything as it was. What upstream leaves open (a decode that stopped half way, a restore that
failed) is read from the positions, and has to be one of the allowed outcomes.
"""

from __future__ import annotations

from collections.abc import Callable

from . import history as h
from .history import History
from .script import Op
from .window import Part, SearchWindow
from .world import Broken, Slot, World

__all__ = ["STEPS"]

STEPS: dict[str, Callable[[World, Op], None]] = {}


def _step(name: str) -> Callable[[Callable[[World, Op], None]], Callable[[World, Op], None]]:
    def register(function: Callable[[World, Op], None]) -> Callable[[World, Op], None]:
        STEPS[name] = function
        return function

    return register


# decode


@_step("decode")
def _decode(world: World, op: Op) -> None:
    parts = world.parts(op)
    if not parts:
        return
    code = world.window.decode_parts(parts, mix=op.get("mix", False))
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


@_step("abort")
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
            _settled(world, seq, done, "after an abort")
    elif code == -1 or any(world.cells_used(seq) + _total(world, parts, seq) <= world.n_cells for seq, _, _ in parts):
        raise Broken("call", f"llama_decode answers {code} to an abort")


def _settled(world: World, seq: int, done: dict[int, History], when: str) -> None:
    """Reads what became of a sequence: as before, empty, or one of ``done`` by its highest position."""
    found = world.window.positions(seq)
    before = world.histories[seq]
    if found[1] in done:
        world.histories[seq] = done[found[1]]
    elif found == (-1, -1):
        world.histories[seq] = ()
    elif found[1] != max(h.positions(before), default=-1):
        raise Broken("changed", f"{when} sequence {seq} says {found}")


@_step("poison")
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
        _settled(world, seq, done, f"after a decode of NaN that answered {code}")
    if h.poisoned(world.histories[seq]):
        _cure(world, op, seq, pos)


def _cure(world: World, op: Op, seq: int, pos: int) -> None:
    """Gets rid of the poison before anybody else decodes; in a stream of its own it may stay."""
    how = op["how"]
    others = [s for s in range(world.n_seq) if s != seq and not h.poisoned(world.histories[s])]
    if how == "leave" and not world.settings.get("kv_unified"):
        return
    if how == "clear":
        _clear(world, {"op": "clear", "data": False})
    elif how == "keep" and others:
        _keep(world, {"op": "keep", "seq": others[0], "strict": False})
    elif how == "copy" and others:
        _copy(world, {"op": "copy", "src": others[0], "dst": seq, "p0": -1, "p1": -1, "strict": True})
    elif how == "tail":
        _remove(world, {"op": "remove", "seq": seq, "p0": pos, "p1": -1, "strict": True})
    if h.poisoned(world.histories[seq]):
        _remove(world, {"op": "remove", "seq": seq, "p0": -1, "p1": -1, "strict": False})


# edits


@_step("remove")
def _remove(world: World, op: Op) -> None:
    seq, p0, p1, strict = op["seq"], op["p0"], op["p1"], op["strict"] and world.window.pkv
    made = world.window.remove(seq, p0, p1, strict=strict)
    meant = range(world.n_seq) if seq == -1 else [seq]
    wanted = {s: h.removed(world.histories[s], p0, p1) for s in meant}

    def needless() -> str | None:
        if world.memory.exact_min:
            return "an attention cache can remove any range"
        # a state knows its last position alone
        if all(p0 <= 0 and not wanted[s] for s in meant) or all(p0 >= world.next_pos(s) for s in meant):
            return "the sequence goes as a whole, or not at all"
        return None

    if world.refused(made, needless):
        return
    for s in meant:
        before = world.histories[s]
        if world.memory.state and wanted[s] and wanted[s] != before and wanted[s][-1][0] == "remove":
            if world.memory.kind != "recurrent" or strict:
                raise Broken(
                    "wrong", f"[{p0}, {p1}) of sequence {s} cannot leave a recurrent state, and removal says it did"
                )
            continue  # upstream's answer by design: true, and the state stays as it is
        world.histories[s] = wanted[s]


@_step("copy")
def _copy(world: World, op: Op) -> None:
    src, dst, p0, p1, strict = op["src"], op["dst"], op["p0"], op["p1"], op["strict"] and world.window.pkv
    source, target = world.histories[src], world.histories[dst]
    wanted = h.copied(source, target, p0, p1)
    whole = p0 <= 0 and p1 < 0
    # llama.h does not say what becomes of a destination that holds something, or of a part of a state
    if src == dst or (not strict and (target or (world.memory.state and not whole))):
        return
    if whole and strict and not source and target:
        return
    made = world.window.copy(src, dst, p0, p1, strict=strict)

    def needless() -> str | None:
        fits = len(h.positions(wanted)) + len(h.positions(target)) <= world.n_cells or world.settings.get("kv_unified")
        if fits and whole:
            return "a whole copy is exact in every memory"
        if fits and world.memory.exact_min:
            return "an attention cache can copy any range"
        return None

    if not world.refused(made, needless):
        if world.memory.state and wanted and wanted not in (source, target):
            raise Broken(
                "wrong", f"a part of the recurrent state of sequence {src} cannot be copied, and copy says it was"
            )
        world.histories[dst] = wanted


@_step("keep")
def _keep(world: World, op: Op) -> None:
    made = world.window.keep(op["seq"], strict=op["strict"])
    if not world.refused(made, lambda: "one sequence can always be kept"):
        world.histories = [history if s == op["seq"] else () for s, history in enumerate(world.histories)]


@_step("shift")
def _shift(world: World, op: Op) -> None:
    seq, p0, p1, delta = op["seq"], op["p0"], op["p1"], op["delta"]
    before = world.histories[seq]
    wanted = h.shifted(before, p0, p1, delta, relative=world.memory.relative)
    if wanted is None or max(h.positions(wanted), default=0) >= world.engine.n_ctx_train:
        return
    fewer = len(h.positions(wanted)) < len(h.positions(before))
    if fewer and world.memory.kind == "recurrent" and not op["strict"]:
        return  # llama.h's call only renumbers a state
    made = world.window.shift(seq, p0, p1, delta, strict=op["strict"])
    if world.refused(made, lambda: _shift_needless(world, seq)):
        return
    if world.memory.state and wanted and fewer:
        raise Broken(
            "wrong", f"positions below zero of sequence {seq} cannot leave a recurrent state, and shift says they did"
        )
    world.histories[seq] = wanted


def _shift_needless(world: World, seq: int) -> str | None:
    alone = not any(history for s, history in enumerate(world.histories) if s != seq)
    if world.memory.exact_min and world.window.can_shift() and (alone or not world.settings.get("kv_unified")):
        return "the memory can shift and nobody shares its cells"
    return None


@_step("divide")
def _divide(world: World, op: Op) -> None:
    seq, p0, p1, by = op["seq"], op["p0"], op["p1"], op["by"]
    wanted = h.divided(world.histories[seq], p0, p1, by)
    if wanted is None:
        return
    made = world.window.divide(seq, p0, p1, by, strict=op["strict"])
    if not world.refused(made, lambda: _shift_needless(world, seq)):
        world.histories[seq] = wanted


@_step("clear")
def _clear(world: World, op: Op) -> None:
    world.window.clear(op["data"])
    world.histories = [()] * world.n_seq


# states


@_step("save")
def _save(world: World, op: Op) -> None:
    history = world.histories[op["seq"]]
    if not h.poisoned(history):
        blob = world.window.save(op["seq"])
        if history and not blob:
            raise Broken("call", f"the state of sequence {op['seq']} cannot be saved")
        world.slots[op["slot"]] = Slot(blob, {0: history})


def _slot(world: World, op: Op, single: bool) -> Slot | None:
    slot = world.slots.get(op["slot"])
    return slot if slot is not None and slot.blob and (list(slot.histories) == [0]) == single else None


@_step("restore")
def _restore(world: World, op: Op) -> None:
    slot, seq = _slot(world, op, True), op["seq"]
    if slot is None:
        return
    if world.window.try_load(seq, slot.blob):
        world.histories[seq] = slot.histories[0]
        return
    cells = len(h.positions(slot.histories[0]))
    if world.cells_used(seq) + cells <= world.n_cells:
        raise Broken("needless", f"a saved state of {cells} cells is not restored although there is room")
    _settled(world, seq, {}, "after a failed restore")


@_step("damage")
def _damage(world: World, op: Op) -> None:
    slot, seq = _slot(world, op, True), op["seq"]
    if slot is None:
        return
    at = min(int(op["at"] * len(slot.blob)), len(slot.blob) - 1)
    changed = bytes([slot.blob[at] ^ 0x55]) + slot.blob[at + 1 :]
    blob = slot.blob[:at] + (b"" if op["how"] == "cut" else changed)
    if not blob:
        return
    if not world.window.try_load(seq, blob):
        _settled(world, seq, {}, "after a damaged state")
    elif op["how"] == "cut":
        raise Broken("wrong", f"the first {at} of {len(slot.blob)} bytes of a state are restored as if they were all")
    else:  # nobody can tell (E2); what matters is that it ends when the sequence does
        world.histories[seq] = (("poison", 0, 1),)
        _remove(world, {"op": "remove", "seq": seq, "p0": -1, "p1": -1, "strict": False})


@_step("save_all")
def _save_all(world: World, op: Op) -> None:
    if not any(h.poisoned(history) for history in world.histories):
        # a key of its own keeps the slots of one sequence apart
        world.slots[op["slot"]] = Slot(world.window.save_all(), dict(enumerate(world.histories, start=1)))


@_step("restore_all")
def _restore_all(world: World, op: Op) -> None:
    slot = _slot(world, op, False)
    if slot is None:
        return
    if op["fresh"]:
        _reopen(world)
    if not world.window.try_load_all(slot.blob):
        raise Broken("call", "the saved state of the whole context cannot be restored")
    world.histories = [slot.histories[s + 1] for s in range(world.n_seq)]


def _reopen(world: World) -> None:
    world.window.close()
    world.window = SearchWindow(world.engine, world.settings)
    world.histories = [()] * world.n_seq
    if world.eager:
        _scrub(world, {"op": "scrub", "eager": True})


@_step("move")
def _move(world: World, _op: Op) -> None:
    if any(h.poisoned(history) for history in world.histories):
        return
    before = list(world.histories)
    blobs = [world.window.save(s) for s in range(world.n_seq)]
    _reopen(world)
    for s, blob in enumerate(blobs):
        if before[s]:
            cells = sum(len(h.positions(history)) for history in before)
            fits = cells <= world.n_cells or not world.settings.get("kv_unified")
            if world.window.try_load(s, blob):
                world.histories[s] = before[s]
            elif fits:
                raise Broken("call", f"the saved state of sequence {s} cannot be restored into a new context")


# the rest


@_step("scrub")
def _scrub(world: World, op: Op) -> None:
    if world.window.pkv:
        world.eager = op["eager"]
        if not world.window.lib.pkv_set_scrub(world.window.ctx, int(op["eager"])):
            raise Broken("call", "pkv_set_scrub refuses")


@_step("sync")
def _sync(world: World, _op: Op) -> None:
    if world.window.pkv and not world.window.lib.pkv_memory_sync(world.window.ctx):
        raise Broken("call", f"pkv_memory_sync fails: {world.window.reason()}")


@_step("compact")
def _compact(world: World, _op: Op) -> None:
    compact = getattr(world.window.lib, "pkv_memory_compact", None)
    if compact is not None:
        compact(world.window.ctx)


@_step("check")
def _check(world: World, op: Op) -> None:
    world.check(op["seq"])


@_step("finish")
def _finish(world: World, _op: Op) -> None:
    world.finish()
