"""A script: the settings of a context and a list of operations, as data that can be saved, shrunk and played again.

An operation is a flat object with the key ``op``; ranges are llama.h's, [p0, p1), negative for open ends. Positions of
decoded tokens are not part of it: a decode goes on behind what the sequence holds, so that a script stays meaningful
when an operation is taken out of it.

    decode        parts [[seq, count], …], seed; mix: tokens of the sequences take turns in the batch
                  auto: llama.cpp finds the positions
    share         seqs, count, seed: each token belongs to several sequences that hold the same
    abort         as decode; after: how often the abort callback says no before it says yes
    poison        seq, count: rows of NaN in place of token embeddings; then "how" they are got rid of
    remove        seq (-1: all), p0, p1; strict: pkv_memory_remove in place of llama_memory_seq_rm, and so below
    copy          src, dst, p0, p1
    keep          seq
    shift         seq, p0, p1, delta
    divide        seq, p0, p1, by
    clear         data
    save          seq, slot
    restore       slot, seq
    damage        slot, seq, at (0 to 1), how: cut | flip
    checkpoint    seq, slot: what a removal of tokens cannot bring back (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
    rewind        slot: back to the checkpoint, if the sequence has only grown since, and the rest removed
    save_all      slot
    restore_all   slot, fresh: into a new context
    move          every sequence into a new context, one by one
    scrub         eager: true | false
    sync, compact
    check         every sequence against its oracle, through a scratch context
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FINISH", "Failure", "Op", "Script", "tokens_of"]

Op = dict[str, Any]

#: What every play ends with: each sequence against its oracle, in a scratch context and then in place.
FINISH: Op = {"op": "finish"}

SCHEMA = 1


def tokens_of(seed: int, count: int, n_vocab: int) -> tuple[int, ...]:
    """The tokens that a decode of ``count`` reads: a function of the operation alone."""
    found = np.random.RandomState(seed % 2**32).randint(1, n_vocab - 1, size=count)
    return tuple(int(token) for token in found)


@dataclass(frozen=True)
class Failure:
    """What went wrong. ``kind``: wrong, nan, died, positions, changed, needless, residue, call, oracle.

    Where logits were compared, ``history`` is what the sequence must be (``history.History``), its last token the one
    compared.
    """

    kind: str
    operation: str
    detail: str
    seq: int | None = None
    history: list[Any] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes two failures of one model the same for the report."""
        return self.operation, self.kind


@dataclass
class Script:
    """``settings``: llama_context_params by name; ``model``: a file name, looked up in a folder of models."""

    model: str
    settings: dict[str, Any]
    ops: list[Op] = field(default_factory=list)
    about: str = ""

    def dumps(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1)

    def save(self, path: Path) -> None:
        """One operation a line, so that a diff of two scripts is readable."""
        head = {"schema": SCHEMA, "about": self.about, "model": self.model, "settings": self.settings}
        lines = ",\n    ".join(json.dumps(op) for op in self.ops)
        text = json.dumps(head, indent=1)[:-2] + ',\n "ops": [\n    ' + lines + "\n ]\n}\n"
        path.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Script:
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["model"], data["settings"], data["ops"], data.get("about", ""))
