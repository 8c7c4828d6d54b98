"""A loaded model: its weights, its vocabulary, what its file says about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import native
from ..errors import ArgumentError, ModelLoadError
from ..native.status import log_text
from . import checks
from .chat_template import ChatTemplate
from .handle import Handle, Owner
from .hyperparameters import check_hyperparameters
from .model_file import check_model_file
from .quirks import learned_positions
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Model"]

_ROPE_TYPES = {-1: "none", 0: "norm", 2: "neox", 8: "mrope", 40: "imrope", 24: "vision"}


class Model(Handle):
    """A GGUF model.

    Args:
        path: the file (the first one of a split model).
        gpu_layers: how many layers go to the GPU; -1 for all.
        library: a libllama to load (file or folder); None takes the one of this process, or the default.
        use_mmap: map the file instead of reading it; None leaves it to the library.
        use_mlock: keep the weights from being swapped out.
        vocab_only: load no weights: tokenise and read metadata only.
        no_alloc: load no weights but plan their memory; contexts of it cannot decode.
        check_tensors: validate the weights while loading (slower).
        devices: names of the devices to use (``library.devices()`` lists them); None for all.
        main_gpu: index of the GPU for what is not split.
        use_extra_bufts: let the CPU keep weights in the order that its fastest kernels want.
        progress: called with 0.0 to 1.0 while loading; returning False (not None) stops it.

    Contexts keep the weights alive: ``close`` gives them back when the last context is closed.

    Raises:
        ModelLoadError: the file is missing, damaged, or of an unknown architecture; with the library's own words.
        LibraryNotFoundError, LibraryMismatchError: see ``native.load``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gpu_layers: int = 0,
        library: str | os.PathLike[str] | None = None,
        use_mmap: bool | None = True,
        use_mlock: bool = False,
        vocab_only: bool = False,
        no_alloc: bool = False,
        check_tensors: bool = False,
        devices: Sequence[str] | None = None,
        main_gpu: int = 0,
        use_extra_bufts: bool = True,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        try:
            self.path = Path(path).expanduser()
        except (TypeError, ValueError, RuntimeError) as err:
            raise ArgumentError(f"path is {path!r}; it has to be a path ({err})") from None
        self.vocab_only = checks.as_bool(vocab_only, "vocab_only")
        self.no_alloc = checks.as_bool(no_alloc, "no_alloc")
        self.gpu_layers = checks.as_int(gpu_layers, "gpu_layers", -1, checks.INT32_MAX)
        if progress is not None and not callable(progress):
            raise ArgumentError(f"progress is {progress!r}; it has to be callable")
        check_model_file(self.path)
        self.library = native.load(library)
        check_hyperparameters(self.library, self.path)
        ffi, lib = self.library.ffi, self.library.lib

        params = lib.llama_model_default_params()
        params.n_gpu_layers = self.gpu_layers
        params.main_gpu = checks.as_int(main_gpu, "main_gpu", 0, 1 << 16)
        params.vocab_only = self.vocab_only
        params.no_alloc = self.no_alloc
        params.check_tensors = checks.as_bool(check_tensors, "check_tensors")
        params.use_extra_bufts = checks.as_bool(use_extra_bufts, "use_extra_bufts")
        params.load_mode = _load_mode(lib, use_mmap, checks.as_bool(use_mlock, "use_mlock"))
        keep = [self._devices(devices)] if devices is not None else []
        if keep:
            params.devices = keep[0]
        raised: list[BaseException] = []
        if progress is not None:
            report: Callable[[float], object] = progress

            def forward(fraction: float, _data: Any) -> bool:
                try:
                    return report(float(fraction)) is not False
                except BaseException as err:
                    raised.append(err)
                    return False

            keep.append(ffi.callback("llama_progress_callback", forward, error=False))
            params.progress_callback = keep[-1]
        with native.captured_log() as lines:
            pointer = lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if raised:
            raise raised[0]
        if pointer == ffi.NULL:
            said = log_text(lines) or "the library says no more"
            raise ModelLoadError(f"{self.path} could not be loaded as a model: {said}")
        self._owner = Owner(pointer, lib.llama_model_free)
        self.vocabulary = Vocabulary(self.library, lib.llama_model_get_vocab(pointer), self._use)
        # Asked once: a context may be told these a thousand times a second.
        self.n_vocab: int = self.vocabulary.n_tokens
        self.n_embd: int = lib.llama_model_n_embd(pointer)
        self.n_embd_inp: int = lib.llama_model_n_embd_inp(pointer)
        self.n_embd_out: int = lib.llama_model_n_embd_out(pointer)
        self.n_layer: int = lib.llama_model_n_layer(pointer)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(pointer)
        self.n_head: int = lib.llama_model_n_head(pointer) if not self.vocab_only else 0
        self.n_head_kv: int = lib.llama_model_n_head_kv(pointer) if not self.vocab_only else 0
        self.n_swa: int = lib.llama_model_n_swa(pointer)
        self.rope_type: str = _ROPE_TYPES.get(int(lib.llama_model_rope_type(pointer)), "unknown")
        self.is_recurrent: bool = lib.llama_model_is_recurrent(pointer)
        self.is_hybrid: bool = lib.llama_model_is_hybrid(pointer)
        self.has_encoder: bool = lib.llama_model_has_encoder(pointer)
        self.has_decoder: bool = lib.llama_model_has_decoder(pointer)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Model {self.path.name} ({self.architecture}, {self.n_layer} layers{state})>"

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The file's scalar metadata as text, as the library renders it (``"llama.block_count": "30"``)."""
        model, lib = self._use(), self.library.lib
        found = {}
        for i in range(lib.llama_model_meta_count(model)):
            key = self._sized(lib.llama_model_meta_key_by_index, model, i)
            found[key] = self._sized(lib.llama_model_meta_val_str_by_index, model, i)
        return found

    @cached_property
    def architecture(self) -> str:
        """``general.architecture``: ``llama``, ``gemma3``…"""
        return self.metadata.get("general.architecture", "")

    @cached_property
    def description(self) -> str:
        """Architecture, size and quantisation in a few words."""
        return self._sized(self.library.lib.llama_model_desc, self._use())

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(self.library.lib.llama_model_size(self._use()))

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(self.library.lib.llama_model_n_params(self._use()))

    @property
    def n_cls_out(self) -> int:
        """Number of outputs of a reranking model's head."""
        return int(self.library.lib.llama_model_n_cls_out(self._use()))

    @cached_property
    def position_limit(self) -> int | None:
        """First position that the model has no learned embedding for; None where positions are computed."""
        return self.n_ctx_train if learned_positions(self.architecture) else None

    @cached_property
    def partial_rotary(self) -> bool:
        """Whether positions turn only a part of each attention head (GLM-4, StableLM, DeepSeek's MLA…)."""
        head = self._number("attention.key_length", self.n_embd // max(1, self.n_head))
        return self.rope_type != "none" and self._number("rope.dimension_count", head) != head

    @property
    def chat_template(self) -> str | None:
        """The chat template in the file, as Jinja source."""
        source = self.library.lib.llama_model_chat_template(self._use(), self.library.ffi.NULL)
        return self.library.text(source) or None

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render ``[{"role": …, "content": …}, …]`` with the model's own template, as transformers does.

        The text has the special tokens in it: tokenise it with ``parse_special=True, add_special=False``.

        Raises:
            ArgumentError: the model has no template, or the template refuses the messages (its words are shown).
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables)

    @cached_property
    def _template(self) -> ChatTemplate:
        source = self.chat_template
        if source is None:
            raise ArgumentError(f"{self.path.name} has no chat template; build the prompt as plain text")
        words = self.vocabulary
        return ChatTemplate(source, bos_token=words.text_or_empty(words.bos), eos_token=words.text_or_empty(words.eos))

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_special: put the model's BOS and EOS where its file asks for them.
            parse_special: read ``<|im_start|>`` and the like as control tokens rather than as text.

        Raises:
            ArgumentError: ``text`` is no valid text, or the model has no vocabulary.
        """
        self._use()
        return self.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, remove_special: bool = False, unparse_special: bool = True) -> str:
        """Text of token ids; bytes that are no valid UTF-8 become U+FFFD.

        Args:
            remove_special: leave BOS and EOS out.
            unparse_special: show control tokens as text.
        """
        self._use()
        raw = self.vocabulary.detokenize(ids, remove_special=remove_special, unparse_special=unparse_special)
        return raw.decode("utf-8", "replace")

    def token_bytes(self, token: int, *, special: bool = True) -> bytes:
        """The bytes that one token stands for: what a streaming decoder of UTF-8 needs."""
        self._use()
        return self.vocabulary.piece(token, special=special)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (EOS, end of turn…)."""
        self._use()
        return self.vocabulary.is_eog(token)

    @property
    def bos(self) -> int | None:
        """Beginning-of-sequence token."""
        return self.vocabulary.bos

    @property
    def eos(self) -> int | None:
        """End-of-sequence token."""
        return self.vocabulary.eos

    @property
    def eot(self) -> int | None:
        """End-of-turn token."""
        return self.vocabulary.eot

    def context(self, **options: Any) -> Context:
        """A new context; ``Context`` lists the options."""
        from .context import Context

        return Context(self, **options)

    def _number(self, key: str, default: int) -> int:
        """A number of this architecture in the metadata; the default where it is missing, or one for each layer."""
        text = self.metadata.get(f"{self.architecture}.{key}", "")
        return int(text) if text.isdigit() else default

    def _sized(self, function: Callable[..., int], *args: Any) -> str:
        """Call a function of the kind that fills a buffer and says how long the text is."""
        ffi, size = self.library.ffi, 256
        while True:
            buffer = ffi.new("char[]", size)
            length = function(*args, buffer, size)
            if length < size:
                return "" if length < 0 else self.library.text(buffer)
            size = length + 1

    def _devices(self, names: Sequence[str]) -> Any:
        ffi, lib = self.library.ffi, self.library.lib
        if isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise ArgumentError(f"devices is {names!r}; it has to be a list of names")
        found = [lib.ggml_backend_dev_by_name(n.encode()) for n in names]
        for name, device in zip(names, found, strict=True):
            if device == ffi.NULL:
                known = ", ".join(n for n, _ in self.library.devices())
                raise ArgumentError(f"there is no device {name!r}; this library has {known}")
        return ffi.new("ggml_backend_dev_t[]", [*found, ffi.NULL])


def _load_mode(lib: Any, use_mmap: bool | None, use_mlock: bool) -> int:
    if use_mmap is None and not use_mlock:
        return int(lib.LLAMA_LOAD_MODE_AUTO)
    mmap = bool(lib.llama_supports_mmap()) and (use_mmap is None or checks.as_bool(use_mmap, "use_mmap"))
    if use_mlock:
        return int(lib.LLAMA_LOAD_MODE_MMAP_MLOCK if mmap else lib.LLAMA_LOAD_MODE_MLOCK)
    return int(lib.LLAMA_LOAD_MODE_MMAP if mmap else lib.LLAMA_LOAD_MODE_NONE)
