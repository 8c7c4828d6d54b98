"""No call ends the process, whatever the arguments: rubbish at every public method, and long orders of sane operations.

Everything runs in a child process. A death, a hang, or an exception outside of the project's tree is a failure that
prints the steps.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyllamakv as kv

# Arrays of rubbish are long; what is printed of them is cut.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

CHILD = Path(__file__).with_name("rubbish_child.py")
SECONDS = 120

# One of every kind of memory: full, sliding window, recurrent, hybrid, M-RoPE, compressed, learned positions, none.
# PYLLAMAKV_RUBBISH_KINDS names others, by their file in the zoo.
KINDS = tuple(os.environ.get("PYLLAMAKV_RUBBISH_KINDS", "").split()) or (
    "llama-dense",
    "gemma3-dense",
    "mamba-dense",
    "falcon-h1-dense",
    "qwen3next-moe",
    "lfm2-dense",
    "qwen2vl-dense",
    "deepseek2-moe",
    "deepseek32-moe",
    "deepseek4-moe",
    "minimax-m3-moe",
    "qwen4exp-moe",
    "gpt2-dense",
    "gpt-oss-moe",
    "llama4-moe",
    "llada-dense",
    "kimi-linear-moe",
    "plamo2-dense",
)


class Child:
    """The process that takes the rubbish; a new one is started after a death."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.process: subprocess.Popen[bytes] | None = None
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object

    def start(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(CHILD), str(self.model)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a debugger at every death would take seconds
            )
            ready = self.answer([])
            assert ready[0] == "ready"
        return self.process

    def ask(self, options: dict[str, Any], steps: list[Any]) -> list[tuple[str, str]]:
        process = self.start()
        assert process.stdin is not None
        try:
            pickle.dump((options, steps), process.stdin)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        outcomes = self.answer([options, *steps])
        bad = [(step, text) for step, (kind, text) in zip(steps, outcomes, strict=True) if kind == "unexpected"]
        assert not bad, f"not one of our exceptions:\n{bad[0][0]!r}\n{bad[0][1]}"
        return outcomes

    def answer(self, asked: list[Any]) -> Any:
        process = self.process
        assert process is not None and process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(SECONDS):
                self.stop()
                raise AssertionError(f"no answer within {SECONDS} s after\n{_shown(asked)}")
        try:
            return pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            code = process.wait(10)
            self.stop()
            self.stderr.seek(0)
            said = self.stderr.read().decode("utf-8", "replace")[-3000:]
            raise AssertionError(f"the process died with {code} after\n{_shown(asked)}\n{said}") from None

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _shown(steps: list[Any]) -> str:
    return "\n".join(repr(step) for step in steps)


@contextlib.contextmanager
def child_for(model: Path) -> Iterator[Child]:
    child = Child(model)
    try:
        yield child
    finally:
        child.stop()
        child.stderr.close()


@pytest.fixture(scope="module")
def real_child(smollm2_path: Path) -> Iterator[Child]:
    with child_for(smollm2_path) as child:
        yield child


@pytest.fixture(scope="module")
def tiny_child(zoo: Path) -> Iterator[Child]:
    with child_for(zoo / "llama-dense.gguf") as child:
        yield child


# Values ---------------------------------------------------------------------------------------------------------------

INTEGERS = st.one_of(
    st.integers(-3, 70),
    st.sampled_from(
        [2**15, 2**16, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63, -(2**31), -(2**31) - 1, -(2**63), 2**100]
    ),
)
FLOATS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, 1e300, -1e300, float("nan"), float("inf"), -float("inf")])
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.integers(1, 100_000).map(lambda n: ("@long", n)),
    st.sampled_from(["", "\0", "a\0b", "\ud800", "\U0010ffff" * 5, "<|im_start|>", "((((", "\n" * 500, "last"]),
)


