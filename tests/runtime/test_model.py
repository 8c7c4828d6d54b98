"""Models: what the file says, tokens and text, and the errors of files that are not what they should be."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyllamakv as kv


def test_what_the_file_says(smollm2: kv.Model) -> None:
    assert smollm2.architecture == "llama"
    assert (smollm2.n_vocab, smollm2.n_embd, smollm2.n_layer, smollm2.n_ctx_train) == (49152, 576, 30, 8192)
    assert (smollm2.n_head, smollm2.n_head_kv, smollm2.rope_type) == (9, 3, "norm")
    assert smollm2.metadata["llama.block_count"] == "30"
    assert (smollm2.bos, smollm2.eos, smollm2.is_eog(2), smollm2.is_eog(5)) == (1, 2, True, False)
    assert 130e6 < smollm2.n_params < 140e6 or smollm2.n_params > 160e6  # with or without the tied output counted
    assert smollm2.size < smollm2.path.stat().st_size
    assert smollm2.chat_template is not None and "<|im_start|>" in smollm2.chat_template
    assert not (smollm2.is_recurrent or smollm2.is_hybrid or smollm2.has_encoder)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(max_codepoint=0x24FF, categories=("L", "N", "P", "S", "Zs")), max_size=60))
def test_text_survives_tokens(smollm2: kv.Model, text: str) -> None:
    ids = smollm2.tokenize(text)
    assert smollm2.detokenize(ids) == text
    assert b"".join(smollm2.token_bytes(t) for t in ids).decode("utf-8") == text


def test_special_tokens_are_text_unless_asked_for(smollm2: kv.Model) -> None:
    assert smollm2.tokenize("<|im_start|>", parse_special=True) == [1]
    assert len(smollm2.tokenize("<|im_start|>")) > 1
    assert smollm2.detokenize([1], unparse_special=False) == ""
    assert smollm2.detokenize([]) == ""


def test_a_long_text_without_spaces(smollm2: kv.Model) -> None:
    assert smollm2.detokenize(smollm2.tokenize("a" * 200_000)) == "a" * 200_000


def test_rubbish_is_named(smollm2: kv.Model) -> None:
    with pytest.raises(kv.ArgumentError, match=r"ids\[1\] is 49152; the vocabulary has ids from 0 to 49151"):
        smollm2.detokenize([1, 49152])
    with pytest.raises(kv.ArgumentError, match="lone surrogate at character 1"):
        smollm2.tokenize("a\ud800")
    with pytest.raises(kv.ArgumentError, match=r"unknown context option n_ctxx; there are n_ctx, n_batch"):
        smollm2.context(n_ctxx=1)


def test_contexts_keep_a_closed_model_alive(smollm2_path: Path) -> None:
    model = kv.Model(smollm2_path)
    ctx = model.context(n_ctx=256)
    model.close()
    del model
    gc.collect()
    assert ctx.decode([1, 2, 3]) is not None
    with pytest.raises(kv.ClosedError, match="this Model was closed"):
        ctx.model.tokenize("a")
    ctx.close()
    with pytest.raises(kv.ClosedError, match="this Context was closed"):
        ctx.decode([1])
    with pytest.raises(ValueError, match="closed"):  # the natural builtin
        ctx.memory.positions(0)


def test_vocab_only_and_no_alloc_models_do_not_compute(smollm2_path: Path) -> None:
    with kv.Model(smollm2_path, vocab_only=True) as words:
        assert words.tokenize("Hello")
        with pytest.raises(kv.ArgumentError, match="vocab_only"):
            words.context()
    with kv.Model(smollm2_path, no_alloc=True, use_mmap=False) as plan, plan.context(n_ctx=256) as ctx:
        for attempt in (lambda: ctx.decode([1]), lambda: ctx.memory.save(0)):
            with pytest.raises(kv.RefusedError, match="no_alloc"):
                attempt()


def test_progress_is_told_and_can_stop(smollm2_path: Path) -> None:
    seen: list[float] = []
    kv.Model(smollm2_path, progress=seen.append).close()
    assert seen[0] < 0.5 and seen[-1] == 1.0 and seen == sorted(seen)
    with pytest.raises(kv.ModelLoadError):
        kv.Model(smollm2_path, progress=lambda _: False)

    def fails(_: float) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kv.Model(smollm2_path, progress=fails)


# Files that are no models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<html><body>Not found", "a web page"),
        (b"version https://git-lfs", "a Git LFS pointer"),
        (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
        (b"GGUF" + struct.pack("<IQ", 3, 1), "ends after 16 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "GGUF version 1; this library reads 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "of the other byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "the file is damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "could not be loaded as a model: .*architecture"),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(kv.ModelLoadError, match=message) as caught:
        kv.Model(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"gone\.gguf does not exist"):
        kv.Model(tmp_path / "gone.gguf")
    with pytest.raises(kv.ModelLoadError, match="is a folder"):
        kv.Model(tmp_path)


def test_a_model_cut_short(tmp_path: Path, smollm2_path: Path) -> None:
    whole = smollm2_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in (1000, 1_700_000, len(whole) - 1000):
        path.write_bytes(whole[:size])
        with pytest.raises(
            kv.ModelLoadError, match=r"cut\.gguf (could not be loaded as a model: |says that it has 272)"
        ):
            kv.Model(path)


def test_numbers_that_llama_cpp_asserts_on(tmp_path: Path, smollm2_path: Path) -> None:
    whole = smollm2_path.read_bytes()
    head, tail = whole[:4096], whole[4096:]
    path = tmp_path / "odd.gguf"
    for key, fmt, value, message in (
        (b"llama.block_count", "<I", 0, r"llama\.block_count is 0; it has to be from 1 to 512"),
        (b"llama.block_count", "<I", 2**31, r"llama\.block_count is 2\.14748e\+09"),
        (b"llama.attention.layer_norm_rms_epsilon", "<f", float("nan"), "layer_norm_rms_epsilon is nan"),
        (b"llama.attention.layer_norm_rms_epsilon", "<f", -1.0, r"layer_norm_rms_epsilon is -1\.0"),
    ):
        at = head.index(key) + len(key) + 4  # behind the key comes its type, then the value
        path.write_bytes(head[:at] + struct.pack(fmt, value) + head[at + 4 :] + tail)
        with pytest.raises(kv.ModelLoadError, match=message):
            kv.Model(path)


def test_a_model_without_tokenizer(tmp_path: Path, zoo: Path) -> None:
    whole = (zoo / "llama-dense.gguf").read_bytes()
    at = whole.index(b"tokenizer.ggml.model") + len("tokenizer.ggml.model") + 12  # type and length of the value
    assert whole[at : at + 4] == b"test"
    path = tmp_path / "none.gguf"
    path.write_bytes(whole[:at] + b"none" + whole[at + 4 :])
    with kv.Model(path) as model:
        assert not model.vocabulary.has_tokenizer
        for attempt in (lambda: model.tokenize("a"), lambda: model.detokenize([1]), lambda: model.token_bytes(1)):
            with pytest.raises(kv.ArgumentError, match="has no tokenizer"):
                attempt()
        with pytest.raises(kv.ArgumentError, match="has no chat template"):
            model.apply_chat_template([{"role": "user", "content": "a"}])
        with pytest.raises(kv.ArgumentError, match="has no tokenizer, which a grammar needs"):
            kv.Sampler(model).grammar('root ::= "a"')
