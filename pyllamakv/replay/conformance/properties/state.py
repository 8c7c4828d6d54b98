"""Saving and restoring: the identity at any moment, and a refusal that leaves no gap where it cannot be."""

from __future__ import annotations

from collections.abc import Callable

from ...engine import ON_DEVICE, PARTIAL_ONLY
from ..case import Case
from ..outcome import NotApplicable, Wrong
from ..registry import prop
from ..subject import Subject


@prop("save-restore", "A restored sequence continues like the original, under another id as well.")
def save_restore(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    there.placed = case.facts.n_swa > 0  # a purged window comes back in other cells
    there.load(1, source.save(0), source.reads[0])
    there.check(1, "the restored sequence")
    source.check(0, "the sequence that was saved")


@prop("save-restore-late", "A sequence that outgrew its window is restored whole.", defects=("E3",))
def save_restore_late(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(200))
    there.read(0, case.tokens(50, 9))
    there.load(1, source.save(0), source.reads[0])
    there.check(1, "the restored sequence")
    there.check(0, "the neighbour")


@prop("save-restore-rollback", "Rolling a restored sequence back is exact or refused.", defects=("E3", "B1"))
def save_restore_rollback(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(200))
    there.load(1, source.save(0), source.reads[0])
    there.remove(1, 196)
    there.check(1, "the restored sequence rolled back")


@prop("save-after-rollback", "A state saved after a rollback holds what is left.", defects=("A4", "B1"))
def save_after_rollback(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(100))
    source.remove(0, 97)
    there.load(1, source.save(0), source.reads[0])
    there.check(1, "the restored sequence")


@prop("restore-empty", "Restoring the state of an empty sequence empties the destination.", defects=("B8",))
def restore_empty(case: Case) -> None:
    subject, empty = Subject(case), Subject(case)
    blob = empty.window.save(0)
    for seq in (0, 1):
        subject.read(seq, case.tokens(40))
    subject.load(1, blob, ())
    subject.holds_positions(1, "after restoring an empty sequence")
    subject.read(1, case.tokens(30, 3))
    subject.check(1, "a new sequence after restoring an empty one")
    subject.check(0, "the other sequence")


@prop("restore-replaces", "A restore replaces a longer sequence and leaves the neighbour alone.", defects=("B8", "C3"))
def restore_replaces(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    there.read(0, case.tokens(60, 2))
    there.read(1, case.tokens(90, 3))
    there.load(1, source.save(0), source.reads[0])
    there.check(1, "the restored sequence")
    there.check(0, "the neighbour")


@prop("restore-twice", "One state restored into two sequences makes two equal ones.", defects=("A2",))
def restore_twice(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    blob = source.save(0)
    for seq in (0, 1):
        there.load(seq, blob, source.reads[0])
    there.read(0, case.tokens(10, 2))
    there.unchanged("one of two restored sequences")


@prop("restore-whole", "A restored context continues like the original, whatever was in it before.")
def restore_whole(case: Case) -> None:
    source, there = Subject(case), Subject(case)
    for seq in (0, 1):
        source.read(seq, case.tokens(40 + 20 * seq, 1 + seq))
    there.read(1, case.tokens(100, 9))
    blob = source.window.save_whole()
    there.refusable(lambda: there.window.try_load_whole(blob), "llama_state_set_data")
    there.reads = dict(source.reads)
    there.unchanged("a sequence of the restored context")
    source.unchanged("a sequence of the context that was saved")


@prop("restore-other-type", "A state of other K/V types is refused.", defects=("E1", "E4"), needs=("attention",))
def restore_other_type(case: Case) -> None:
    source = Subject(case, type_k=1 if case.setting.kv == "f32" else 0)
    subject = Subject(case)
    source.read(0, case.tokens(40))
    _fails(case, subject, lambda: subject.window.try_load(1, source.window.save(0)), "a state of another K type")


def _fails(case: Case, subject: Subject, call: Callable[[], int], what: str) -> None:
    """A restore into sequence 1 that must fail: empty or unchanged afterwards, the neighbour untouched."""
    for seq in (0, 1):
        if not subject.size(seq):
            subject.read(seq, case.tokens(20, 4 + seq))
    if call():
        raise Wrong(f"{what} was restored")
    if subject.window.positions(1) == (-1, -1):
        subject.reads.pop(1, None)
    else:
        subject.check(1, f"after {what}, the destination")
    if not subject.size(1):
        subject.read(1, case.tokens(10, 9))
        subject.check(1, f"after {what}, a new sequence in place of the destination")
    subject.check(0, f"after {what}, the neighbour")


_CUTS = (0.02, 0.1, 0.5, 0.7, 0.99)


@prop("restore-truncated", "A state cut short leaves the sequence empty or unchanged, never a gap.", defects=("E4",))
def restore_truncated(case: Case) -> None:
    source, subject = Subject(case), Subject(case)
    source.read(0, case.tokens(30))
    blob = source.save(0)
    for size in sorted({1, 8, 12, 16, len(blob) - 1, *(int(len(blob) * part) for part in _CUTS)}):
        cut = blob[:size]
        _fails(case, subject, lambda cut=cut: subject.window.try_load(1, cut), f"{size} of {len(blob)} bytes")  # type: ignore[misc]
        subject.reads = {}
        subject.window.clear(True)


@prop(
    "restore-damaged",
    "A state with rubbish in its head harms no other sequence and no process.",
    defects=("E2", "E4"),
    limit=90,
)
def restore_damaged(case: Case) -> None:
    source, subject = Subject(case), Subject(case)
    source.read(0, case.tokens(40))
    subject.read(0, case.tokens(60, 2))
    blob = source.save(0)
    for at in range(0, 64, 4):
        for value in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x07\x00\x00\x80"):
            subject.window.try_load(1, blob[:at] + value + blob[at + 4 :])
            subject.holds_positions(0, f"after four bytes of rubbish at {at}")
            subject.window.seq_rm(1, -1, -1)
    if subject.window.positions(1) != (-1, -1):
        raise Wrong("a sequence could not be removed after a damaged restore")
    subject.check(0, "after damaged restores, the neighbour")
    subject.read(1, case.tokens(30, 9))
    subject.check(1, "after damaged restores, a new sequence")


@prop("restore-whole-truncated", "A context's state cut short leaves a context that can go on.", defects=("E4",))
def restore_whole_truncated(case: Case) -> None:
    source = Subject(case)
    for seq in (0, 1):
        source.read(seq, case.tokens(20, 1 + seq))
    blob = source.window.save_whole()
    for part in _CUTS[1:]:
        subject = Subject(case)
        subject.read(0, case.tokens(20, 5))
        if subject.window.try_load_whole(blob[: int(len(blob) * part)]):
            raise Wrong(f"{part:.0%} of a context's state was restored")
        for seq in (0, 1):
            if subject.window.positions(seq) == (-1, -1):
                subject.reads.pop(seq, None)
        for seq in (0, 1):
            if not subject.size(seq):
                subject.read(seq, case.tokens(10, 6 + seq))
        subject.unchanged(f"a sequence after {part:.0%} of a context's state")


@prop(
    "restore-too-large",
    "A state that does not fit leaves the sequence empty or unchanged.",
    defects=("E4",),
    needs=("attention",),
)
def restore_too_large(case: Case) -> None:
    if case.facts.learned_positions:
        raise NotApplicable("the position table is shorter than the context")
    source, subject = Subject(case), Subject(case, n_ctx=512)
    for count in range(3):
        source.read(0, case.tokens(100 if count < 2 else 50, count))
    for seq in (0, 1):
        subject.read(seq, case.tokens(40, 4 + seq))
    subject.read(0, case.tokens(150, 8))
    source.read(0, case.tokens(200, 9))
    if source.window.lib.llama_n_ctx_seq(subject.window.ctx) >= 450 + 190:
        raise NotApplicable("the context has room for it")
    code = subject.window.try_load(1, source.window.save(0))
    if code and (case.facts.n_swa or case.facts.recurrent):
        raise NotApplicable("what is kept of it fits")
    _fails(case, subject, lambda: code, "a state that is too large")


@prop("save-into-too-little", "A buffer that is too small gets nothing, and the sequence stays.")
def save_into_too_little(case: Case) -> None:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    window, ffi = subject.window, case.engine.ffi
    size = window.lib.llama_state_seq_get_size(window.ctx, 0)
    buffer = ffi.new("uint8_t[]", size)
    for short in (0, 1, 16, size // 2, size - 1):
        if window.lib.llama_state_seq_get_data(window.ctx, buffer, short, 0):
            raise Wrong(f"a state of {size} bytes was written into {short}")
    subject.check(0, "after saves into too little")


def _checkpoint(case: Case, flags: int) -> None:
    """As llama-server does it: the part of a state that a removal cannot bring back, then the removal."""
    subject = Subject(case)
    subject.read(1, case.tokens(30, 9))
    subject.read(0, case.tokens(60))
    reads = subject.reads[0]
    blob = subject.window.save_ext(0, flags)
    if not blob:
        raise NotApplicable("the library has no such state for this memory")
    subject.read(0, case.tokens(50, 2))
    if not subject.window.try_load(0, blob, flags):
        raise Wrong("the checkpoint could not be restored")
    subject.window.seq_rm(0, 60, -1)
    subject.reads[0] = reads
    subject.check(0, "back at the checkpoint")
    subject.check(1, "the neighbour")


@prop("checkpoint", "A partial state and a removal lead back to where it was taken.", defects=("E3", "A4"))
def checkpoint(case: Case) -> None:
    _checkpoint(case, PARTIAL_ONLY)


@prop("checkpoint-on-device", "The same with the state kept on the device.", defects=("D8", "A4"))
def checkpoint_on_device(case: Case) -> None:
    _checkpoint(case, PARTIAL_ONLY | ON_DEVICE)


@prop(
    "restore-on-device-damaged",
    "A damaged state for the device is an error code, and harms nobody.",
    defects=("D8", "E4"),
)
def restore_on_device_damaged(case: Case) -> None:
    subject = Subject(case)
    for seq in (0, 1):
        subject.read(seq, case.tokens(40, 4 + seq))
    blob = subject.window.save_ext(0, ON_DEVICE)
    for rubbish in (
        bytes(64),
        b"\xff" * 64,
        blob[:8],
        blob[: len(blob) // 2],
        b"\x07" + blob[1:],
        blob[:12] + b"\xff" * 8,
    ):
        if not rubbish:
            continue
        if subject.window.try_load(1, rubbish, ON_DEVICE):
            raise Wrong(f"{len(rubbish)} bytes of rubbish were restored")
        if subject.window.positions(1) == (-1, -1):
            subject.reads.pop(1, None)
            subject.read(1, case.tokens(30, 9))
    subject.unchanged("a sequence after damaged restores")
