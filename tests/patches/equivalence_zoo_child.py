"""Prints, as JSON, digests of the logits and the state bytes that one library makes of every model in a folder.

python equivalence_zoo_child.py LIBRARY FOLDER [MODEL…]

llama.h alone, as any program calls it: decode, two sequences in turn, save, restore, clear, decode again. A child is
forked for each model, so that one that dies takes nothing with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pyllamakv.errors import DecodeError, StateError
from pyllamakv.native import load
from pyllamakv.replay.engine import Engine, Window

#: llama.cpp's numbers of the types: 0 is f32, 1 is f16, 8 is q8_0.
SETTINGS: dict[str, dict[str, Any]] = {
    "f32": {"flash_attn": False, "type_k": 0, "type_v": 0},
    "f16-fa": {"flash_attn": True, "type_k": 1, "type_v": 1},
    "q8_0-fa-unified": {"flash_attn": True, "type_k": 8, "type_v": 8, "kv_unified": True, "swa_full": False},
}
COMMON: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 2, "n_batch": 128, "n_ubatch": 64}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def story(window: Window, tokens: list[int]) -> list[str]:
    """Everything that can be compared, in order; where a call fails, its words."""
    seen: list[str] = []

    def decode(ids: list[int], pos: int, seq: int) -> None:
        seen.append(digest(window.decode(ids, pos, seq).tobytes()))

    try:
        if window.memory == window.ffi.NULL:  # nothing is kept, and a batch must fit into a micro-batch
            decode(tokens[:60], 0, 0)
            decode(tokens[60:110], 0, 1)
            return seen
        decode(tokens[:100], 0, 0)
        decode(tokens[100:110], 0, 1)
        for step, token in enumerate(tokens[110:114]):
            decode([token], 100 + step, 0)
            decode([token], 10 + step, 1)
        saved = [window.save(seq) for seq in (0, 1)]
        seen += [digest(blob) for blob in saved]
        seen += [str(window.positions(seq)) for seq in (0, 1)]
        window.clear()
        window.load(0, saved[1])
        decode(tokens[114:120], 14, 0)
        window.clear()
        decode(tokens[:70], 0, 1)
        seen.append(digest(window.save(1)))
    except (DecodeError, StateError) as error:
        seen.append(str(error))
    return seen


def check(library: Any, path: Path) -> dict[str, Any]:
    engine = Engine(library, path)
    tokens = np.random.default_rng(7).integers(1, engine.n_vocab - 1, size=120).tolist()
    found: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        try:
            with engine.open(**COMMON, **settings) as window:
                found[name] = story(window, tokens)
        except DecodeError:
            found[name] = ["no context"]
    return found


def in_fork(library: Any, path: Path) -> Any:
    """What :func:`check` finds, or how the child died."""
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if child == 0:
            try:
                json.dump(check(library, path), file)
                file.flush()
                os._exit(0)
            except BaseException as error:
                print(f"{path.name}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        return json.load(file) if status == 0 else f"died: {os.waitstatus_to_exitcode(status)}"


def main() -> None:
    library = load(sys.argv[1])
    names = sys.argv[3:] or sorted(path.stem for path in Path(sys.argv[2]).glob("*.gguf"))
    found = {name: in_fork(library, Path(sys.argv[2], f"{name}.gguf")) for name in names}
    print(json.dumps({"patched": library.has_pkv, "models": found}))


main()
