"""The resident memory of processes, and the check of a child against its memory limit."""

from __future__ import annotations

import psutil

MEGABYTE = 1_048_576
# the process has ended, or this one cannot open another file now
PROCESS_ERRORS = (psutil.Error, OSError)


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, or 0 if it cannot be read."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except PROCESS_ERRORS:
        return 0


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in megabytes, or 0 if it cannot be read."""
    return round(memory_bytes(pid) / MEGABYTE, 1)


class Gauge:
    """The check of this process against ``max_memory_mb``; None means no limit."""

    def __init__(self, max_memory_mb: float | None) -> None:
        self.limit = max_memory_mb
        # created once, because that takes longer than the check after each task
        self.process = psutil.Process()

    def full(self) -> float | None:
        """Return the memory in megabytes the first time that it reaches the limit, else None."""
        if self.limit is None:
            return None

        try:
            memory = self.process.memory_info().rss / MEGABYTE
        except PROCESS_ERRORS:
            return None

        if memory < self.limit:
            return None
        self.limit = None
        return float(memory)