def _array(data: tuple[str, tuple[int, ...], Any]) -> Any:
    kind, shape, fill = data
    with np.errstate(all="ignore"):
        try:
            return np.full(shape, fill).astype(kind)
        except (ValueError, OverflowError, TypeError):
            return np.zeros(shape, np.float32)


ARRAYS = st.tuples(
    st.sampled_from(
        ["int8", "int32", "int64", "uint64", "float16", "float32", "float64", "bool", "complex64", "U3", "O"]
    ),
    st.sampled_from([(), (0,), (1,), (5,), (40,), (2, 576), (3, 64), (0, 576), (2, 2, 2)]),
    st.sampled_from([0, 1, -1, 300, float("nan"), float("inf")]),
).map(_array)
RUBBISH = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    FLOATS,
    TEXTS,
    st.binary(max_size=40),
    ARRAYS,
    st.lists(INTEGERS, max_size=5),
    st.dictionaries(st.one_of(INTEGERS, TEXTS), FLOATS, max_size=3),
    st.sampled_from([("@", "object"), [[1, 2], [3]], range(4), {1}, [None], [1.5], [True], ["x"], ("@", "always")]),
)


def mostly(sane: st.SearchStrategy[Any], rubbish: st.SearchStrategy[Any] = RUBBISH) -> st.SearchStrategy[Any]:
    """Two of three are sane: rubbish everywhere never gets past the first check."""
    return st.integers(0, 2).flatmap(lambda drawn: rubbish if drawn == 2 else sane)


