"""Scan cursors: where the next pass starts to scan for waiting tasks and to count running ones.

Each claim and each end of a task leaves a dead entry in an index. Vacuum removes them, but not
while a transaction is open that might still see the rows. Then a scan walks over more and more dead
entries before it finds a task. So the engine keeps the place where the last scan found the first
task, per queue, lane and priority, and the next scan starts there.

A task can appear before a cursor: its sender committed late, or it was released, is retried, or was
rescued. Each of these events sends a notification with the earliest time concerned, which lowers
the cursors. Sends that do not notify commit at once, so cursors stay a little behind the clock.

Cursors are only used while notifications arrive, and once per poll interval a pass runs without
them; less often if it takes so long that it would slow the worker down. They are not used while
passes without them read few dead entries, because cursors have a cost of their own. See
docs/explanation/the-pass.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from horsies_django.core.queues import CLUSTER, LANES
from horsies_django.store.passes import Passed

Act = Callable[[float], None]
Notify = Callable[[Iterable[str], str | None], None]  # queues, and the lane concerned (None: both)

HIGHEST = 32_767  # above every priority
# the most priorities per queue and lane: a scan reads each of them and the ranges between
PRIORITIES = 16
ANYWHERE: float | None = None
SPACING_FACTOR = 20  # passes that read all dead entries take at most a twentieth of the time
LONGEST_SPACING_SECONDS = 60.0  # if one pass hung for minutes, the next one need not
# how far a cursor stays behind the clock; quiet sends (tasks/notify_throttle.py) commit earlier
LAG_SECONDS = 0.1


class ScanCursors:
    """The cursors of the ``queues`` that a worker serves.

    ``notify`` is called with the queues that were notified.
    """

    def __init__(self, queues: Iterable[str], notify: Notify, poll_seconds: float) -> None:
        self.queues = list(queues)
        self.notify = notify

        # queue and lane -> priority -> epoch
        self.waiting: dict[tuple[str, str], dict[int, float | None]] = {}
        # queue with a cap -> when its tasks in flight were claimed
        self.held: dict[str, list[str]] = {}

        # polls are further apart, so every poll is a pass without cursors
        self.every = poll_seconds * 0.9
        self.forget_at = 0.0  # by the monotonic clock
        self.far = False  # whether the last pass without cursors read many dead entries
        self.forgetful = False  # whether the current pass runs without cursors

    @property
    def worthwhile(self) -> bool:
        """True if cursors would make passes faster."""
        # with more queues, a pass reads only those with tasks, but would need the cursors of all
        return self.far and len(self.queues) <= 100

    def handlers(self) -> dict[str, Act]:
        """Return the handlers of notifications by word.

        Each handler is called with the time in the notification.
        """
        acts: dict[str, Act] = {CLUSTER: self.start_over}
        for queue in self.queues:
            acts[queue] = partial(self._on_tasks, queue, None)
            for lane in LANES:
                acts[f"{lane} {queue}"] = partial(self._on_tasks, queue, lane)
            acts[f"behind {queue}"] = partial(self.lower, queue)

        return acts

    def _on_tasks(self, queue: str, lane: str | None, moment: float) -> None:
        self.lower(queue, moment)
        self.notify([queue], lane)

    def start_over(self, _moment: float = 0.0) -> None:
        """Scan all queues from the start.

        The limits of the cluster have changed, or notifications may have been missed.
        """
        self.forget()
        self.notify(self.queues, None)

    def lower(self, queue: str, moment: float) -> None:
        """Lower the cursors of a queue, so that the next pass scans tasks due since ``moment``.

        ``moment`` is an epoch in seconds; 0 or less means any time.
        """
        for (name, _lane), known in self.waiting.items():
            if name == queue:
                for priority, since in known.items():
                    known[priority] = (
                        ANYWHERE if since is None or moment <= 0 else min(since, moment)
                    )

    def forget(self) -> None:
        """Reset the cursors, so that the next pass scans everything.

        The known priorities are kept and get new cursors.
        """
        self.held.clear()
        for known in self.waiting.values():
            known.update(dict.fromkeys(known, ANYWHERE))

    def text(self, now: float) -> str | None:
        """Return the cursors as JSON for the pass, or None if cursors are not worthwhile.

        With None, the pass scans everything and returns no new cursors.
        """
        self.forgetful = now >= self.forget_at or not self.worthwhile
        if self.forgetful:
            self.forget()
        if not self.worthwhile:
            return None

        cursors: dict[str, dict[str, Any]] = {queue: {} for queue in self.queues}
        for queue, moments in self.held.items():
            cursors[queue]["held"] = moments
        for (queue, lane), known in self.waiting.items():
            cursors[queue][lane] = ranges(known)

        return json.dumps(cursors)

    def learn(self, passed: Passed, began: float, took: float, *, scanned: bool = True) -> None:
        """Store the first tasks that a pass found, by priority, as the next cursors.

        There are no tasks between these priorities. A pass without wanted tasks has not
        ``scanned``, so its result does not show how much a scan reads. ``took`` is the duration of
        the pass in seconds.
        """
        if self.forgetful and scanned:
            self.far = passed.far
            self.forget_at = began + spacing(self.every, took)

        self.held.update(passed.held)
        for found in passed.firsts:
            for queue, lanes in found.items():
                for lane, firsts in lanes.items():
                    self._learn_lane(self.waiting.setdefault((queue, lane), {}), firsts, passed.now)

    def _learn_lane(
        self, known: dict[int, float | None], firsts: dict[str, Any], now: float
    ) -> None:
        ended = firsts.pop("end", False)
        latest = now - LAG_SECONDS
        found = {int(priority): min(float(since), latest) for priority, since in firsts.items()}
        last = HIGHEST if ended else max(found)

        known.update(
            {priority: latest for priority in known if priority <= last and priority not in found}
        )

        for priority, since in found.items():
            known.pop(priority, None)  # so that the priorities found last come last
            known[priority] = since

        for priority in list(known)[:-PRIORITIES]:
            del known[priority]


def spacing(every: float, took: float) -> float:
    """Return how long to wait, in seconds, before an action that ``took`` so long is repeated.

    That is ``every``, or longer if the action takes more than its share of the time.
    """
    return max(every, min(SPACING_FACTOR * took, LONGEST_SPACING_SECONDS))


def ranges(known: dict[int, float | None]) -> list[dict[str, Any]]:
    """Return the ranges to scan, in order of priority.

    Known priorities are scanned from their cursors, and the ranges between them from the start.
    """
    found: list[dict[str, Any]] = []
    low = 1

    for priority in sorted(known):
        if low < priority:
            found.append({"low": low, "high": priority - 1})
        found.append({"low": priority, "high": priority, "since": known[priority]})
        low = priority + 1

    return [*found, {"low": low, "high": HIGHEST}]
