"""A context: what a model computes with, and the memory of its sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import native
from ..errors import ArgumentError, MemoryFullError, RefusedError
from ..native.status import decode_error, log_text
from . import checks
from .batch import Batch, Entry, Prepared, cut
from .handle import Handle, Owner
from .held import Held
from .memory import Memory
from .model import Model
from .options import ContextOptions
from .quirks import one_sequence_batches, shift_obstacle
from .router import NON_FINITE, Router

__all__ = ["Context"]

Floats = npt.NDArray[np.float32]
_OUTPUTS = {"none": 0, "last": 1, "all": 2}
_POOLING_NONE, _POOLING_RANK = 0, 4


class Context(Handle):
    """Decodes tokens into logits and remembers them. Made by ``Model.context``.

    Args:
        model: it stays alive as long as the context.
        abort: asked between operations of a decode (on the CPU); true stops it with DecodeError.
        options: see ``ContextOptions``: ``n_ctx``, ``n_batch``, ``n_ubatch``, ``n_seq_max``, ``kv_unified``,
            ``swa_full``, ``flash_attn`` (None lets the library decide), ``type_k``, ``type_v``, ``n_rs_seq``,
            ``n_threads``, ``embeddings``, ``pooling_type``…

    Threads may share a context: calls wait for each other. While C computes, other Python threads run.

    Raises:
        ArgumentError: an option is out of range, or the model cannot compute (``vocab_only``).
        MemoryFullError: there is not enough memory.
        RefusedError: the library refuses these options for this model; with its own words.
    """

    def __init__(self, model: Model, *, abort: Callable[[], object] | None = None, **options: Any) -> None:
        if not isinstance(model, Model):
            raise ArgumentError(f"model is of type {type(model).__name__}; it has to be a Model")
        pointer = model._use()
        if model.vocab_only:
            raise ArgumentError("the model was loaded with vocab_only=True, without weights; load it again without")
        self.model = model
        self.options = ContextOptions.from_keywords(options)
        self.library = model.library
        self._ffi, self._lib = model.library.ffi, model.library.lib
        params = self._lib.llama_context_default_params()
        self.options.fill(model.library, params, model.n_ctx_train, model.architecture)
        with native.captured_log() as lines:
            ctx = self._lib.llama_init_from_model(pointer, params)
        if ctx == self._ffi.NULL:
            said = log_text(lines) or "the library says no more"
            kind = MemoryFullError if "alloc" in said else RefusedError
            raise kind(f"a context with {self.options} could not be made: {said}")
        turns = model.rope_type != "none"  # without rotation, a shift changes numbers only
        self._shift_obstacle = (
            shift_obstacle(lines, self.options.type_k or "f16", model.partial_rotary)
            if turns and not model.library.has_pkv
            else ""
        )
        assert model._owner is not None
        self._owner = Owner(ctx, self._lib.llama_free, model._owner)
        self._lock = threading.RLock()
        self.n_ctx: int = self._lib.llama_n_ctx(ctx)
        self.n_ctx_seq: int = self._lib.llama_n_ctx_seq(ctx)
        self.n_batch: int = self._lib.llama_n_batch(ctx)
        self.n_ubatch: int = self._lib.llama_n_ubatch(ctx)
        self.n_seq_max: int = self._lib.llama_n_seq_max(ctx)
        self.n_rs_seq: int = self._lib.llama_n_rs_seq(ctx)
        self.kv_unified = bool(params.kv_unified)
        self.pooling: int = int(self._lib.llama_pooling_type(ctx))
        #: Tokens that one llama_decode takes: attention that looks ahead cannot be cut into pieces.
        self._piece = self.n_batch if self._lib.llama_get_causal_attn(ctx) else min(self.n_batch, self.n_ubatch)
        self._embeds = bool(params.embeddings)
        self._pools = self._embeds and self.pooling != _POOLING_NONE
        if self._pools:  # upstream pools one micro-batch at a time
            self._piece = min(self._piece, self.n_ubatch)
        self._held = Held(self.n_seq_max)
        self._batch = Batch(self._ffi, self.n_batch, 4 if "mrope" in model.rope_type else 1)
        self._n_outputs = 0
        self._encoded = False
        self._abort: native.AbortFlag | None = None
        self.memory = Memory(self)
        self.router = Router(self)
        if abort is not None:
            self.set_abort(abort)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Context of {self.model.path.name}: {self.n_ctx} cells, {self.n_seq_max} sequences{state}>"

    def close(self) -> None:
        """Free it, after a decode that another thread is in; views into the logits keep it until they are gone."""
        with self._lock:
            super().close()

    def set_abort(self, question: Callable[[], object] | None) -> None:
        """Set or remove (None) the abort callback."""
        with self._locked() as ctx:
            if question is None:
                self._abort = None
                self._lib.llama_set_abort_callback(ctx, self._ffi.NULL, self._ffi.NULL)
                return
            if not callable(question):
                raise ArgumentError(f"abort is {question!r}; it has to be callable, or None")
            flag = native.AbortFlag(self._ffi, question)
            self._lib.llama_set_abort_callback(ctx, flag.callback, self._ffi.NULL)
            self._abort = flag

    def set_threads(self, n_threads: int, n_threads_batch: int | None = None) -> None:
        """Threads for single tokens, and for batches (the same when None)."""
        n = checks.as_int(n_threads, "n_threads", 1, 512)
        batch = n if n_threads_batch is None else checks.as_int(n_threads_batch, "n_threads_batch", 1, 512)
        with self._locked() as ctx:
            self._lib.llama_set_n_threads(ctx, n, batch)

    def decode(self, ids: Any, *, seq: int = 0, pos: Any = None, logits: str = "last") -> Floats | None:
        """Feed tokens to a sequence.

        Args:
            ids: token ids [n], or one; more than ``n_batch`` are fed in pieces.
            seq: the sequence, 0 to ``n_seq_max - 1``.
            pos: position of the first token, or positions [n]; None continues the sequence.
            logits: ``"last"``: of the last token [n_vocab]; ``"all"``: of every token [n, n_vocab]; ``"none"``.

        Returns:
            float32 that the caller owns; None for ``"none"``, and for models that have no logits.

        Raises:
            ArgumentError: before anything was decoded.
            MemoryFullError: no slot for a piece; what was decoded before stays, ``memory.positions`` tells.
            DecodeError: the library failed, or the abort callback stopped it.
            NonFiniteError: a mixture of experts was routed by NaN (see ``router``); the sequence is as before.
        """
        with self._locked() as ctx:
            output = self._output(logits)
            seq = self._seq(seq)
            tokens = checks.as_tokens(ids, self.model.n_vocab)
            positions = self._positions(pos, len(tokens), seq)
            if len(tokens) == 1:
                self._batch.one(int(tokens[0]), int(positions[0]), seq, output != 0)
                self._run(ctx, (seq,))
                self._held.add(seq, positions)
                return self._last(ctx) if output else None
            return self._pieces(ctx, self._batch.tokens, tokens, positions, seq, output)

    def decode_embeddings(self, values: Any, *, seq: int = 0, pos: Any = None, logits: str = "last") -> Floats | None:
        """Feed input embeddings, float32 [n, n_embd_inp], instead of tokens; the rest as in ``decode``."""
        with self._locked() as ctx:
            output = self._output(logits)
            seq = self._seq(seq)
            rows = checks.as_embeddings(values, self.model.n_embd_inp)
            return self._pieces(ctx, self._batch.embeddings, rows, self._positions(pos, len(rows), seq), seq, output)

    def decode_batch(self, entries: Iterable[Entry]) -> list[Floats | None]:
        """Feed several sequences at once: one ``llama_decode`` for up to ``n_batch`` tokens.

        Returns:
            For each entry what ``decode`` would return.

        Raises:
            As ``decode``. Positions that an entry leaves open continue after the entries before it.
        """
        with self._locked() as ctx:
            prepared = self._prepare(entries)
            if self._pools or not self._lib.llama_get_causal_attn(ctx):
                self._fits(ctx, [len(entry.tokens) for entry in prepared])
            rows: list[list[Floats]] = [[] for _ in prepared]
            alone = one_sequence_batches(self.model.architecture) and not self.library.has_pkv
            for piece in cut(prepared, self._piece, alone):
                self._batch.clear()
                for i, a, b in piece:
                    entry = prepared[i]
                    self._batch.append(entry.tokens[a:b], entry.positions[a:b], entry.seqs, entry.output[a:b])
                self._run(ctx, tuple({s for i, _, _ in piece for s in prepared[i].seqs}))
                everything = self._rows(ctx, self._n_outputs) if self._n_outputs else None
                row = 0
                for i, a, b in piece:
                    entry = prepared[i]
                    for s in entry.seqs:
                        self._held.add(s, entry.positions[a:b])
                    asked = np.flatnonzero(entry.output[a:b])
                    if everything is not None and len(asked):
                        # An embedding context has a row for every token, whatever was asked.
                        rows[i].append(everything[row + (asked if self._embeds else np.arange(len(asked)))])
                    row += b - a if self._embeds else len(asked)
            return [
                None if not got else got[0][0] if entry.last else np.concatenate(got)
                for got, entry in zip(rows, prepared, strict=True)
            ]

    def encode(self, ids: Any) -> None:
        """Run the encoder of an encoder-decoder model (T5); ``decode`` then attends to its output.

        Raises:
            RefusedError: the model has no encoder.
        """
        with self._locked() as ctx:
            if not self.model.has_encoder:
                raise RefusedError(f"{self.model.architecture} has no encoder; use decode")
            tokens = checks.as_tokens(ids, self.model.n_vocab)
            positions = self._positions(0, len(tokens), 0)
            if len(tokens) > self.n_ubatch:
                raise ArgumentError(f"{len(tokens)} tokens, but an encoder takes n_ubatch={self.n_ubatch} at once")
            self._batch.tokens(tokens, positions, 0, 2)
            self._run(ctx, (), encode=True)
            self._encoded = True

    def logits_view(self) -> Floats:
        """Logits of the last ``decode`` call's last piece without a copy: float32 [n_outputs, n_vocab], read-only.

        The rows are the library's own buffer: the next decode or encode of this context overwrites or moves it, and the
        view must not be read afterwards. Copy what has to last. Closing the context does not hurt it.

        Raises:
            RefusedError: nothing was decoded yet, no logits were asked for, or the model has none.
        """
        with self._locked() as ctx:
            rows = self._rows(ctx, self._n_outputs) if self._n_outputs else None
            if rows is None:
                raise RefusedError("there are no logits: decode something with logits='last' or 'all' first")
            rows.flags.writeable = False
            return rows

    def embeddings(self, seq: int = 0) -> Floats:
        """Pooled embedding of a sequence of the last decode: float32 [n_embd_out] (a ranking model: [n_cls_out]).

        Raises:
            RefusedError: the context has no embeddings or no pooling, or the sequence was not in the last decode.

        All tokens that are pooled have to be in one decode, and in one ``n_ubatch``; decode refuses others.
        """
        with self._locked() as ctx:
            seq = self._seq(seq)
            if not self._embeds or self.pooling == _POOLING_NONE:
                raise RefusedError(
                    "the context pools no embeddings: make it with embeddings=True and a pooling_type, "
                    "or take token_embeddings()"
                )
            pointer = self._lib.llama_get_embeddings_seq(ctx, seq)
            if pointer == self._ffi.NULL:
                raise RefusedError(f"the last decode had no tokens of sequence {seq}: decode them, then ask")
            n = self.model.n_cls_out if self.pooling == _POOLING_RANK else self.model.n_embd_out
            vector: Floats = self._floats(pointer, n).copy()
            return vector

    def token_embeddings(self) -> Floats:
        """Embeddings of the tokens of the last decode's last piece: float32 [n, n_embd_out].

        Raises:
            RefusedError: the context has no embeddings, or pools them.
        """
        with self._locked() as ctx:
            pointer = self._lib.llama_get_embeddings(ctx) if self._embeds and self._n_outputs else self._ffi.NULL
            if pointer == self._ffi.NULL or self.pooling != _POOLING_NONE:
                raise RefusedError(
                    "there are no token embeddings: make the context with embeddings=True and pooling_type='none', "
                    "and decode something"
                )
            n = self.model.n_embd_out
            rows: Floats = self._floats(pointer, self._n_outputs * n).reshape(self._n_outputs, n).copy()
            return rows

    # What follows is for this package: the lock is held by the caller, arguments are checked.

    @contextmanager
    def _locked(self) -> Iterator[Any]:
        with self._lock:
            yield self._use()

    def _seq(self, seq: Any) -> int:
        if type(seq) is int and 0 <= seq < self.n_seq_max:
            return seq
        return checks.as_int(seq, "seq", 0, self.n_seq_max - 1)

    def _output(self, logits: Any) -> int:
        output = _OUTPUTS.get(logits) if isinstance(logits, str) else None
        if output is None:
            raise ArgumentError(f"logits is {logits!r}; it has to be 'last', 'all' or 'none'")
        return output

    def _positions(self, pos: Any, count: int, seq: int, follows: int | None = None) -> npt.NDArray[np.int32]:
        if pos is None and follows is None:
            follows = self.memory._highest(seq) + 1
        positions = checks.as_positions(pos, count, follows or 0)
        limit = self.model.position_limit
        if limit is not None and int(positions.max()) >= limit:
            raise ArgumentError(
                f"position {int(positions.max())} is beyond the {limit} that {self.model.architecture} has learned; "
                "remove or shift what came before"
            )
        return positions

    def _prepare(self, entries: Iterable[Entry]) -> list[Prepared]:
        try:
            listed = list(entries)
        except TypeError:
            raise ArgumentError(f"entries is {entries!r}; it has to be a list of Entry") from None
        if not listed:
            raise ArgumentError("entries is empty; at least one Entry is needed")
        prepared: list[Prepared] = []
        after: dict[int, int] = {}
        for entry in listed:
            if not isinstance(entry, Entry):
                raise ArgumentError(f"entries holds a {type(entry).__name__}; every one has to be an Entry")
            wanted = self._output(entry.logits)
            given = entry.seq if isinstance(entry.seq, (list, tuple)) else [entry.seq]
            seqs = list(dict.fromkeys(self._seq(s) for s in given))
            if not seqs:
                raise ArgumentError("an Entry has no sequence; give one, or several in a list")
            tokens = checks.as_tokens(entry.tokens, self.model.n_vocab)
            positions = self._positions(entry.pos, len(tokens), seqs[0], after.get(seqs[0]))
            after.update(dict.fromkeys(seqs, int(positions[-1]) + 1))
            output = np.full(len(tokens), wanted == 2, np.int8)
            output[-1] = wanted != 0
            prepared.append(Prepared(tokens, positions, seqs, output, wanted == 1))
        return prepared

    def _pieces(
        self, ctx: Any, fill: Callable[..., None], values: Any, positions: Any, seq: int, output: int
    ) -> Floats | None:
        n = len(values)
        self._fits(ctx, [n])
        rows = np.empty((n, self.model.n_vocab), np.float32) if output == 2 else None
        for a in range(0, n, self._piece):
            b = min(n, a + self._piece)
            fill(values[a:b], positions[a:b], seq, output if output == 2 or b == n else 0)
            self._run(ctx, (seq,))
            self._held.add(seq, positions[a:b])
            if rows is not None:
                piece = self._rows(ctx, b - a)
                if piece is None:
                    rows = None
                else:
                    rows[a:b] = piece
        return self._last(ctx) if output == 1 else rows

    def _fits(self, ctx: Any, lengths: Sequence[int]) -> None:
        """Refuse what would be cut into micro-batches although it has to be seen at once."""
        total = sum(lengths)
        causal = self._lib.llama_get_causal_attn(ctx)
        if total > self._piece and (self._pools or not causal):
            why = "pooled embeddings need" if causal else "attention that looks ahead needs"
            raise ArgumentError(f"{total} tokens, but {why} all of them in one n_ubatch, which is {self._piece}")
        if self._pools and not self.kv_unified and len(set(lengths)) > 1:
            raise ArgumentError(
                f"sequences of {sorted(set(lengths))} tokens are cut into micro-batches of equal parts, and only the "
                "last would be pooled; use kv_unified=True, or decode one sequence at a time"
            )

    def _run(self, ctx: Any, seqs: Sequence[int], *, encode: bool = False) -> None:
        """One llama_decode of the batch; on failure the books follow what the library kept."""
        if self.model.no_alloc:
            raise RefusedError("the model was loaded with no_alloc=True, without weights; load it again to compute")
        if self.model.has_encoder and self.model.has_decoder and not (encode or self._encoded):
            raise RefusedError(f"{self.model.architecture} needs encode() before decode()")
        batch = self._batch
        self._n_outputs = 0
        with native.captured_log() as lines:
            code = (self._lib.llama_encode if encode else self._lib.llama_decode)(ctx, batch.value)
        if code != 0:
            for seq in seqs:
                self._held.agree(seq, self.memory._highest(seq))
            if self._abort is not None:
                self._abort.reraise()
            what = f"{'encode' if encode else 'decode'} of {batch.size} tokens for sequences {sorted(seqs)}"
            if code == NON_FINITE and not encode:
                raise self.router._error(ctx, what, batch, seqs, not self._embeds)
            raise decode_error(int(code), what, lines)
        self._n_outputs = batch.size if self._embeds or encode else batch.outputs

    def _last(self, ctx: Any) -> Floats | None:
        pointer = self._lib.llama_get_logits_ith(ctx, -1)
        return None if pointer == self._ffi.NULL else self._floats(pointer, self.model.n_vocab).copy()

    def _rows(self, ctx: Any, n: int) -> Floats | None:
        """The first n rows of the library's logits; not a copy."""
        pointer = self._lib.llama_get_logits(ctx)
        if pointer == self._ffi.NULL:
            return None
        owner = self._owner
        pointer = self._ffi.gc(pointer, lambda _: owner)  # a view keeps the context that owns the buffer
        return self._floats(pointer, n * self.model.n_vocab).reshape(n, self.model.n_vocab)

    def _floats(self, pointer: Any, n: int) -> Floats:
        return np.frombuffer(self._ffi.buffer(pointer, 4 * n), dtype=np.float32)
