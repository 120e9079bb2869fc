"""Stalled partitions: those in which the next task could not be let go, because its row was locked
at that moment.

Who ends the first task of a partition unparks the next one, and skips a locked row. Workers are
told of such a partition by the id of a task in it; the first of the elected tries again, less often
while the lock lasts. Without notifications the sweep does so, every 30 seconds.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable

from horsies_django.core.notifications import Stalled

SOON_SECONDS = 0.1
LONGEST_SECONDS = 2.0
MOST = 1_000  # any role may notify; the sweep finds the others


class StalledPartitions:
    """The tasks whose partitions are stalled, of any queue.

    ``at`` is when to try again, by the monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.at = math.inf
        self.wait = SOON_SECONDS
        self.left: set[uuid.UUID] = set()
        self.tried: set[uuid.UUID] = set()  # the last time

    def hear(self, told: Stalled) -> None:
        """Note a partition."""
        if len(self.left) >= MOST:
            return

        if told.at_once:
            wait = 0.0
        elif told.task in self.tried:
            wait = self.wait = min(self.wait * 2, LONGEST_SECONDS)
        else:
            wait = self.wait = SOON_SECONDS

        self.left.add(told.task)
        self.at = min(self.at, self.clock() + wait)

    def take(self) -> list[uuid.UUID]:
        """Return the tasks whose partitions are to be tried again now."""
        if self.clock() < self.at:
            return []

        self.at = math.inf
        self.tried = self.left
        self.left = set()
        return list(self.tried)
