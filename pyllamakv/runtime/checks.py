"""Arguments, checked before C sees them: what C would assert on becomes an ArgumentError that says what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

__all__ = [
    "INT32_MAX",
    "as_bool",
    "as_choice",
    "as_embeddings",
    "as_float",
    "as_int",
    "as_positions",
    "as_range",
    "as_text",
    "as_tokens",
    "as_utf8",
]

INT32_MAX = 2**31 - 1

Int32Array = npt.NDArray[np.int32]


def as_int(value: Any, name: str, low: int, high: int) -> int:
    """An integer in [low, high]. Booleans are no integers here: ``seq=True`` is a mistake."""
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{name} is {value!r}; it has to be an integer from {low} to {high}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {_shown(value)}; it has to be an integer from {low} to {high}") from None
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {_shown(number)}; it has to be from {low} to {high}")
    return number


def as_bool(value: Any, name: str) -> bool:
    """A truth value; only real booleans and 0 or 1, so that ``"no"`` is not true."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"{name} is {_shown(value)}; it has to be True or False")


def as_float(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number in [low, high]."""
    if isinstance(value, (str, bytes, bytearray, bool, np.bool_)):
        raise ArgumentError(f"{name} is {_shown(value)}; it has to be a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {_shown(value)}; it has to be a number") from None
    # C has 32 bits: what overflows there would be infinite.
    if not math.isfinite(number) or abs(number) > 3.0e38 or not low <= number <= high:
        allowed = "finite" if math.isinf(low) and math.isinf(high) else f"from {low} to {high}"
        raise ArgumentError(f"{name} is {number}; it has to be {allowed}")
    return number


def as_text(value: Any, name: str) -> bytes:
    """A string as UTF-8, without NUL characters (C would stop there)."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {_shown(value)}; it has to be a str")
    encoded = as_utf8(value, name)
    if b"\0" in encoded:
        raise ArgumentError(f"{name} has a NUL character at byte {encoded.index(0)}; C strings cannot hold one")
    return encoded


def as_utf8(value: str, name: str) -> bytes:
    """Text as UTF-8, NUL characters and all."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as err:
        raise ArgumentError(f"{name} has a lone surrogate at character {err.start}; it has to be valid text") from None


def as_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in choices:
        return value
    raise ArgumentError(f"{name} is {_shown(value)}; it has to be one of {', '.join(choices)}")


def as_range(p0: Any, p1: Any) -> tuple[int, int]:
    """A half-open range of positions; None is the beginning or the end. The end becomes -1, as C wants it."""
    start = 0 if p0 is None else as_int(p0, "p0", 0, INT32_MAX)
    end = -1 if p1 is None else as_int(p1, "p1", 0, INT32_MAX)
    if end >= 0 and start > end:
        raise ArgumentError(f"the range [{start}, {end}) is empty backwards; p0 has to be at most p1")
    return start, end


def as_tokens(ids: Any, n_vocab: int, *, empty: bool = False) -> Int32Array:
    """Token ids as int32 [n], every one in [0, n_vocab). A single integer is one token; none only where ``empty``."""
    if type(ids) is int:
        if not 0 <= ids < n_vocab:
            raise ArgumentError(f"token {_shown(ids)} is not in the vocabulary, which has ids from 0 to {n_vocab - 1}")
        return np.array([ids], dtype=np.int32)
    array = _integer_array(ids, "ids")
    if array.size == 0:
        if empty:
            return array
        raise ArgumentError("ids is empty; at least one token is needed")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n_vocab:
        bad = low if low < 0 else high
        at = int(np.flatnonzero(array == bad)[0])
        raise ArgumentError(f"ids[{at}] is {bad}; the vocabulary has ids from 0 to {n_vocab - 1}")
    return array.astype(np.int32, copy=False)


def as_positions(pos: Any, count: int, follows: int) -> Int32Array:
    """Positions int32 [count]: None continues at ``follows``, an integer starts a run, an array is taken as is."""
    if pos is None:
        start = follows
    elif isinstance(pos, (int, np.integer)) and not isinstance(pos, (bool, np.bool_)):
        start = as_int(pos, "pos", 0, INT32_MAX)
    else:
        array = _integer_array(pos, "pos")
        if array.shape != (count,):
            raise ArgumentError(f"pos has {array.size} entries for {count} tokens; give one position for each")
        if int(array.min()) < 0 or int(array.max()) >= INT32_MAX:
            raise ArgumentError(f"pos holds values outside of 0 to {INT32_MAX - 1}")
        return array.astype(np.int32, copy=False)
    if start + count > INT32_MAX:
        raise ArgumentError(f"positions {start} to {start + count - 1} do not fit 32 bits; shift the sequence down")
    return np.arange(start, start + count, dtype=np.int32)


def as_embeddings(values: Any, n_embd: int) -> npt.NDArray[np.float32]:
    """Input embeddings as float32 [n, n_embd]; NaN and Inf are let through (they are how poison is tested)."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as err:
        raise ArgumentError(f"the embeddings cannot be read as an array: {err}") from None
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or array.shape[-1] != n_embd or array.size == 0:
        raise ArgumentError(
            f"the embeddings have shape {array.shape} and type {array.dtype}; they have to be float32 [n, {n_embd}]"
        )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array.reshape(-1, n_embd), dtype=np.float32)


def _integer_array(values: Any, name: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values if hasattr(values, "__len__") or hasattr(values, "__array__") else list(values))
    except (TypeError, ValueError, OverflowError) as err:
        raise ArgumentError(f"{name} is {_shown(values)}; it has to be a sequence of integers ({err})") from None
    if array.ndim == 0:
        array = array.reshape(1)
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ArgumentError(f"{name} has shape {array.shape} and type {array.dtype}; it has to be integers [n]")
    return array


def _shown(value: Any) -> str:
    """A short repr: the rubbish that was given may be long, or fail to print itself."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
