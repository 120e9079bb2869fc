"""Stalled partitions: those in which the next task could not be let go, because its row was locked at that moment.

Who ends the first task of a partition unparks the next one, and skips a locked row. Workers are told of such a partition; the
first of the elected tries again, less often while the lock lasts. Without notifications the sweep does so, every 30 seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from horsies_django.core.notifications import Stalled

SOON_SECONDS = 0.1
LONGEST_SECONDS = 2.0
MOST = 1_000  # any role may notify; the sweep finds the others


class StalledPartitions:
    """The stalled partitions of the ``queues`` that a worker serves. ``at`` is when to try again, by the monotonic clock."""

    def __init__(self, queues: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.queues = frozenset(queues)
        self.at = math.inf
        self.wait = SOON_SECONDS
        self.left: set[tuple[str, str]] = set()  # queue and key
        self.tried: set[tuple[str, str]] = set()  # the last time

    def hear(self, told: Stalled) -> None:
        """Note a partition, unless another worker serves it."""
        partition = (told.queue, told.key)
        if told.queue not in self.queues or len(self.left) >= MOST:
            return
        if told.at_once:
            wait = 0.0
        elif partition in self.tried:
            wait = self.wait = min(self.wait * 2, LONGEST_SECONDS)
        else:
            wait = self.wait = SOON_SECONDS
        self.left.add(partition)
        self.at = min(self.at, self.clock() + wait)

    def take(self) -> tuple[list[str], list[str]]:
        """Return the queues and the keys to try again now."""
        if self.clock() < self.at:
            return [], []
        self.at = math.inf
        self.tried = self.left
        self.left = set()
        return [queue for queue, _ in self.tried], [key for _, key in self.tried]
