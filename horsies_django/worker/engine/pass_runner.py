"""The pass runner: chooses between the short pass and the whole one, tells it where to look, and learns from the answer.

The outbox writes what it is told and knows nothing of queues; the runner knows what the worker was told of them, from where on
the next scan looks, and which tasks it leaves to other workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.scan_cursors import ScanCursors
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from horsies_django.worker.engine.wakeups import Wakeups
from horsies_django.worker.process.task_log import tell_expired


class PassRunner:
    """Runs the passes of a worker that serves ``queues`` and looks everywhere each ``poll_seconds``."""

    def __init__(
        self, outbox: Outbox, queues: Iterable[str], poll_seconds: float, unknown_tasks: UnknownTasks | None = None
    ) -> None:
        self.outbox = outbox
        self.wakeups = Wakeups(queues, poll_seconds)
        self.cursors = ScanCursors(self.wakeups.queues, self.wakeups.tell, poll_seconds)
        self.unknown_tasks = unknown_tasks or UnknownTasks()

    def run(
        self,
        wanted: Wanted,
        slots: Mapping[str, int],
        starts: Sequence[Claim] = (),
        *,
        expired_leases: bool = False,
        hears: bool = False,
    ) -> Passed:
        """Write what is owed, start ``starts``, and claim what is wanted for free ``slots`` by lane.

        ``expired_leases`` also takes back claims whose lease ended. ``hears``: whether notifications arrive, without
        which scan cursors are of no use. Raises psycopg.Error.
        """
        now = time.monotonic()
        grace = self.unknown_tasks.grace_at(now)
        plain = not (starts or expired_leases or grace is not None or (hears and self.cursors.worthwhile))
        passed = self._run_short_pass(now, wanted) if plain else None
        if passed is None:
            began = time.monotonic()
            cursors = self.cursors.text(began) if hears else None
            passed = self.outbox.run_pass(wanted, starts, expired_leases=expired_leases, grace=grace, cursors=cursors)
            if hears:
                self.cursors.learn(passed, began, time.monotonic() - began)
        tell_expired(passed.late)
        if grace is None:
            self._release_unknown_tasks(passed)
        self.wakeups.learn(slots, wanted, passed, time.monotonic())
        return passed

    def _run_short_pass(self, now: float, wanted: Wanted) -> Passed | None:
        """Return what a short pass brought; None: it does not suit, and nothing was done."""
        suits, queue = self.wakeups.short_pass(now, wanted)
        if not suits or not self.outbox.suits_short_pass(now):
            return None
        passed = self.outbox.run_short_pass(wanted, queue)
        self.wakeups.rest(time.monotonic(), time.monotonic() - now, fit=passed is not None)
        return passed

    def _release_unknown_tasks(self, passed: Passed) -> None:
        """Give back what this worker does not know, and come round again: the next pass leaves such tasks to others."""
        passed.claims, unknown = self.unknown_tasks.part(passed.claims)
        passed.prefetched, ahead = self.unknown_tasks.part(passed.prefetched)
        if unknown or ahead:
            self.unknown_tasks.met(time.monotonic(), unknown + ahead)
            self.outbox.releases += unknown + ahead
            passed.again = True
