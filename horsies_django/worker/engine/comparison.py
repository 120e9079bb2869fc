"""Compares the tasks that this worker has with those that the database says it has.

It finds claims whose reply was lost, which are released, and tasks that were cancelled.
"""

from __future__ import annotations

from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.prefetch import Prefetched
from horsies_django.worker.pool.pool import Pool

INTERVAL_SECONDS = 10.0


class Comparison:
    """Compares every ten seconds, after a reconnect, and when a task of this worker was cancelled."""

    def __init__(self, outbox: Outbox, pool: Pool, prefetched: Prefetched) -> None:
        self.outbox = outbox
        self.pool = pool
        self.prefetched = prefetched
        self.at = 0.0  # when to compare next, by the monotonic clock

    def soon(self, _moment: float = 0.0) -> None:
        """Compare before the next pass."""
        self.at = 0.0

    def run(self, now: float) -> None:
        """Compare. Raises psycopg.Error."""
        for task in self.outbox.compare(self.pool.held() | set(self.prefetched.claims)):
            if task.cancelled:
                self.pool.timeouts.cancel(task.id, terminate=task.terminate)
        self.at = now + INTERVAL_SECONDS
