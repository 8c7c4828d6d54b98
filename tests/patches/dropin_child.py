"""A multi-turn exchange with llama-cpp-python's own, unmodified code, on the library of LLAMA_CPP_LIB_PATH.

    python dropin_child.py MODEL        prints, as JSON, how far each turn's logits are from a fresh context's

The user edits an early message; the program does what llama-cpp-python's documentation suggests and what its chat
handlers do: it gives the new list of tokens, and `Llama.generate` reuses the prefix that the cache still holds.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from llama_cpp import Llama

TURNS = [
    "The lighthouse keeper is called Aino and her dog is called Pekka. " * 40,
    "She writes down the wind every morning, from the north, from the east, from the sea. " * 30,
    "In winter the harbour freezes and the mail comes over the ice with a horse. " * 30,
]


def logits_after(llama: Any, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The next token's logits, through `generate` and its reuse of the cache."""
    next(llama.generate(tokens, temp=0.0))
    return np.array(llama.scores[len(tokens) - 1], dtype=np.float64)


def nmse(got: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    return float(((got - right) ** 2).sum() / (right**2).sum())


def main() -> None:
    settings: dict[str, Any] = {"n_ctx": 4096, "n_batch": 256, "swa_full": False, "logits_all": True, "verbose": False}
    llama = Llama(sys.argv[1], **settings)
    history = llama.tokenize("".join(TURNS).encode())
    logits_after(llama, history)
    edits = {
        "the last words are edited": (len(history) - 20, b" The dog barks."),
        "an early message is edited": (200, b" Nobody knows the keeper's name."),
        "a new question follows": (200, b" What is the dog called? It is called"),
    }
    results = {}
    for name, (keep, text) in edits.items():
        tokens = history[:keep] + llama.tokenize(text, add_bos=False)
        got = logits_after(llama, tokens)
        # Right is what a fresh context says. Whether it decodes the kept part and the new words in one batch or in two
        # changes the last digits, and which of the two the program does depends on how much it could keep.
        whole = logits_after(Llama(sys.argv[1], **settings), tokens)
        parts = Llama(sys.argv[1], **settings)
        parts.eval(history[:keep])
        split = logits_after(parts, tokens)
        results[name] = {
            "nmse": min(nmse(got, whole), nmse(got, split)),
            "noise": nmse(whole, split),
            "same_token": bool(got.argmax() in (whole.argmax(), split.argmax())),
        }
    said = llama.create_completion("The capital of France is", max_tokens=8, temperature=0.0)["choices"][0]["text"]
    print(json.dumps({"edits": results, "text": said}))


main()
