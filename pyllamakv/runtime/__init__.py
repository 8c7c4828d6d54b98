"""Models, contexts, their memory, and sampling."""

from __future__ import annotations

from .batch import Entry
from .context import Context
from .memory import Memory, Removal
from .model import Model
from .sampling import Sampler

__all__ = ["Context", "Entry", "Memory", "Model", "Removal", "Sampler"]
