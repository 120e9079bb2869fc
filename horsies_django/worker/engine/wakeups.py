"""Wakeups: which queues may have due tasks, according to notifications, and when to scan without
one.

A pass that finds fewer tasks than slots has taken all due tasks: the lane has no work until a
wakeup. If the wakeups are for one queue only, the pass is told: without limits there, it is a short
one. Only a whole pass says when the next task becomes due: if that is not known, a whole pass
follows a short one that found too few.

Three workers of a team, the elected, are told of new tasks: the first looks at once, the others a
moment later, in case it is stopped, dead or cut off. Whoever has no free slot wakes others. See
"Waking workers" in docs/explanation/architecture.md.
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
from horsies_django.worker.engine.capacity import FIELDS
from horsies_django.worker.engine.scan_cursors import spacing

Look = tuple[str | None, str]  # a lane, None for both, and a queue

NOW = 0.0
NEVER = math.inf
# What happened -> in how many seconds places 0, 1 and 2 of the elected act, and who is not elected.
# Looks are apart: who looks later finds nothing if who looked before lives. Quiet sends
# (tasks/notify_throttle.py) end in less than any but the first.
AFTER = {
    "sent": (NOW, 0.05, 0.09, NEVER),  # a notification of new tasks: look there
    # several: look again, because tasks may have followed the last one without one
    "burst": (0.05, 0.05, 0.09, 0.05),
    "due": (NOW, 0.05, 0.09, NEVER),  # a task becomes due: look everywhere
    "missed": (0.05, 0.05, 0.05, 0.05),  # notifications were missed: look everywhere again
    "full": (0.003, 0.003, 0.003, 0.003),  # no slot is free: wake others; short tasks end before
    "woken": (0.01, 0.01, 0.01, 0.01),  # others were woken: wake more of them
    "none free": (0.05, 0.05, 0.05, 0.05),  # nobody has a free slot: try to wake others again
}
BURST_SECONDS = 0.03  # between two notifications of a burst, at most


class Wakeups:
    """The wakeups of the ``queues`` that a worker serves; all are scanned every ``poll_seconds`` in
    any case.

    ``place``: which of the elected the worker is, None if it is not elected. Also set by another
    thread.
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
        # whether caps left tasks behind: then each settled task may free a permit
        self.limited = False

        self.poll_at = 0.0  # when to scan everything without a wakeup, by the monotonic clock
        self.due_at = math.inf  # when the next task becomes due
        self.later: dict[Look, float] = {}  # where to look again -> when it was notified
        self.later_at = math.inf
        self.heard_at = -math.inf

        self.passes_on = False  # whether other workers are woken if this one has no free slot
        self.pass_on_at = math.inf
        self.rest_until = 0.0  # before it, no other workers are woken again
        self.whole_next = False  # whether the next pass must be a whole one
        self.short_from = 0.0  # no short pass before this time

    def handlers(self) -> dict[str, Callable[[float], None]]:
        """Return the handlers of notifications to this worker alone."""
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
        self.tell(queues, lane)
        self.passes_on = True

    def after(self, event: str) -> float:
        """Return in how many seconds this worker acts after an event."""
        return AFTER[event][-1 if self.place is None else self.place]

    def hear(self, queues: Iterable[str], lane: str | None = None) -> None:
        """All workers were told of new tasks: look now or later, by the place of this worker."""
        now = self.clock()
        first = self.after("sent")
        burst, self.heard_at = now - self.heard_at < BURST_SECONDS, now

        if first == NOW:
            self.tell(queues, lane)
        if NOW < first < NEVER or (first == NOW and burst):
            self.later.update(((lane, queue), now) for queue in queues)
            self.later_at = min(self.later_at, now + self.after("burst"))

    def tell(self, queues: Iterable[str], lane: str | None = None) -> None:
        """These queues have new tasks, due now or later; with a ``lane`` they are all due, and in
        that lane.
        """
        for each in LANES if lane is None else [lane]:
            self.fresh[each].update(queues)
        if lane is None:
            self.certain.clear()
        self.passes_on = self.passes_on or self.place is not None

    def follow(self, queues: Iterable[str]) -> None:
        """The next pass goes on with workflows, mostly in these queues; workers are told of what it
        leaves behind.
        """
        for lane in LANES:
            self.fresh[lane].update(self.queues.intersection(queues))

    def start_over(self) -> None:
        """Look everywhere, now and a moment later: notifications may have been missed."""
        self.tell(self.queues)
        self.later.update(((None, queue), self.clock()) for queue in self.queues)
        self.later_at = self.clock() + self.after("missed")

    def look_everywhere(self) -> None:
        """Any queue may have due tasks."""
        self.tell(self.queues)
        self.poll_at = self.clock() + self.poll_seconds * random.uniform(0.9, 1.1)
        self.due_at = math.inf

    @property
    def _everywhere_at(self) -> float:
        """Workers that are not elected leave tasks that become due to the others."""
        return min(self.poll_at, self.due_at + self.after("due"))

    @property
    def next_at(self) -> float:
        """When to do something, unless a notification comes before."""
        return min(self._everywhere_at, self.later_at, self.pass_on_at)

    def take_later(self, now: float) -> dict[str | None, set[str]]:
        """Return the queues to look at again now, by lane, and set when to do so once more: others
        may follow the last notification without one.
        """
        taken: dict[str | None, set[str]] = {}
        if now >= self.later_at:
            seconds = self.after("burst")
            for lane, queue in self.later:
                taken.setdefault(lane, set()).add(queue)
            self.later = {key: heard for key, heard in self.later.items() if heard + seconds > now}
            self.later_at = max(self.later.values(), default=math.inf) + seconds

        return taken

    def tick(self, now: float) -> None:
        """Look everywhere, if it is time to."""
        if now >= self._everywhere_at:
            self.look_everywhere()

    @property
    def lanes_with_work(self) -> set[str]:
        return {lane for lane, fresh in self.fresh.items() if fresh}

    def lane_to_pass_on(self, now: float, free: Callable[[str], int]) -> str | None:
        """Return a lane for whose tasks to wake other workers now, because it has no ``free`` slot
        here.
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
        """Record that so many workers were woken, None if no task waits, and set when to do it
        again.
        """
        self.passes_on = woken is not None and (woken > 0 or self.place is not None)
        self.rest_until = self.pass_on_at = self.clock() + spacing(
            self.after("woken" if woken else "none free"), took
        )

    def news(self, now: float, wanted: Wanted) -> str | None:
        """Return the only queue that may have due tasks for what is wanted; None if more than that
        is to be looked into.
        """
        if self.whole_next or self.limited or now < self.short_from:
            return None
        queues = set().union(
            *(self.fresh[lane] for lane, name in FIELDS.items() if getattr(wanted, name))
        )
        return next(iter(queues)) if len(queues) == 1 else None

    def avoid_short(self, now: float, took: float) -> None:
        """Avoid short passes for a while after one that read much: whole ones skip future tasks
        and, by cursors, dead entries.
        """
        self.short_from = now + spacing(0.0, took)

    def learn(self, slots: Mapping[str, int], wanted: Wanted, passed: Passed, now: float) -> None:
        """Record which lanes with free ``slots`` have no more work, and when the next task becomes
        due.
        """
        cut = wanted.batch or len(passed.claims) + len(passed.prefetched) >= wanted.total
        batched = cut and passed.claims
        self.whole_next = False

        for lane, asked in slots.items():
            got = sum(claim.lane == lane for claim in passed.claims)
            if (
                not asked
                or passed.expired
                or passed.again
                or batched
                or got >= getattr(wanted, FIELDS[lane])
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
