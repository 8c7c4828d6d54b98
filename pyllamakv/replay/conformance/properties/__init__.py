"""The properties, one module for each kind of memory operation."""

from __future__ import annotations
