"""The books on positions agree with a plain set of numbers, whatever the order of operations."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllamakv.runtime.held import Held

SEQS = 3
SEQ = st.integers(0, SEQS - 1)
EDGE = st.integers(0, 30)
OPERATION = st.one_of(
    st.tuples(st.just("add"), SEQ, st.lists(EDGE, min_size=1, max_size=8).map(sorted)),
    st.tuples(st.just("remove"), SEQ, EDGE, st.integers(-1, 30)),
    st.tuples(st.just("copy"), SEQ, SEQ, EDGE, st.integers(-1, 30), st.booleans()),
    st.tuples(st.just("shift"), SEQ, EDGE, st.integers(-1, 30), st.integers(-12, 12)),
    st.tuples(st.just("divide"), SEQ, EDGE, st.integers(-1, 30), st.integers(1, 4)),
    st.tuples(st.just("keep"), SEQ),
    st.tuples(
        st.just("clear"),
    ),
)


@given(st.lists(OPERATION, max_size=20))
def test_runs_are_what_sets_would_be(operations: list[tuple[object, ...]]) -> None:
    held, sets = Held(SEQS), [set[int]() for _ in range(SEQS)]
    for name, *args in operations:
        seq = args[0] if args else 0
        assert isinstance(seq, int)
        if name == "add":
            positions = args[1]
            held.add(seq, np.array(positions, np.int32))
            sets[seq] |= set(positions)  # type: ignore[call-overload]
        elif name == "keep":
            held.keep(seq)
            sets = [s if i == seq else set() for i, s in enumerate(sets)]
        elif name == "clear":
            held.clear()
            sets = [set() for _ in sets]
        else:
            numbers = [int(a) for a in args if isinstance(a, int)]
            p0, p1 = (numbers[2], numbers[3]) if name == "copy" else (numbers[1], numbers[2])
            inside = {p for s in [sets[seq]] for p in s if p0 <= p and (p1 < 0 or p < p1)}
            if name == "remove":
                held.remove(seq, p0, p1)
                sets[seq] -= inside
            elif name == "copy":
                dst, replaces = numbers[1], bool(args[4])
                held.copy(seq, dst, p0, p1, replaces=replaces)
                sets[dst] = inside if replaces else sets[dst] | inside
            elif name == "shift":
                held.shift(seq, p0, p1, numbers[3])
                sets[seq] = (sets[seq] - inside) | {p + numbers[3] for p in inside if p + numbers[3] >= 0}
            elif name == "divide":
                held.divide(seq, p0, p1, numbers[3])
                sets[seq] = (sets[seq] - inside) | {p // numbers[3] for p in inside}
    assert [held.count(s) for s in range(SEQS)] == [len(s) for s in sets]
    assert held.total() == sum(map(len, sets))


def test_the_library_has_the_last_word() -> None:
    held = Held(1)
    held.add(0, np.arange(10, dtype=np.int32))
    held.agree(0, 4)  # an aborted decode kept five
    assert held.count(0) == 5
    held.agree(0, 7)  # a restored state has eight
    assert held.count(0) == 8
    held.agree(0, -1)
    assert held.count(0) == 0
