"""Shifts and divisions of positions. Keys turn with them, whatever they are stored as, and nobody else's do.

A whole sequence that is moved has an oracle: rotary attention is relative, so it must equal a fresh context that
decoded the same tokens at the new positions. What was moved in part has none, since the later keys saw the earlier
tokens where they were; there, two ways to the same positions must agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..case import ROUNDINGS, TAIL, Case
from ..outcome import NotApplicable, Refused, Wrong
from ..registry import prop
from ..settings import KV_TYPES
from ..subject import Subject

_SHIFT = 16


def _turned(case: Case, **over: Any) -> float:
    """Keys are rotated and stored twice where the oracle's are once: a few roundings of their type, no more."""
    return max(case.bound(), ROUNDINGS * case.rounding(start=_SHIFT, **over), 1e-10)


def _moved(case: Case, **over: Any) -> None:
    """40 tokens moved by 16, held against a fresh context that began at 16."""
    tokens = case.tokens(40)
    bound = _turned(case, **over)
    here = case.oracle((tokens,), **over)
    there = case.oracle((tokens,), start=_SHIFT, **over)
    try:
        case.same(there, here, "", bound=bound)
    except Wrong:
        raise NotApplicable("the model itself depends on absolute positions") from None
    finally:
        case.error = None
    subject = Subject(case, **over)
    subject.read(0, tokens)
    subject.read(1, case.tokens(30, 2))
    subject.shift(0, 0, -1, _SHIFT)
    _ends_at(subject, _SHIFT + 39)
    got = case.tail(subject.window, 0, 40 + _SHIFT)
    case.same(got, there, "the moved sequence", bound=bound)
    subject.check(1, "the neighbour")


@prop(
    "shift-whole", "A sequence moved as a whole is one that was decoded there.", defects=("A3", "D6"), needs=("shift",)
)
def shift_whole(case: Case) -> None:
    _moved(case)


@prop(
    "shift-whole-yarn",
    "The same with YaRN, whose keys are scaled as well as turned.",
    defects=("D6",),
    needs=("shift", "plain"),
)
def shift_whole_yarn(case: Case) -> None:
    yarn = {"rope_scaling_type": 2, "yarn_ext_factor": 1.0, "rope_freq_scale": 0.25, "yarn_orig_ctx": 64}
    _moved(case, **yarn)


def _ends_at(subject: Subject, last: int) -> None:
    high = subject.window.positions(0)[1]
    if high != last:
        raise Wrong(f"the last position is {high} in place of {last}")


def _register(kind: str, rotated: bool) -> None:
    @prop(
        f"shift-{kind}-keys{'' if rotated else '-unrotated'}",
        f"Keys stored as {kind}{'' if rotated else ' without a rotation matrix'} turn like f32 ones.",
        defects=("D5", "D6"),
        needs=("shift", "once"),
    )
    def shift_keys(case: Case) -> None:
        if not rotated:
            os.environ["LLAMA_ATTN_ROT_DISABLE"] = "1"
        _moved(case, type_k=KV_TYPES[kind])


for _kind, _rotated in (
    ("f16", True),
    ("bf16", True),
    ("q8_0", True),
    ("q4_0", True),
    ("q8_0", False),
    ("q4_0", False),
):
    _register(_kind, _rotated)


def _two_ways(
    case: Case, first: Callable[[Subject], None], second: Callable[[Subject], None], at: int, what: str
) -> None:
    """Two ways to the same positions of the same 40 tokens, each from a fresh context."""
    one, two = _forty(case), _forty(case)
    first(one)
    second(two)
    ends = one.window.positions(0)[1], two.window.positions(0)[1]
    if ends[0] != ends[1]:
        raise Wrong(f"{what}: the last positions are {ends[0]} and {ends[1]}")
    got, want = case.tail(one.window, 0, at), case.tail(two.window, 0, at)
    case.same(got, want, what, bound=_turned(case))


def _forty(case: Case) -> Subject:
    subject = Subject(case)
    subject.read(0, case.tokens(40))
    return subject


@prop("shift-in-steps", "Two shifts are their sum.", defects=("A3",), needs=("shift",))
def shift_in_steps(case: Case) -> None:
    def steps(subject: Subject) -> None:
        subject.shift(0, 0, -1, 10)
        case.tail(subject.window, 0, 50, TAIL)
        subject.window.seq_rm(0, 50, -1)
        subject.shift(0, 0, -1, 6)

    if case.facts.recurrent:
        raise NotApplicable("a recurrent state does not go back between the steps")
    _two_ways(case, steps, lambda subject: subject.shift(0, 0, -1, 16), 56, "two shifts and their sum")


@prop("shift-and-back", "A shift and its opposite leave a sequence as it was.", defects=("A3",), needs=("shift",))
def shift_and_back(case: Case) -> None:
    subject = _forty(case)
    subject.shift(0, 0, -1, 12)
    subject.window.seq_add(0, 0, -1, -12)
    subject.check(0, "after a shift and its opposite", bound=_turned(case))


