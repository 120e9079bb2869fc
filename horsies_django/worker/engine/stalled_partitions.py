"""Stalled partitions, whose next task could not be unparked because its row was locked.

The statement that ends the first task of a partition unparks the next one, but skips a locked row.
Then the workers are notified with the id of a task of the partition. The first of the elected tries
again, less and less often while the lock lasts. Without notifications the sweep does so, every 30
seconds.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable

from horsies_django.core.notifications import Stalled

SOON_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 2.0
MOST_STALLED = 1_000  # a limit, because any role may notify; the sweep finds the other partitions


class StalledPartitions:
    """The tasks whose partitions are stalled, of any queue.

    ``at`` is the time of the next try, by the monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at = math.inf
        self.wait = SOON_SECONDS
        self.left: set[uuid.UUID] = set()
        self.tried: set[uuid.UUID] = set()  # at the last try

    def add(self, partition: Stalled) -> None:
        """Add a stalled partition, unless there are too many, and set the time of the next try."""
        if len(self.left) >= MOST_STALLED:
            return

        if partition.at_once:
            wait = 0.0
        elif partition.task in self.tried:
            wait = self.wait = min(self.wait * 2, LONGEST_RETRY_SECONDS)
        else:
            wait = self.wait = SOON_SECONDS

        self.left.add(partition.task)
        self.at = min(self.at, self.clock() + wait)

    def take(self) -> list[uuid.UUID]:
        """Return the tasks whose partitions are to be tried again now."""
        if self.clock() < self.at:
            return []

        self.at = math.inf
        self.tried = self.left
        self.left = set()
        return list(self.tried)
