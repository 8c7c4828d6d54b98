"""Every operation, by its name."""

from __future__ import annotations

from . import decodes, edits, states
from .operations import STEPS

__all__ = ["STEPS", "decodes", "edits", "states"]
