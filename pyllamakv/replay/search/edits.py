"""Operations that remove, copy and move what is there."""

from __future__ import annotations

from . import history as h
from .operations import step
from .script import Op
from .world import Broken, World

__all__ = ["clear", "copy", "keep", "remove", "scrub"]


@step("remove")
def remove(world: World, op: Op) -> None:
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


@step("copy")
def copy(world: World, op: Op) -> None:
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


@step("keep")
def keep(world: World, op: Op) -> None:
    made = world.window.keep(op["seq"], strict=op["strict"])
    if not world.refused(made, lambda: "one sequence can always be kept"):
        world.histories = [history if s == op["seq"] else () for s, history in enumerate(world.histories)]


@step("shift")
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


@step("divide")
def _divide(world: World, op: Op) -> None:
    seq, p0, p1, by = op["seq"], op["p0"], op["p1"], op["by"]
    wanted = h.divided(world.histories[seq], p0, p1, by)
    if wanted is None:
        return
    made = world.window.divide(seq, p0, p1, by, strict=op["strict"])
    if not world.refused(made, lambda: _shift_needless(world, seq)):
        world.histories[seq] = wanted


@step("clear")
def clear(world: World, op: Op) -> None:
    world.window.clear(op["data"])
    world.histories = [()] * world.n_seq


@step("scrub")
def scrub(world: World, op: Op) -> None:
    if world.window.pkv:
        world.eager = op["eager"]
        if not world.window.lib.pkv_set_scrub(world.window.ctx, int(op["eager"])):
            raise Broken("call", "pkv_set_scrub refuses")


@step("sync")
def _sync(world: World, _op: Op) -> None:
    if world.window.pkv and not world.window.lib.pkv_memory_sync(world.window.ctx):
        raise Broken("call", f"pkv_memory_sync fails: {world.window.reason()}")


@step("compact")
def _compact(world: World, _op: Op) -> None:
    compact = getattr(world.window.lib, "pkv_memory_compact", None)
    if compact is not None:
        compact(world.window.ctx)


@step("check")
def _check(world: World, op: Op) -> None:
    world.check(op["seq"])


@step("finish")
def _finish(world: World, _op: Op) -> None:
    world.finish()
