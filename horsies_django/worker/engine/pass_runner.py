"""The pass runner, which chooses when the next pass may begin and which queues it scans.

The outbox has no state of queues. The runner has: which queues may have due tasks, where the next
scan starts, and which tasks are left to other workers. It updates this state by the result of each
pass.
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

GATHER_OUTCOMES_SECONDS = 0.002
ENOUGH = 20  # the next pass does not wait for more outcomes than these


class PassRunner:
    """The passes of a worker that serves ``queues`` and scans them all every ``poll_seconds``."""

    def __init__(
        self,
        outbox: Outbox,
        queues: Iterable[str],
        poll_seconds: float,
        unknown_tasks: UnknownTasks,
    ) -> None:
        self.outbox = outbox
        self.wakeups = Wakeups(queues, poll_seconds)
        self.cursors = ScanCursors(
            self.wakeups.queues, self.wakeups.handle_notification, poll_seconds
        )
        self.unknown_tasks = unknown_tasks

        self.started = 0  # tasks that the last pass has started
        self.ended = 0.0  # when the last pass ended, by the monotonic clock
        self.seconds = 0.0  # the duration of all passes together
        self.buckets = [0] * len(BOUNDS)  # the histogram of the durations

    @property
    def not_before(self) -> float:
        """The earliest time of the next pass, by the monotonic clock.

        The pass waits until as many tasks have ended as the last pass started, but no longer than 2
        ms after the last pass. A pass for one task takes nearly as long as a pass for several
        tasks, and short tasks that began together end together.
        """
        waits = len(self.outbox.outcomes) < min(self.started, ENOUGH)
        return self.ended + GATHER_OUTCOMES_SECONDS if waits else self.ended

    def run(
        self,
        wanted: Wanted,
        slots: Mapping[str, int],
        starts: Sequence[Claim] = (),
        *,
        expired_leases: bool = False,
        notified: bool = False,
    ) -> Passed:
        """Write outcomes and releases, start ``starts``, and claim tasks for the free ``slots``.

        ``slots`` is a number by lane. With ``expired_leases``, claims whose lease ended are
        released, too. Scan cursors are used only if ``notified``, so if notifications arrive.
        Raises psycopg.Error.
        """
        began = time.monotonic()
        grace = self.unknown_tasks.grace_at(began)
        cursors = self.cursors.text(began) if notified else None
        news = self.wakeups.queue_for_short_pass(began, wanted)

        passed = self.outbox.run_pass(
            wanted, starts, news=news, expired_leases=expired_leases, grace=grace, cursors=cursors
        )

        self.ended = time.monotonic()
        self.seconds += self.ended - began
        self.buckets[bucket(self.ended - began)] += 1

        scanned = bool(wanted.sync or wanted.async_ or wanted.prefetch)
        if passed.short and passed.far:  # it read many dead entries or future tasks
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
        """Scan all queues now and a moment later, because notifications may have been missed."""
        self.cursors.forget()
        self.wakeups.start_over()

    def follow_up(self, now: float, free: Callable[[str], int]) -> None:
        """Check queues again after notifications, and wake other workers for tasks without a slot.

        ``free`` returns the number of free slots of a lane. Usually other workers have claimed the
        tasks by now, so the queues are checked by a statement that costs the server a third of a
        pass. But only a pass can skip dead entries, by the scan cursors, so if cursors are used,
        the next pass scans the queues. Raises psycopg.Error.
        """
        for lane, queues in self.wakeups.take_later(now).items():
            if (
                lane is None
                or self.cursors.worthwhile
                or self.outbox.store.waits(lane, sorted(queues))
            ):
                self.wakeups.mark_fresh(queues, lane)

        if lane := self.wakeups.lane_to_pass_on(now, free):
            queues = self.wakeups.fresh[lane]
            woken = self.outbox.store.pass_on(
                self.outbox.worker, self.outbox.channel, lane, sorted(queues)
            )
            self.wakeups.passed_on(woken, time.monotonic() - now)

    def _release_unknown_tasks(self, passed: Passed) -> None:
        """Release unknown tasks and request another pass, which leaves them to other workers."""
        passed.claims, unknown = self.unknown_tasks.split(passed.claims)
        passed.prefetched, ahead = self.unknown_tasks.split(passed.prefetched)

        if unknown or ahead:
            self.unknown_tasks.met(time.monotonic(), unknown + ahead)
            self.outbox.releases += unknown + ahead
            passed.again = True
