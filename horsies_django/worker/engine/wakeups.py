"""Wakeups: which queues may have due tasks, and when to scan without a notification.

A pass that finds fewer tasks than slots has claimed all due tasks: the lane has no work until a
wakeup. If the wakeups are for one queue only, the pass gets its name: if the queue has no limits,
the pass is a short one. Only a whole pass returns when the next task becomes due. So if that time
is unknown, a whole pass follows a short one that found too few tasks.

Three workers of a team, the elected, are notified of new tasks. The first one checks at once, the
others a moment later, in case the first is stopped, dead or cut off. A worker without a free slot
wakes others. See "Waking workers" in docs/explanation/architecture.md.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from horsies_django.core.queues import LANES
from horsies_django.core.records import Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.capacity import WANTED_FIELDS
from horsies_django.worker.engine.scan_cursors import spacing

LaneQueue = tuple[str | None, str]  # a lane, None for both, and a queue

NOW = 0.0
NEVER = math.inf
# Event -> in how many seconds the workers at places 0, 1 and 2 of the elected act, and in how many
# a worker that is not elected. The times differ, so that a later worker finds no task if an earlier
# one is alive. A quiet send (tasks/notify_throttle.py) ends within less than each time of "burst".
AFTER = {
    "sent": (NOW, 0.05, 0.09, NEVER),  # a notification of new tasks: check these queues
    # several notifications: check again, because quiet sends may have followed the last one
    "burst": (0.05, 0.05, 0.09, 0.05),
    "due": (NOW, 0.05, 0.09, NEVER),  # a task becomes due: check all queues
    "missed": (0.05, 0.05, 0.05, 0.05),  # notifications were missed: check all queues again
    # no slot is free: wake others, but wait for short tasks to end
    "full": (0.003, 0.003, 0.003, 0.003),
    "woken": (0.01, 0.01, 0.01, 0.01),  # others were woken: wake more of them
    "none free": (0.05, 0.05, 0.05, 0.05),  # no worker has a free slot: try to wake others again
}
NOTIFICATION_BURST_SECONDS = 0.03  # the longest time between two notifications of a burst


class Wakeups:
    """The wakeups of the ``queues`` that a worker serves.

    All queues are scanned every ``poll_seconds`` even without a wakeup. ``place`` is the place of
    the worker among the elected, None if it is not elected. Other threads set it, too.
    """

    def __init__(
        self,
        queues: Iterable[str],
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.queues = frozenset(queues)
        self.poll_seconds = poll_seconds
        self.place: int | None = 0

        # the queues that may have due tasks
        self.fresh: dict[str, set[str]] = {lane: set() for lane in LANES}
        self.certain: set[str] = set()  # lanes whose next due time is known
        # whether tasks wait because of a cap, so that each settled task may free a permit
        self.limited = False

        self.poll_at = 0.0  # when to scan everything without a wakeup, by the monotonic clock
        self.due_at = math.inf  # when the next task becomes due
        # lanes and queues to check again -> when they were notified
        self.later: dict[LaneQueue, float] = {}
        self.later_at = math.inf
        self.notified_at = -math.inf

        self.passes_on = False  # whether other workers are woken if this one has no free slot
        self.pass_on_at = math.inf
        self.rest_until = 0.0  # before it, no other workers are woken again
        self.whole_next = False  # whether the next pass must be a whole one
        self.short_from = 0.0  # no short pass before this time

    def handlers(self) -> dict[str, Callable[[float], None]]:
        """Return the handlers of the notifications that are sent to this worker only, by word."""
        acts: dict[str, Callable[[float], None]] = {
            f"place {place}": partial(self._take, place) for place in range(3)
        }
        for lane in LANES:
            acts |= {
                f"now {lane} {queue}": partial(self._wake, [queue], lane) for queue in self.queues
            }
            acts[f"now {lane} *"] = partial(self._wake, self.queues, lane)
        return acts

    def _take(self, place: int, _moment: float) -> None:
        self.place = place

    def _wake(self, queues: Iterable[str], lane: str, _moment: float) -> None:
        self.mark_fresh(queues, lane)
        self.passes_on = True

    def after(self, event: str) -> float:
        """Return in how many seconds this worker acts after an event."""
        return AFTER[event][-1 if self.place is None else self.place]

    def handle_notification(self, queues: Iterable[str], lane: str | None = None) -> None:
        """Check these queues now or later, by the place of this worker.

        All workers were notified of new tasks there.
        """
        now = self.clock()
        first = self.after("sent")
        burst, self.notified_at = now - self.notified_at < NOTIFICATION_BURST_SECONDS, now

        if first == NOW:
            self.mark_fresh(queues, lane)
        if NOW < first < NEVER or (first == NOW and burst):
            self.later.update(((lane, queue), now) for queue in queues)
            self.later_at = min(self.later_at, now + self.after("burst"))

    def mark_fresh(self, queues: Iterable[str], lane: str | None = None) -> None:
        """Record that these queues have new tasks, which are due now or later.

        With a ``lane``, all new tasks are due and in that lane.
        """
        for each in LANES if lane is None else [lane]:
            self.fresh[each].update(queues)
        if lane is None:
            self.certain.clear()
        self.passes_on = self.passes_on or self.place is not None

    def follow(self, queues: Iterable[str]) -> None:
        """Record that the next pass may send further tasks of workflows, mostly in these queues.

        Other workers are notified of the tasks that the pass does not claim.
        """
        for lane in LANES:
            self.fresh[lane].update(self.queues.intersection(queues))

    def start_over(self) -> None:
        """Check all queues now and a moment later, because notifications may have been missed."""
        self.mark_fresh(self.queues)
        self.later.update(((None, queue), self.clock()) for queue in self.queues)
        self.later_at = self.clock() + self.after("missed")

    def check_everywhere(self) -> None:
        """Check all queues now, and set the time of the next poll."""
        self.mark_fresh(self.queues)
        self.poll_at = self.clock() + self.poll_seconds * random.uniform(0.9, 1.1)
        self.due_at = math.inf

    @property
    def _everywhere_at(self) -> float:
        """When to check all queues, by the monotonic clock.

        Workers that are not elected do not wait for tasks that become due; the elected take them.
        """
        return min(self.poll_at, self.due_at + self.after("due"))

    @property
    def next_at(self) -> float:
        """When to act next without a notification, by the monotonic clock."""
        return min(self._everywhere_at, self.later_at, self.pass_on_at)

    def take_later(self, now: float) -> dict[str | None, set[str]]:
        """Return the queues to check again now, by lane, and set the time of the next such check.

        The key None stands for both lanes. The next check is for queues that were notified only
        recently, because quiet sends may still follow the last notification.
        """
        taken: dict[str | None, set[str]] = {}
        if now >= self.later_at:
            seconds = self.after("burst")
            for lane, queue in self.later:
                taken.setdefault(lane, set()).add(queue)
            self.later = {
                key: notified_at
                for key, notified_at in self.later.items()
                if notified_at + seconds > now
            }
            self.later_at = max(self.later.values(), default=math.inf) + seconds

        return taken

    def tick(self, now: float) -> None:
        """Check all queues, if it is time to do so."""
        if now >= self._everywhere_at:
            self.check_everywhere()

    @property
    def lanes_with_work(self) -> set[str]:
        return {lane for lane, fresh in self.fresh.items() if fresh}

    def lane_to_pass_on(self, now: float, free: Callable[[str], int]) -> str | None:
        """Return a lane with tasks but no ``free`` slot here, for which to wake other workers now.

        Return None if there is no such lane, or it is not time yet.
        """
        lanes = (
            [lane for lane in LANES if self.fresh[lane] and not free(lane)]
            if self.passes_on
            else []
        )

        if not lanes:
            self.pass_on_at = math.inf
        elif self.pass_on_at == math.inf:
            self.pass_on_at = max(now + self.after("full"), self.rest_until)

        return random.choice(lanes) if now >= self.pass_on_at else None

    def passed_on(self, woken: int | None, took: float) -> None:
        """Record how many workers were woken, None if no task waits, and set when to wake more.

        ``took`` is the duration of the statement in seconds.
        """
        self.passes_on = woken is not None and (woken > 0 or self.place is not None)
        self.rest_until = self.pass_on_at = self.clock() + spacing(
            self.after("woken" if woken else "none free"), took
        )

    def queue_for_short_pass(self, now: float, wanted: Wanted) -> str | None:
        """Return the only queue that may have due tasks for the wanted lanes, for a short pass.

        Return None if a whole pass is necessary.
        """
        if self.whole_next or self.limited or now < self.short_from:
            return None
        queues = set().union(
            *(self.fresh[lane] for lane, name in WANTED_FIELDS.items() if getattr(wanted, name))
        )
        return next(iter(queues)) if len(queues) == 1 else None

    def avoid_short(self, now: float, took: float) -> None:
        """Avoid short passes for a while, after one that read many index entries.

        Whole passes skip future tasks and, by cursors, dead entries. ``took`` is the duration of
        the short pass in seconds.
        """
        self.short_from = now + spacing(0.0, took)

    def learn(self, slots: Mapping[str, int], wanted: Wanted, passed: Passed, now: float) -> None:
        """Record by the result of a pass which lanes have no more work, and the next due time.

        ``slots`` are the free slots by lane that the pass could fill.
        """
        cut = wanted.batch or len(passed.claims) + len(passed.prefetched) >= wanted.total
        batched = cut and passed.claims
        self.whole_next = False

        for lane, free in slots.items():
            got = sum(claim.lane == lane for claim in passed.claims)
            if (
                not free
                or passed.expired
                or passed.again
                or batched
                or got >= getattr(wanted, WANTED_FIELDS[lane])
            ):
                continue

            if not passed.short:
                self.certain.add(lane)
            if lane in self.certain:
                self.fresh[lane].clear()
            else:
                self.whole_next = True

        if any(slots.values()):
            self.limited = passed.limited
        if passed.due_in is not None:
            self.due_at = min(self.due_at, now + passed.due_in + 0.001)
