"""The lanes of a worker: a task is sync or async, as its function is."""

from __future__ import annotations

LANES = ("sync", "async")
