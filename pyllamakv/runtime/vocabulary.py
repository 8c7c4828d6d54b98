"""Tokens and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..native import Library
from . import checks

__all__ = ["Vocabulary"]


class Vocabulary:
    """A model's vocabulary. Thread-safe, as upstream's is.

    ``in_use`` raises when the model was closed: the pointer belongs to it.
    """

    def __init__(self, library: Library, pointer: Any, in_use: Callable[[], object]) -> None:
        self._library = library
        self._pointer = pointer
        self._in_use = in_use
        self.n_tokens: int = library.lib.llama_vocab_n_tokens(pointer)
        #: False for files that carry no tokenizer (upstream's generated test models).
        self.has_tokenizer: bool = int(library.lib.llama_vocab_type(pointer)) != library.lib.LLAMA_VOCAB_TYPE_NONE

    @cached_property
    def bos(self) -> int | None:
        """Beginning of sequence."""
        return self._special("bos")

    @cached_property
    def eos(self) -> int | None:
        """End of sequence."""
        return self._special("eos")

    @cached_property
    def eot(self) -> int | None:
        """End of turn."""
        return self._special("eot")

    @cached_property
    def nl(self) -> int | None:
        """Line break."""
        return self._special("nl")

    def _special(self, name: str) -> int | None:
        self._in_use()
        token = int(getattr(self._library.lib, f"llama_vocab_{name}")(self._pointer))
        return None if token < 0 else token

    def text_or_empty(self, token: int | None) -> str:
        """A token's text in the file, ``""`` for None: what chat templates call ``bos_token``."""
        self._in_use()
        if token is None or not self.has_tokenizer:
            return ""
        return self._library.text(self._library.lib.llama_vocab_get_text(self._pointer, token))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """See ``Model.tokenize``."""
        self._need()
        if not isinstance(text, str):
            raise ArgumentError(f"text is of type {type(text).__name__}; it has to be a str")
        raw = checks.as_utf8(text, "text")
        if len(raw) > checks.INT32_MAX - 256:
            raise ArgumentError(f"text has {len(raw)} bytes; the library takes less than 2 GiB at a time")
        special = checks.as_bool(add_special, "add_special"), checks.as_bool(parse_special, "parse_special")
        lib, ffi = self._library.lib, self._library.ffi
        room = len(raw) + 16  # hardly ever more tokens than bytes
        while True:
            out = np.empty(room, dtype=np.int32)
            pointer = ffi.from_buffer("llama_token[]", out)
            count = lib.llama_tokenize(self._pointer, raw, len(raw), pointer, room, *special)
            if count >= 0:
                return [int(t) for t in out[:count].tolist()]
            if not room < -count <= checks.INT32_MAX:
                raise ArgumentError(f"text of {len(raw)} bytes cannot be tokenised: too many tokens for the library")
            room = -count

    def detokenize(self, ids: Sequence[int], *, remove_special: bool, unparse_special: bool) -> bytes:
        """See ``Model.detokenize``."""
        self._need()
        flags = checks.as_bool(remove_special, "remove_special"), checks.as_bool(unparse_special, "unparse_special")
        tokens = np.ascontiguousarray(checks.as_tokens(ids, self.n_tokens, empty=True))
        if not len(tokens):
            return b""
        lib, ffi = self._library.lib, self._library.ffi
        source = ffi.from_buffer("llama_token[]", tokens)
        room = 8 * len(tokens) + 64
        while True:
            out = bytearray(room)
            length = lib.llama_detokenize(
                self._pointer, source, len(tokens), ffi.from_buffer("char[]", out, require_writable=True), room, *flags
            )
            if length >= 0:
                return bytes(out[:length])
            room = -length + 1

    def piece(self, token: int, *, special: bool) -> bytes:
        """See ``Model.token_bytes``."""
        self._need()
        token = checks.as_int(token, "token", 0, self.n_tokens - 1)
        lib, ffi = self._library.lib, self._library.ffi
        room, special = 64, checks.as_bool(special, "special")
        while True:
            out = ffi.new("char[]", room)
            length = lib.llama_token_to_piece(self._pointer, token, out, room, 0, special)
            if length >= 0:
                return bytes(ffi.buffer(out, length))
            room = -length

    def is_eog(self, token: int) -> bool:
        """See ``Model.is_eog``."""
        self._in_use()
        token = checks.as_int(token, "token", 0, self.n_tokens - 1)
        return bool(self._library.lib.llama_vocab_is_eog(self._pointer, token))

    def _need(self) -> None:
        self._in_use()
        if not self.has_tokenizer:
            raise ArgumentError("this model's file has no tokenizer; work with token ids")
