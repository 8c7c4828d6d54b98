"""What a sequence must be after each call, as a value."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pyllamakv.replay.search import history as h

TEN = h.decoded((), 0, tuple(range(10)))


def test_what_was_decoded_last_never_happened() -> None:
    more = h.decoded(TEN, 10, (7, 8))
    assert h.removed(more, 10, -1) == TEN
    assert h.removed(more, 6, -1) == h.decoded((), 0, tuple(range(6)))
    assert h.removed(more, -1, -1) == ()
    assert h.removed(more, 12, -1) == more


def test_a_hole_stays_in_the_history() -> None:
    holed = h.removed(TEN, 2, 5)
    assert h.positions(holed) == (0, 1, 5, 6, 7, 8, 9)
    assert holed[-1] == ("remove", 2, 5)
    # the newest tokens go as if they had never come, the hole stays
    assert h.removed(h.decoded(holed, 10, (1, 2)), 10, -1) == holed
    assert h.removed(holed, 8, -1) == (("decode", 0, tuple(range(8))), ("remove", 2, 5))
    # and with nobody left who has seen it, it is gone too
    assert h.removed(holed, 2, -1) == h.decoded((), 0, (0, 1))


def test_poison_leaves_with_the_tokens_behind_it() -> None:
    ill = h.decoded((*TEN, ("poison", 10, 3)), 13, (1,))
    assert h.poisoned(ill)
    assert h.removed(ill, 10, -1) == TEN
    assert h.poisoned(h.removed(ill, 10, 13)), "the token behind it has seen it"
    assert h.poisoned(h.copied(ill, (), 0, 13))
    assert not h.poisoned(h.copied(ill, (), 0, 10))


def test_shifts() -> None:
    assert h.positions(h.shifted(TEN, -1, -1, 5) or ()) == tuple(range(5, 15))
    assert h.shifted(TEN, 0, 5, 3) is None, "tokens would meet"
    assert h.shifted(TEN, 20, 30, 3) == TEN
    assert h.shifted(TEN, -1, -1, -10) == ()
    assert h.positions(h.shifted(TEN, -1, -1, -4) or ()) == tuple(range(6))
    # where only distances count, moving all of them is having decoded them there
    assert h.shifted(TEN, -1, -1, 5, relative=True) == (("decode", 5, tuple(range(10))),)
    assert (h.shifted(TEN, -1, -1, -4, relative=True) or ())[-1][0] == "shift"


def test_divisions() -> None:
    assert h.divided(TEN, 4, -1, 2) is None, "4 would become 2"
    assert h.divided(TEN, 9, -1, 3) is None, "the last token would go in front of others"
    assert h.positions(h.divided(TEN, -1, -1, 5) or ()) == (0,) * 5 + (1,) * 5


def test_copies() -> None:
    assert h.copied(TEN, h.decoded((), 0, (3,)), -1, -1) == TEN
    assert h.copied(TEN, (), 0, 4) == h.decoded((), 0, (0, 1, 2, 3))
    assert h.copied((), TEN, 0, 4) == (*TEN, ("remove", 0, 4))
    assert h.copied(TEN, TEN, 3, 3) == TEN
    assert h.copied(h.decoded((), 0, (3,)), TEN, 0, 4) == h.decoded((), 0, (3,)), "all that the source has"
    merged = h.copied(TEN, h.decoded((), 0, (5,) * 12), 4, 8)
    assert sorted(h.positions(merged)) == list(range(12))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("decode"), st.integers(1, 6)),
            st.tuples(st.just("remove"), st.integers(-1, 20), st.integers(-1, 20)),
            st.tuples(st.just("shift"), st.integers(-1, 20), st.integers(-1, 20), st.integers(-5, 5)),
        ),
        max_size=12,
    )
)
def test_positions_are_those_of_a_set_that_is_edited(calls: list[tuple[int, ...]]) -> None:
    history: h.History = ()
    held: set[int] = set()
    for call in calls:
        if call[0] == "decode":
            start = max(held, default=-1) + 1
            history = h.decoded(history, start, tuple(range(call[1])))
            held |= set(range(start, start + call[1]))
            continue
        p0, p1 = max(call[1], 0), h.END if call[2] < 0 else call[2]
        if call[0] == "remove":
            history = h.removed(history, call[1], call[2])
            held = {pos for pos in held if not p0 <= pos < p1}
        else:
            moved = h.shifted(history, call[1], call[2], call[3])
            if moved is not None:
                history = moved
                held = {pos + call[3] if p0 <= pos < p1 else pos for pos in held}
                held = {pos for pos in held if pos >= 0}
        assert set(h.positions(history)) == held
