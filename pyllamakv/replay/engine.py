"""The C API as a llama.cpp program uses it: nothing of ours between a scenario and the library under test.

The runtime's ``Model`` and ``Context`` check arguments, refuse what C would assert on and prefer the strict ``pkv_*``
calls. A replay must not have that help: it makes exactly the calls that a llama.cpp program makes, on stock and patched
alike, so that the library alone makes the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from pyllamakv.errors import DecodeError, ModelLoadError, StateError

__all__ = ["BATCH", "ON_DEVICE", "PARTIAL_ONLY", "Engine", "LibraryLike", "Logits", "Window"]

Logits = npt.NDArray[np.float32]

#: Tokens in one ``llama_decode``; contexts are opened with this ``n_batch`` unless a scenario says otherwise.
BATCH = 512

_DECODE = {
    1: "no free slot for the batch: the memory says that it is full",
    2: "aborted",
    -1: "invalid batch",
    -2: "failed to allocate or compute",
    -3: "failed to compute",
}


#: ``LLAMA_STATE_SEQ_FLAGS_*``.
PARTIAL_ONLY, ON_DEVICE = 1, 2

# M-RoPE reads four positions of an embedding, every other model the first alone
_POSITIONS = 4


def _last(count: int) -> npt.NDArray[np.int8]:
    """Logits of the last of ``count`` tokens."""
    keep = np.zeros(count, dtype=np.int8)
    keep[-1] = 1
    return keep


class LibraryLike(Protocol):
    """What a loaded library has to offer: cffi's handle and its ``FFI``."""

    @property
    def lib(self) -> Any: ...

    @property
    def ffi(self) -> Any: ...


class Engine:
    """One model in one library."""

    #: ``llama_model_params`` that differ from the library's own defaults: none, a replay is what users get.
    MODEL_SETTINGS: ClassVar[dict[str, Any]] = {}

    def __init__(self, library: LibraryLike, path: Path, *, threads: int = 1) -> None:
        self.library = library
        self.lib, self.ffi = library.lib, library.ffi
        self.path = path
        self.threads = threads
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        for name, value in self.MODEL_SETTINGS.items():
            setattr(params, name, value)
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if self.model == self.ffi.NULL:
            raise ModelLoadError(f"{path}: the library cannot load this model (its messages are above)")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab: int = self.lib.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = self.lib.llama_model_n_ctx_train(self.model)
        self.n_embd: int = self.lib.llama_model_n_embd_inp(self.model)
        # the zoo's tiny f32 models carry numbers for words
        self.has_text: bool = self._meta(b"tokenizer.ggml.model") not in ("", "none", "test")
        self.template = self._template()

    def close(self) -> None:
        """Frees the model; every window must be closed before."""
        if self.model != self.ffi.NULL:
            self.lib.llama_model_free(self.model)
            self.model = self.ffi.NULL

    def _template(self) -> bytes:
        found = self.lib.llama_model_chat_template(self.model, self.ffi.NULL)
        if found != self.ffi.NULL:
            return bytes(self.ffi.string(found))
        # The packaged Gemma 3 carries no template; llama.cpp knows the family's under this name.
        return b"gemma" if self.architecture.startswith("gemma") else b"chatml"

    @property
    def architecture(self) -> str:
        """``general.architecture`` of the model."""
        return self._meta(b"general.architecture")

    def _meta(self, key: bytes) -> str:
        buffer = self.ffi.new("char[]", 128)
        self.lib.llama_model_meta_val_str(self.model, key, buffer, 128)
        return bytes(self.ffi.string(buffer)).decode()

    def tokenize(self, text: str, *, start: bool = False) -> list[int]:
        """Token ids of ``text``; special tokens are recognised, and a start gets the model's BOS."""
        data = text.encode()
        out = self.ffi.new("llama_token[]", len(data) + 8)
        count = self.lib.llama_tokenize(self.vocab, data, len(data), out, len(data) + 8, start, True)
        return list(self.ffi.unpack(out, count)) if count else []

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special tokens left out."""
        size = 16 * len(tokens) + 64
        buffer = self.ffi.new("char[]", size)
        count = self.lib.llama_detokenize(self.vocab, list(tokens), len(tokens), buffer, size, True, False)
        return bytes(self.ffi.buffer(buffer, max(count, 0))).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends a turn."""
        return bool(self.lib.llama_vocab_is_eog(self.vocab, token))

    def format(self, role: str, content: str, *, prompt: bool = False) -> str:
        """One message in the model's chat template, with the head of the answer behind it where ``prompt`` is set."""
        name, text = self.ffi.new("char[]", role.encode()), self.ffi.new("char[]", content.encode())
        message = self.ffi.new("llama_chat_message *")
        message.role, message.content = name, text
        size = 2 * len(content.encode()) + 512
        buffer = self.ffi.new("char[]", size)
        count = self.lib.llama_chat_apply_template(self.template, message, 1, prompt, buffer, size)
        if count < 0:
            raise ModelLoadError(f"{self.path}: llama.cpp does not know the model's chat template")
        return bytes(self.ffi.buffer(buffer, count)).decode()

    def params(self, settings: Mapping[str, Any]) -> Any:
        """``llama_context_params`` with ``settings`` (llama.cpp's own names; ``flash_attn`` is a bool) over ours."""
        params = self.lib.llama_context_default_params()
        merged: dict[str, Any] = {"n_batch": BATCH, "n_ubatch": BATCH, "flash_attn": False, "no_perf": True}
        merged |= settings
        merged["flash_attn_type"] = int(merged.pop("flash_attn"))
        merged["n_threads"] = merged["n_threads_batch"] = self.threads
        for name, value in merged.items():
            setattr(params, name, value)
        return params

    def open(self, **settings: Any) -> Window:
        """A fresh context."""
        return Window(self, settings)


