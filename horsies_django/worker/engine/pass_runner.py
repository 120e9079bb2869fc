"""The pass runner: chooses when the next pass may begin and what it is asked, and learns from its
result.

The outbox knows nothing of queues. The runner knows which queues may have due tasks, where the next
scan starts, and which tasks are left to other workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from horsies_django.core.counts import BOUNDS, bucket
from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.scan_cursors import ScanCursors
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from horsies_django.worker.engine.wakeups import Wakeups

GATHER_SECONDS = 0.002
ENOUGH = 20  # outcomes: the next pass does not wait for more


class PassRunner:
    """Runs the passes of a worker that serves ``queues`` and scans all of them every
    ``poll_seconds``.
    """

    def __init__(
        self,
        outbox: Outbox,
        queues: Iterable[str],
        poll_seconds: float,
        unknown_tasks: UnknownTasks,
    ) -> None:
        self.outbox = outbox
        self.wakeups = Wakeups(queues, poll_seconds)
        self.cursors = ScanCursors(self.wakeups.queues, self.wakeups.hear, poll_seconds)
        self.unknown_tasks = unknown_tasks

        self.started = 0  # tasks, by the last pass
        self.ended = 0.0  # the last pass, by the monotonic clock
        self.seconds = 0.0  # of all passes together
        self.buckets = [0] * len(BOUNDS)  # the histogram of how long they took

    @property
    def not_before(self) -> float:
        """When the next pass may begin: once as many tasks have ended as the last one started, at
        most 2 ms after it.

        A pass for one task takes nearly as long as one for several, and short tasks that began
        together end together.
        """
        waits = len(self.outbox.outcomes) < min(self.started, ENOUGH)
        return self.ended + GATHER_SECONDS if waits else self.ended

    def run(
        self,
        wanted: Wanted,
        slots: Mapping[str, int],
        starts: Sequence[Claim] = (),
        *,
        expired_leases: bool = False,
        notified: bool = False,
    ) -> Passed:
        """Write outcomes and releases, start ``starts``, and claim what is wanted for free
        ``slots`` by lane.

        ``expired_leases`` also releases claims whose lease ended. ``notified``: whether
        notifications arrive; without them scan cursors are not used. Raises psycopg.Error.
        """
        began = time.monotonic()
        grace = self.unknown_tasks.grace_at(began)
        cursors = self.cursors.text(began) if notified else None
        news = self.wakeups.news(began, wanted)

        passed = self.outbox.run_pass(
            wanted, starts, news=news, expired_leases=expired_leases, grace=grace, cursors=cursors
        )

        self.ended = time.monotonic()
        self.seconds += self.ended - began
        self.buckets[bucket(self.ended - began)] += 1

        scanned = bool(wanted.sync or wanted.async_ or wanted.prefetch)
        if passed.short and passed.far:  # over dead entries or future tasks
            self.wakeups.avoid_short(self.ended, self.ended - began)
        elif notified and not passed.short:
            self.cursors.learn(passed, began, self.ended - began, scanned=scanned)

        self.outbox.expired(passed.late)
        if grace is None:
            self._release_unknown_tasks(passed)

        self.outbox.counts.claimed(passed.claims)
        self.outbox.counts.claimed(passed.prefetched)
        self.started = len(passed.claims) + len(passed.started)

        self.wakeups.learn(slots, wanted, passed, self.ended)
        if grace is not None:
            self.wakeups.due_at = min(self.wakeups.due_at, self.unknown_tasks.until)

        return passed

    def start_over(self) -> None:
        """Scan everything, now and a moment later: notifications may have been missed."""
        self.cursors.forget()
        self.wakeups.start_over()

    def follow_up(self, now: float, free: Callable[[str], int]) -> None:
        """Look again where tasks were notified; wake other workers for tasks of a lane without a
        ``free`` slot here.

        Usually the tasks are claimed by now, so a look is not a pass, which costs the server three
        times as much. But only a pass can skip dead entries, by the scan cursors. Raises
        psycopg.Error.
        """
        for lane, queues in self.wakeups.take_later(now).items():
            if (
                lane is None
                or self.cursors.worthwhile
                or self.outbox.store.waits(lane, sorted(queues))
            ):
                self.wakeups.tell(queues, lane)

        if lane := self.wakeups.lane_to_pass_on(now, free):
            queues = self.wakeups.fresh[lane]
            woken = self.outbox.store.pass_on(
                self.outbox.worker, self.outbox.channel, lane, sorted(queues)
            )
            self.wakeups.passed_on(woken, time.monotonic() - now)

    def _release_unknown_tasks(self, passed: Passed) -> None:
        """Release unknown tasks and run another pass, which leaves such tasks to other workers."""
        passed.claims, unknown = self.unknown_tasks.split(passed.claims)
        passed.prefetched, ahead = self.unknown_tasks.split(passed.prefetched)

        if unknown or ahead:
            self.unknown_tasks.met(time.monotonic(), unknown + ahead)
            self.outbox.releases += unknown + ahead
            passed.again = True