@prop("shift-below-zero", "What is shifted below zero is gone.", defects=("C3",), needs=("shift", "attention-only"))
def shift_below_zero(case: Case) -> None:
    def cut(subject: Subject) -> None:
        subject.remove_middle(0, 0, 8)
        subject.window.seq_add(0, 8, -1, -8)

    _two_ways(case, lambda s: s.shift(0, 0, -1, -8), cut, 32, "a shift below zero and a removal with a shift")


@prop("shift-neighbour", "A context shift leaves the neighbour's bits alone.", defects=("B7",), needs=("shift",))
def shift_neighbour(case: Case) -> None:
    subject, twin = Subject(case), Subject(case)
    for each in (subject, twin):
        each.read(1, case.tokens(30, 2))
        each.read(0, case.tokens(40))
    subject.shift(0, 0, -1, 4)
    got, want = case.tail(subject.window, 1, 30), case.tail(twin.window, 1, 30)
    case.same(got, want, "the neighbour", bound=case.bound(placed=False))


@prop("shift-shared", "A context shift of a copy leaves the original alone.", defects=("B7",), needs=("shift",))
def shift_shared(case: Case) -> None:
    subject = _forty(case)
    subject.copy(0, 1)
    subject.shift(0, 0, -1, 4)
    _ends_at(subject, 43)
    subject.check(1, "the copy of what was shifted")


@prop(
    "shift-elsewhere",
    "A context shift does the same wherever the sequence lies.",
    defects=("A3",),
    needs=("shift", "attention-only"),
)
def shift_elsewhere(case: Case) -> None:
    here, there = _forty(case), Subject(case)
    there.read(0, case.tokens(50, 9))
    there.load(1, here.save(0), here.reads[0])

    def cut() -> Subject:
        subject = _forty(case)
        subject.remove_middle(0, 4, 12)
        return subject

    here.remove_middle(0, 4, 12)
    there.window.seq_rm(1, 4, 12)
    here.shift(0, 12, -1, -8, cut)
    there.window.seq_add(1, 12, -1, -8)
    if there.window.positions(1)[1] == 39:
        raise Refused(f"elsewhere: {there.reason()}")
    want = case.tail(here.window, 0, 32)
    case.same(case.tail(there.window, 1, 32), want, "the same shift elsewhere", bound=case.bound())
    there.check(0, "the neighbour")


@prop("divide", "Dividing positions is moving each of them.", needs=("shift", "attention-only"))
def divide(case: Case) -> None:
    def one_by_one(subject: Subject) -> None:
        for position in range(1, 40):
            # one position in the middle: the ends do not show whether it moved
            subject.window.seq_add(0, position, position + 1, position // 2 - position)

    one = _forty(case)
    one.window.seq_div(0, 0, -1, 2)
    if one.window.positions(0)[1] == 39:
        one.refused("llama_memory_seq_div(0, 0, -1, 2)")
    _two_ways(
        case, lambda subject: subject.window.seq_div(0, 0, -1, 2), one_by_one, 20, "a division and its single moves"
    )


@prop("divide-spread", "Positions spread and divided are where they were.", needs=("shift", "attention-only"))
def divide_spread(case: Case) -> None:
    subject = _forty(case)
    for position in range(39, 0, -1):
        subject.window.seq_add(0, position, position + 1, position)
    if subject.window.positions(0)[1] != 78:
        raise Refused("the sequence cannot be spread")
    subject.window.seq_div(0, 0, -1, 2)
    subject.check(0, "spread and divided", bound=_turned(case))


@prop(
    "shift-unsupported",
    "Where llama_memory_can_shift says no, a shift is right or does nothing.",
    defects=("D4",),
    needs=("no-shift",),
)
def shift_unsupported(case: Case) -> None:
    subject = _forty(case)
    subject.read(1, case.tokens(30, 2))
    subject.window.seq_div(0, 0, -1, 1)
    subject.window.seq_add(0, 0, -1, 0)
    subject.window.seq_add(0, 0, -1, _SHIFT)
    if subject.window.positions(0)[1] == 39:
        subject.unchanged("after an unsupported shift")
        return
    subject.window.close()
    _moved(case)


@prop("divide-unsupported", "Where positions cannot be moved, none are divided.", defects=("D4",), needs=("no-shift",))
def divide_unsupported(case: Case) -> None:
    subject = _forty(case)
    subject.read(1, case.tokens(30, 2))
    subject.window.seq_div(0, 0, -1, 2)
    if subject.window.positions(0)[1] != 39:
        raise NotApplicable("positions are divided after all")
    subject.unchanged("after an unsupported division")


@prop(
    "shift-as-announced", "Where llama_memory_can_shift says yes, positions move and decoding goes on.", defects=("D4",)
)
def shift_as_announced(case: Case) -> None:
    can, subject = case.can_shift(), _forty(case)
    subject.window.seq_add(0, 0, -1, 3)
    high = subject.window.positions(0)[1]
    if can and high != 42:
        raise Wrong("llama_memory_can_shift says yes, llama_memory_seq_add did nothing")
    code = subject.window.try_decode((5,), high + 1)
    if code:
        raise Wrong(f"llama_decode after a shift returned {code}")