class Window:
    """One context, called as C would call it. Positions are the caller's own count, as in every llama.cpp program."""

    def __init__(self, engine: Engine, settings: Mapping[str, Any]) -> None:
        self.engine = engine
        self.settings = dict(settings)
        self.lib, self.ffi = engine.lib, engine.ffi
        self.ctx = self.lib.llama_init_from_model(engine.model, engine.params(settings))
        if self.ctx == self.ffi.NULL:
            raise DecodeError(f"llama_init_from_model returned no context for {dict(settings)}")
        self.memory = self.lib.llama_get_memory(self.ctx)
        self.n_batch: int = self.lib.llama_n_batch(self.ctx)

    def close(self) -> None:
        """Frees the context."""
        if self.ctx != self.ffi.NULL:
            self.lib.llama_free(self.ctx)
            self.ctx = self.ffi.NULL

    def __enter__(self) -> Window:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # decode

    def decode(self, tokens: Sequence[int], pos: int | None, seq: int = 0) -> Logits:
        """One sequence's next tokens, in batches of at most ``n_batch``; float32 [n_vocab] of the last one.

        ``pos`` None leaves the positions to llama.cpp. Raises ``DecodeError`` with the library's code.
        """
        for start in range(0, len(tokens), self.n_batch):
            piece = list(tokens[start : start + self.n_batch])
            code = self.try_decode(piece, None if pos is None else pos + start, seq)
            if code:
                raise DecodeError(f"llama_decode returned {code}: {_DECODE.get(code, 'failed')}", code=code)
        return self.logits()

    def try_decode(self, tokens: Sequence[int], pos: int | None, seq: int = 0) -> int:
        """One ``llama_decode`` of one sequence's tokens, logits for the last; its return code."""
        ids = np.asarray(tokens, dtype=np.int32)
        positions = None if pos is None else np.arange(pos, pos + len(ids), dtype=np.int32)
        return self.submit(
            [(seq,)] * len(ids), positions, _last(len(ids)), token=self.ffi.from_buffer("llama_token[]", ids)
        )

    def try_embed(self, rows: npt.NDArray[np.float32], pos: int, seq: int = 0) -> int:
        """One ``llama_decode`` of ``rows``, float32 [n, n_embd], in place of tokens; its return code."""
        data = np.ascontiguousarray(rows, dtype=np.float32)
        positions = np.tile(np.arange(pos, pos + len(rows), dtype=np.int32), _POSITIONS)
        return self.submit(
            [(seq,)] * len(rows), positions, _last(len(rows)), embd=self.ffi.from_buffer("float[]", data)
        )

    def submit(
        self,
        owners: Sequence[Sequence[int]],
        positions: npt.NDArray[np.int32] | None,
        keep: npt.NDArray[np.int8],
        *,
        token: Any = None,
        embd: Any = None,
    ) -> int:
        """One ``llama_decode`` of any batch; its return code.

        ``owners``: the sequences of each token; ``positions``: int32 [n] (of embeddings [4 n]), None leaves them to
        llama.cpp; ``keep``: int8 [n], whether logits are asked for; ``token``, ``embd``: what the batch points to.
        """
        ffi = self.ffi
        batch = ffi.new("struct llama_batch *")
        batch.n_tokens = len(owners)
        batch.token = ffi.NULL if token is None else token
        batch.embd = ffi.NULL if embd is None else embd
        arrays = [ffi.new("llama_seq_id[]", list(each)) for each in owners]
        pointers = ffi.new("llama_seq_id *[]", arrays)
        counts = ffi.new("int32_t[]", [len(each) for each in owners])
        batch.pos = ffi.NULL if positions is None else ffi.from_buffer("llama_pos[]", positions)
        batch.n_seq_id, batch.seq_id = counts, pointers
        batch.logits = ffi.from_buffer("int8_t[]", keep)
        return int(self.lib.llama_decode(self.ctx, batch[0]))

    def logits(self) -> Logits:
        """A copy of the last token's logits, float32 [n_vocab]."""
        row = self.lib.llama_get_logits_ith(self.ctx, -1)
        if row == self.ffi.NULL:
            raise DecodeError("llama_get_logits_ith returned nothing for the last token")
        view = np.frombuffer(self.ffi.buffer(row, 4 * self.engine.n_vocab), dtype=np.float32)
        copy: Logits = view.copy()
        return copy

    # memory: llama.h's calls by their own names, negative numbers meaning what they mean there

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return bool(self.lib.llama_memory_seq_rm(self.memory, seq, p0, p1))

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        self.lib.llama_memory_seq_cp(self.memory, src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        self.lib.llama_memory_seq_keep(self.memory, seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.lib.llama_memory_seq_add(self.memory, seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self.lib.llama_memory_seq_div(self.memory, seq, p0, p1, divisor)

    def can_shift(self) -> bool:
        return bool(self.lib.llama_memory_can_shift(self.memory))

    def clear(self, data: bool = True) -> None:
        self.lib.llama_memory_clear(self.memory, data)

    def positions(self, seq: int) -> tuple[int, int]:
        """Lowest and highest position of the sequence, -1 where it is empty."""
        return (
            int(self.lib.llama_memory_seq_pos_min(self.memory, seq)),
            int(self.lib.llama_memory_seq_pos_max(self.memory, seq)),
        )

    def residue(self) -> int | None:
        """Bytes in free cells that are not zero, where the library can tell."""
        count = getattr(self.lib, "pkv_memory_residue", None)
        return None if count is None else int(count(self.ctx))

    def save(self, seq: int) -> bytes:
        """``llama_state_seq_get_data``."""
        size = self.lib.llama_state_seq_get_size(self.ctx, seq)
        buffer = self.ffi.new("uint8_t[]", size)
        written = self.lib.llama_state_seq_get_data(self.ctx, buffer, size, seq)
        return bytes(self.ffi.buffer(buffer, written))

    def load(self, seq: int, blob: bytes) -> None:
        """``llama_state_seq_set_data``; raises ``StateError`` where it reads nothing."""
        if not self.lib.llama_state_seq_set_data(self.ctx, self.ffi.from_buffer("uint8_t[]", blob), len(blob), seq):
            raise StateError("llama_state_seq_set_data refused a state that the same library saved")

    def save_ext(self, seq: int, flags: int) -> bytes:
        """``llama_state_seq_get_data_ext``."""
        size = self.lib.llama_state_seq_get_size_ext(self.ctx, seq, flags)
        buffer = self.ffi.new("uint8_t[]", max(size, 1))
        written = self.lib.llama_state_seq_get_data_ext(self.ctx, buffer, size, seq, flags)
        return bytes(self.ffi.buffer(buffer, written))

    def try_load(self, seq: int, blob: bytes, flags: int = 0) -> int:
        """``llama_state_seq_set_data_ext``: bytes read, 0 for a failure."""
        data = self.ffi.from_buffer("uint8_t[]", blob)
        return int(self.lib.llama_state_seq_set_data_ext(self.ctx, data, len(blob), seq, flags))

    def save_whole(self) -> bytes:
        """``llama_state_get_data``."""
        size = self.lib.llama_state_get_size(self.ctx)
        buffer = self.ffi.new("uint8_t[]", size)
        return bytes(self.ffi.buffer(buffer, self.lib.llama_state_get_data(self.ctx, buffer, size)))

    def try_load_whole(self, blob: bytes) -> int:
        """``llama_state_set_data``: bytes read, 0 for a failure."""
        return int(self.lib.llama_state_set_data(self.ctx, self.ffi.from_buffer("uint8_t[]", blob), len(blob)))
