"""Prints, as JSON, digests of the logits and the state bytes that one library makes of one model; uses nothing of ours.

python equivalence_child.py LIBRARY MODEL
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

import pyllamakv as kv
from pyllamakv.native import load

SETTINGS: list[dict[str, Any]] = [
    {"flash_attn": False, "type_k": "f32", "type_v": "f32", "n_seq_max": 2},
    {"flash_attn": True, "type_k": "f16", "type_v": "f16", "n_seq_max": 2},
    {"flash_attn": True, "type_k": "f16", "type_v": "f16", "n_seq_max": 2, "kv_unified": True, "swa_full": False},
]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def state(library: Any, context: Any, seq: int) -> bytes:
    """The state through llama.h itself."""
    with context._locked() as ctx:
        size = library.lib.llama_state_seq_get_size(ctx, seq)
        buffer = library.ffi.new("uint8_t[]", size)
        written = library.lib.llama_state_seq_get_data(ctx, buffer, size, seq)
        return bytes(library.ffi.buffer(buffer, written))


def main() -> None:
    library = load(sys.argv[1])
    results = []
    with kv.Model(sys.argv[2]) as model:
        ids = np.random.default_rng(7).integers(1, model.n_vocab - 1, size=300).tolist()
        for settings in SETTINGS:
            with model.context(n_ctx=1024, n_batch=128, n_ubatch=64, n_threads=1, **settings) as context:
                parts = [context.decode(ids[:170], logits="all"), context.decode(ids[170:180], seq=1)]
                for token in ids[180:190]:
                    parts += [context.decode([token]), context.decode([token], seq=1)]
                parts.append(context.decode(ids[190:], logits="all"))
                results.append(
                    {
                        "settings": settings,
                        "logits": [digest(np.ascontiguousarray(part).tobytes()) for part in parts],
                        "states": [digest(state(library, context, seq)) for seq in (0, 1)],
                    }
                )
    print(json.dumps({"patched": library.has_pkv, "results": results}))


main()
