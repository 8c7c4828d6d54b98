"""Operations on saved states."""

from __future__ import annotations

from pyllamakv.replay.engine import PARTIAL_ONLY

from . import history as h
from .edits import remove, scrub
from .operations import settled, step
from .script import Op
from .window import SearchWindow
from .world import Broken, Slot, World

__all__: list[str] = []


@step("save")
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


@step("restore")
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
    settled(world, seq, {}, "after a failed restore")


@step("damage")
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
        settled(world, seq, {}, "after a damaged state")
    elif op["how"] == "cut":
        raise Broken("wrong", f"the first {at} of {len(slot.blob)} bytes of a state are restored as if they were all")
    else:  # nobody can tell (E2); what matters is that it ends when the sequence does
        world.histories[seq] = (("poison", 0, 1),)
        remove(world, {"op": "remove", "seq": seq, "p0": -1, "p1": -1, "strict": False})


@step("checkpoint")
def _checkpoint(world: World, op: Op) -> None:
    history = world.histories[op["seq"]]
    if history and not h.poisoned(history):
        world.checkpoints[op["slot"]] = (op["seq"], Slot(world.window.save_ext(op["seq"], PARTIAL_ONLY), {0: history}))


@step("rewind")
def _rewind(world: World, op: Op) -> None:
    """What llama.cpp's server does where a removal alone cannot go back: the checkpoint, then the rest removed."""
    if op["slot"] not in world.checkpoints:
        return
    seq, slot = world.checkpoints[op["slot"]]
    before, wanted = world.histories[seq], slot.histories[0]
    grown = before[: len(wanted)] == wanted and all(step[0] == "decode" for step in before[len(wanted) :])
    if not grown or not slot.blob:
        return
    if not world.window.try_load(seq, slot.blob, PARTIAL_ONLY):
        raise Broken("needless", f"a checkpoint of sequence {seq} is not restored")
    if not world.window.seq_rm(seq, max(h.positions(wanted)) + 1, -1):
        raise Broken("needless", f"what follows the restored checkpoint of sequence {seq} cannot be removed")
    world.histories[seq] = wanted


@step("save_all")
def _save_all(world: World, op: Op) -> None:
    if not any(h.poisoned(history) for history in world.histories):
        # a key of its own keeps the slots of one sequence apart
        world.slots[op["slot"]] = Slot(world.window.save_whole(), dict(enumerate(world.histories, start=1)))


@step("restore_all")
def _restore_all(world: World, op: Op) -> None:
    slot = _slot(world, op, False)
    if slot is None:
        return
    if op["fresh"]:
        _reopen(world)
    if not world.window.try_load_whole(slot.blob):
        raise Broken("call", "the saved state of the whole context cannot be restored")
    world.histories = [slot.histories[s + 1] for s in range(world.n_seq)]


def _reopen(world: World) -> None:
    world.window.close()
    world.window = SearchWindow(world.engine, world.settings)
    world.histories = [()] * world.n_seq
    if world.eager:
        scrub(world, {"op": "scrub", "eager": True})


@step("move")
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
