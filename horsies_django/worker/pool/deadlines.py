"""Deadlines of running tasks: when a task is asked to stop, and when its process is killed because it did not.

They are kept in a heap. Entries of tasks that ended remain in it, so it is cleaned when it contains many more entries than there
are tasks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from horsies_django.core.options import read_options
from horsies_django.worker.pool.process import PoolProcess

FEW = 1_000  # entries, below which cleaning is not worthwhile


class TimeLimits(NamedTuple):
    """The default timeout of tasks in seconds (None: no limit), and the grace in seconds before the process is killed."""

    default: float | None = None
    grace: float = 5.0

    def timeout(self, options: str | None) -> float | None:
        if options is not None and (found := read_options(options).timeout_ms) is not None:
            return found / 1000
        return self.default


NO_LIMITS = TimeLimits()


class Place(NamedTuple):
    """Where a task runs: the process, its lane, the task's number there."""

    process: PoolProcess
    lane: str
    number: int

    @property
    def occupied(self) -> bool:
        """Whether the task still runs there; a process that ended holds nothing."""
        return self.number in self.process.held[self.lane]


class Deadlines:
    """The deadlines of the running tasks of a pool."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Place, str, bool]] = []
        self.order = itertools.count()
        self.clean_above = FEW

    def add(self, at: float, place: Place, reason: str, *, kill: bool) -> None:
        """Add a deadline at ``at`` by the monotonic clock; ``kill``: kill the process instead of asking the task to stop."""
        heapq.heappush(self.heap, (at, next(self.order), place, reason, kill))
        if len(self.heap) > self.clean_above:
            self.heap = [entry for entry in self.heap if entry[2].occupied]
            heapq.heapify(self.heap)
            self.clean_above = max(FEW, 2 * len(self.heap))

    @property
    def next(self) -> float:
        """The earliest deadline of a task that still runs; infinite if there is none."""
        while self.heap and not self.heap[0][2].occupied:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else math.inf

    def due(self, now: float) -> Iterator[tuple[Place, str, bool]]:
        """Remove and yield the due deadlines: place, reason, and whether to kill."""
        while self.next <= now:
            _, _, place, reason, kill = heapq.heappop(self.heap)
            yield place, reason, kill
