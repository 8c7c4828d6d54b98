"""GBNF grammars, measured before upstream's recursive parser sees them."""

from __future__ import annotations

import re

from ..errors import ArgumentError

__all__ = ["check_grammar"]

# Upstream's parser and its search for left recursion recurse once for each level; both are far below what overflows
# the stack of a thread, and far above what a grammar made from a JSON schema needs.
_MAX_DEPTH = 200
_MAX_RULES = 4000
_MAX_BYTES = 1 << 20

_SKIPPED = re.compile(r'#[^\n]*|"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]', re.S)


def check_grammar(text: str) -> None:
    """Raise ArgumentError for a grammar that nests, or goes on, beyond any use."""
    if len(text) > _MAX_BYTES:
        raise ArgumentError(f"the grammar has {len(text)} characters; at most {_MAX_BYTES} are allowed")
    bare = _SKIPPED.sub(" ", text)
    depth = deepest = 0
    for char in re.findall(r"[()]", bare):
        depth += 1 if char == "(" else -1
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise ArgumentError(f"the grammar nests parentheses {deepest} deep; at most {_MAX_DEPTH} are allowed")
    rules = bare.count("::=")
    if rules > _MAX_RULES:
        raise ArgumentError(f"the grammar has {rules} rules; at most {_MAX_RULES} are allowed")
