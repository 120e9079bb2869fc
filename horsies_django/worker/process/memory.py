"""The resident memory of processes, and the check of a child against its memory limit."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

MEGABYTE = 1_048_576
STATM = Path("/proc/self/statm")  # Linux
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it does not exist."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def memory_mb(pid: int) -> float:
    """Return the same in megabytes."""
    return round(memory_bytes(pid) / MEGABYTE, 1)


def own_memory_mb() -> float:
    """Return the resident memory of this process in megabytes; cheap enough to be called after every task."""
    if STATM.exists():
        with STATM.open("rb") as file:
            return int(file.read().split()[1]) * PAGE / MEGABYTE
    return float(psutil.Process().memory_info().rss / MEGABYTE)


class Gauge:
    """Reports once when this process has reached ``max_memory_mb``; None means no limit."""

    def __init__(self, max_memory_mb: float | None) -> None:
        self.limit = max_memory_mb

    def full(self) -> float | None:
        """Return the memory in megabytes the first time that it reaches the limit, else None."""
        if self.limit is None or (memory := own_memory_mb()) < self.limit:
            return None
        self.limit = None
        return memory