SEQ = mostly(st.integers(0, 2))
TOKENS = mostly(st.one_of(st.lists(st.integers(0, 120), min_size=1, max_size=40), st.integers(0, 120)))
POS = mostly(st.none(), st.one_of(st.integers(0, 80), st.lists(st.integers(0, 50), max_size=4), RUBBISH))
END = mostly(st.one_of(st.none(), st.integers(0, 60)))
LOGITS = mostly(st.sampled_from(["last", "all", "none"]))
FLAG = mostly(st.booleans())
NUMBER = mostly(st.floats(0, 1), st.one_of(FLOATS, RUBBISH))
COUNT = mostly(st.integers(0, 100), INTEGERS)
ENTRIES = mostly(st.lists(st.tuples(st.just("@entry"), TOKENS, SEQ, POS, LOGITS), max_size=4))
GRAMMARS = mostly(
    st.sampled_from(['root ::= "yes" | "no"', "root ::= [a-z]+", 'root ::= "a"{1,3} (" " root)?', "root ::= [^x]*"]),
    st.one_of(
        st.sampled_from(["root ::= root", "root ::= x", "x"]),
        st.text(alphabet='root:= "a|()[]{}*+?\\\n0', max_size=40),
        st.integers(1, 300_000).map(lambda n: ("@nested", n)),
        st.integers(1, 20_000).map(lambda n: ("@rules", n)),
        RUBBISH,
    ),
)
BLOBS = st.one_of(st.binary(max_size=200), st.binary(max_size=120).map(lambda b: b"\xd8\x3c\x14\xaf" + b), RUBBISH)
MESSAGES = st.one_of(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "x"]), "content": RUBBISH})
    ),
    st.lists(st.dictionaries(TEXTS, RUBBISH, max_size=2), max_size=3),
    RUBBISH,
)
# More threads than a machine has only take time, and a longer context only memory: bounded here, not in the library.
THREADS = RUBBISH.filter(lambda v: not isinstance(v, int) or not 4 < v <= 512)
CONTEXT_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "n_ctx": st.one_of(st.integers(0, 600), st.sampled_from([-1, 2**31, 2**32, 2**64, "1", None, 1.5, True])),
        "n_batch": st.one_of(st.integers(1, 600), RUBBISH),
        "n_ubatch": st.one_of(st.integers(0, 600), RUBBISH),
        "n_seq_max": st.one_of(st.integers(1, 9), RUBBISH),
        "n_rs_seq": st.one_of(st.integers(0, 4), st.sampled_from([-1, 2**31, None, "x"])),
        "n_threads": THREADS,
        "n_threads_batch": THREADS,
        "kv_unified": FLAG,
        "swa_full": FLAG,
        "offload_kqv": FLAG,
        "op_offload": FLAG,
        "embeddings": FLAG,
        "flash_attn": FLAG,
        "type_k": st.one_of(st.sampled_from(["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "iq4_nl"]), RUBBISH),
        "type_v": st.one_of(st.sampled_from(["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "iq4_nl"]), RUBBISH),
        "pooling_type": st.one_of(st.sampled_from(["none", "mean", "cls", "last", "rank"]), RUBBISH),
        "attention_type": st.one_of(st.sampled_from(["causal", "non_causal"]), RUBBISH),
        "rope_scaling_type": st.one_of(st.sampled_from(["none", "linear", "yarn", "longrope"]), RUBBISH),
        "rope_freq_base": NUMBER,
        "rope_freq_scale": NUMBER,
        "yarn_ext_factor": NUMBER,
        "yarn_attn_factor": NUMBER,
        "yarn_beta_fast": NUMBER,
        "yarn_beta_slow": NUMBER,
        "yarn_orig_ctx": INTEGERS,
        "abort": st.one_of(st.sampled_from([("@", "always"), ("@", "never"), ("@", "raises")]), RUBBISH),
        "no_such_option": RUBBISH,
    },
)


# Options that make a context, for what is done with it.
OPTIONS_OK = st.fixed_dictionaries(
    {},
    optional={
        "kv_unified": st.booleans(),
        "swa_full": st.booleans(),
        "flash_attn": st.booleans(),
        "n_ubatch": st.sampled_from([8, 32]),
        "type_k": st.sampled_from(["f32", "f16", "q8_0"]),
        "n_rs_seq": st.sampled_from([0, 3]),
        "embeddings": st.booleans(),
    },
)


def call(target: str, method: str, *args: Any, **keywords: Any) -> Any:
    """Steps of one method: positional and keyword strategies; every tenth or so has the wrong number of arguments."""
    right = st.tuples(st.tuples(*args).map(list), st.fixed_dictionaries({}, optional=keywords))
    wrong = st.tuples(
        st.lists(RUBBISH, max_size=6), st.dictionaries(st.sampled_from(["seq", "x", "pos"]), RUBBISH, max_size=1)
    )
    both = st.tuples(st.integers(0, 9), right, wrong).map(lambda drawn: drawn[2] if drawn[0] == 9 else drawn[1])
    return both.map(lambda both: (target, method, both[0], both[1]))


MODEL_STEPS = [
    call("model", "tokenize", TEXTS, add_special=FLAG, parse_special=FLAG),
    call("model", "detokenize", TOKENS, remove_special=FLAG, unparse_special=FLAG),
    call("model", "token_bytes", TOKENS, special=FLAG),
    call("model", "is_eog", TOKENS),
    call("model", "apply_chat_template", MESSAGES, add_generation_prompt=FLAG, tools=RUBBISH, date=RUBBISH),
    CONTEXT_OPTIONS.map(lambda o: ("model", "context", [], o)),
    call(
        "new",
        "Model",
        RUBBISH,
        gpu_layers=RUBBISH,
        use_mmap=RUBBISH,
        vocab_only=RUBBISH,
        devices=RUBBISH,
        progress=RUBBISH,
    ),
    call("new", "Context", RUBBISH, n_ctx=RUBBISH),
    call("new", "Sampler", RUBBISH),
    *(
        st.just(("model", f".{name}", [], {}))
        for name in ("metadata", "architecture", "description", "size", "n_params", "n_cls_out", "chat_template", "bos")
    ),
    *(st.just(("model", f".{name}", [], {})) for name in ("eos", "eot", "closed", "position_limit", "partial_rotary")),
]
CONTEXT_STEPS = [
    call("context", "decode", TOKENS, seq=SEQ, pos=POS, logits=LOGITS),
    call("context", "decode_embeddings", st.one_of(ARRAYS, RUBBISH), seq=SEQ, pos=POS, logits=LOGITS),
    call("context", "decode_batch", ENTRIES),
    call("context", "encode", TOKENS),
    call("context", "logits_view"),
    call("context", "embeddings", SEQ),
    call("context", "token_embeddings"),
    call(
        "context", "set_abort", st.one_of(st.sampled_from([("@", "never"), ("@", "always"), ("@", "raises")]), RUBBISH)
    ),
    call("context", "set_threads", THREADS),
    call("memory", "positions", SEQ),
    call("memory", "remove", SEQ, END, END),
    call("memory", "copy", SEQ, SEQ, END, END),
    call("memory", "keep", SEQ),
    call("memory", "shift", SEQ, END, END, INTEGERS),
    call("memory", "divide", SEQ, END, END, INTEGERS),
    call("memory", "clear", FLAG),
    call("memory", "save", SEQ),
    call("memory", "load", SEQ, BLOBS),
    call("memory", "sync"),
    call("memory", "scrub"),
    call("memory", "residue"),
    call("memory", "=scrub_mode", st.one_of(st.sampled_from(["lazy", "eager"]), RUBBISH)),
    st.just(("memory", ".scrub_mode", [], {})),
    st.just(("memory", ".can_shift", [], {})),
    st.just(("context", ".closed", [], {})),
]
SAMPLER_STEPS = [
    call("sampler", "greedy"),
    call("sampler", "dist", COUNT),
    call("sampler", "mirostat", NUMBER, NUMBER, m=COUNT, seed=COUNT),
    call("sampler", "mirostat_v2", NUMBER, NUMBER, seed=COUNT),
    call("sampler", "temp", NUMBER),
    call("sampler", "top_k", COUNT),
    call("sampler", "top_p", NUMBER, COUNT),
    call("sampler", "min_p", NUMBER, COUNT),
    call("sampler", "typical", NUMBER, COUNT),
    call("sampler", "top_n_sigma", NUMBER),
    call("sampler", "xtc", NUMBER, NUMBER, min_keep=COUNT, seed=COUNT),
    call("sampler", "penalties", COUNT, repeat=NUMBER, freq=NUMBER, present=NUMBER),
    call("sampler", "logit_bias", mostly(st.dictionaries(st.integers(0, 99), st.floats(-9, 9), max_size=4))),
    call("sampler", "grammar", GRAMMARS, root=mostly(st.just("root"), TEXTS)),
    call("sampler", "sample", mostly(st.just("context"))),
    call("sampler", "accept", TOKENS),
    call("sampler", "reset"),
    call("sampler", "clone"),
    st.just(("sampler", ".closed", [], {})),
]
# A chain that chooses, and what it chooses from.
SAMPLE = st.sampled_from([("sampler", "sample", ["context"], {}), ("sampler", "greedy", [], {})])
CLOSE = [st.just((target, "close", [], {})) for target in ("context", "sampler")]


def bounded(examples: int) -> settings:
    """The same examples on every run: what CI says must not depend on luck. PYLLAMAKV_RUBBISH multiplies them."""
    return settings(
        max_examples=examples * int(os.environ.get("PYLLAMAKV_RUBBISH", "1")),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )


def tried(steps: list[Any]) -> set[tuple[str, str]]:
    """(target, method) of the strategies in a list, by drawing from them."""
    return {step[:2] for strategy in steps for step in [_first(strategy)]}


def _first(strategy: Any) -> Any:
    from hypothesis import find

    return find(strategy, lambda _: True, settings=settings(database=None))


def test_every_public_method_is_in_the_lists() -> None:
    have = tried(MODEL_STEPS + CONTEXT_STEPS + SAMPLER_STEPS + CLOSE)
    for target, cls in (("model", kv.Model), ("context", kv.Context), ("memory", kv.Memory), ("sampler", kv.Sampler)):
        for name in dir(cls):
            if name.startswith("_") or (target, name) == ("model", "close"):  # the child's model stays open
                continue
            assert {(target, name), (target, f".{name}")} & have, f"{cls.__name__}.{name} gets no rubbish"


@bounded(120)
@given(steps=st.lists(st.one_of(*MODEL_STEPS), min_size=1, max_size=6))
def test_rubbish_at_the_model(real_child: Child, steps: list[Any]) -> None:
    real_child.ask({}, steps)


@bounded(200)
@given(options=OPTIONS_OK, steps=st.lists(st.one_of(*CONTEXT_STEPS, *CONTEXT_STEPS, *CLOSE), min_size=1, max_size=12))
def test_rubbish_at_context_and_memory(tiny_child: Child, options: dict[str, Any], steps: list[Any]) -> None:
    tiny_child.ask({**options, "decoded": True}, steps)


@bounded(150)
@given(steps=st.lists(st.one_of(*SAMPLER_STEPS, SAMPLE, SAMPLE, SAMPLE, *CLOSE), min_size=1, max_size=12))
def test_rubbish_at_the_sampler(tiny_child: Child, steps: list[Any]) -> None:
    tiny_child.ask({"decoded": True}, steps)


# Orders of operations that each make sense ---------------------------------------------------------------------------

RANGE = st.tuples(st.one_of(st.none(), st.integers(0, 40)), st.one_of(st.none(), st.integers(0, 60)))
SEQ_OK = st.integers(0, 2)
SANE = st.one_of(
    st.tuples(
        st.lists(st.integers(0, 120), min_size=1, max_size=40), SEQ_OK, st.sampled_from(["last", "all", "none"])
    ).map(lambda v: ("context", "decode", [v[0]], {"seq": v[1], "logits": v[2]})),
    st.tuples(st.integers(1, 40), SEQ_OK, st.sampled_from([0.5, float("nan")])).map(
        lambda v: ("context", "decode_embeddings", [("@rows", v[0], v[2])], {"seq": v[1]})
    ),
    st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=9), SEQ_OK), min_size=1, max_size=3).map(
        lambda v: ("context", "decode_batch", [[("@entry", t, s, None, "last") for t, s in v]], {})
    ),
    st.tuples(st.integers(-1, 2), RANGE).map(lambda v: ("memory", "remove", [v[0], *v[1]], {})),
    st.tuples(SEQ_OK, SEQ_OK, st.one_of(st.just((None, None)), RANGE)).map(
        lambda v: ("memory", "copy", [v[0], v[1], *v[2]], {})
    ),
    SEQ_OK.map(lambda s: ("memory", "keep", [s], {})),
    st.tuples(SEQ_OK, RANGE, st.integers(-40, 40)).map(lambda v: ("memory", "shift", [v[0], *v[1], v[2]], {})),
    st.tuples(SEQ_OK, RANGE, st.integers(1, 3)).map(lambda v: ("memory", "divide", [v[0], *v[1], v[2]], {})),
    st.booleans().map(lambda d: ("memory", "clear", [d], {})),
    st.tuples(SEQ_OK, SEQ_OK, st.integers(0, 1 << 20), st.integers(0, 255)).map(
        lambda v: ("memory", "@move", list(v), {})
    ),
    st.sampled_from([("@", "always"), None]).map(lambda v: ("context", "set_abort", [v], {})),
)


@pytest.fixture(scope="module", params=KINDS)
def kind_child(request: pytest.FixtureRequest, zoo: Path) -> Iterator[Child]:
    with child_for(zoo / f"{request.param}.gguf") as child:
        yield child


@pytest.mark.slow
@bounded(60)
@given(options=OPTIONS_OK, steps=st.lists(SANE, min_size=2, max_size=14))
def test_any_order_of_operations_on_every_kind_of_memory(
    kind_child: Child, options: dict[str, Any], steps: list[Any]
) -> None:
    kind_child.ask(options, steps)
