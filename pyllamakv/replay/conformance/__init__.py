"""Every memory operation on every architecture: properties x models x settings, each check in a process of its own."""

from __future__ import annotations
