"""The lanes of a worker: tasks with sync and with async functions have separate slots."""

from __future__ import annotations

LANES = ("sync", "async")
