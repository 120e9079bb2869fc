"""Scan cursors: from where on each pass looks for tasks that wait, and counts those that run.

Each claim, and each end of a task, leaves a dead entry in an index. Vacuum takes them away, unless some transaction is open
that might still see the rows: then a scan walks over more and more of them, to the very place where the last one began to
find something. So the engine remembers that place, per queue, lane and priority, and the next scan begins there.

A task can appear behind a cursor: its sender committed late, or it was given back, is to be tried again, was rescued. Each of
these is notified with the earliest moment concerned, which lowers the cursors. So there are cursors only while notifications
arrive. The net is a pass without cursors, once per poll interval; more rarely when it takes so long that it would slow the
worker down. And there are none while a pass without them takes a few milliseconds: to make and to read them costs some, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from horsies_django.core.lanes import LANES
from horsies_django.core.queues import CLUSTER
from horsies_django.store.passes import Passed

Act = Callable[[float], None]
Tell = Callable[[Iterable[str], str | None], None]  # of queues, and of the one lane that is concerned

HIGHEST = 32_767  # above every priority
PRIORITIES = 16  # per queue and lane, those that were met last: a scan looks at each of them, and between
ANYWHERE: float | None = None
SLOW_OFTEN = 20  # so many passes in a row may take longer: they make their plans, or others keep the CPUs
SHARE = 20  # of the time, one part at most goes to what reads all that is dead
LONGEST_SECONDS = 60.0
WORTH_SECONDS = 0.003  # what a pass without cursors has to take


class ScanCursors:
    """The cursors of the ``queues`` that a worker serves; ``tell`` is called with those of which there is news."""

    def __init__(self, queues: Iterable[str], tell: Tell, poll_seconds: float) -> None:
        self.queues = list(queues)
        self.tell = tell
        self.waiting: dict[tuple[str, str], dict[int, float | None]] = {}  # queue and lane -> priority -> epoch
        self.held: dict[str, list[str]] = {}  # queue with a cap -> when its tasks in flight were claimed
        self.every = poll_seconds * 0.9  # a poll comes no sooner: so every poll is a pass without cursors
        self.forget_at = 0.0  # by the monotonic clock
        self.slow = 0  # passes without cursors, one after the other, that took long
        self.forgetful = False  # whether the pass under way is one without cursors

    @property
    def worthwhile(self) -> bool:
        """Whether there is something to gain."""
        return self.slow > SLOW_OFTEN

    def words(self) -> dict[str, Act]:
        """Return what the names in notifications do, given the moment that came along."""
        acts: dict[str, Act] = {CLUSTER: self._all_news}
        for queue in self.queues:
            acts[queue] = partial(self._news, queue, None)
            for lane in LANES:
                acts[f"{lane} {queue}"] = partial(self._news, queue, lane)
            acts[f"behind {queue}"] = partial(self.lower, queue)
        return acts

    def _news(self, queue: str, lane: str | None, moment: float) -> None:
        self.lower(queue, moment)
        self.tell([queue], lane)

    def _all_news(self, _moment: float) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Anything may have happened meanwhile."""
        self.forget()
        self.tell(self.queues, None)

    def lower(self, queue: str, moment: float) -> None:
        """Have the next pass look at what is due since ``moment``; an epoch, 0 and less is the beginning of time."""
        for (name, _lane), known in self.waiting.items():
            if name == queue:
                for priority, since in known.items():
                    known[priority] = ANYWHERE if since is None or moment <= 0 else min(since, moment)

    def forget(self) -> None:
        """Have the next pass look everywhere. Which priorities there are stays known: each gets its cursor again."""
        self.held.clear()
        for known in self.waiting.values():
            known.update(dict.fromkeys(known, ANYWHERE))

    def text(self, now: float) -> str | None:
        """Return the cursors as the pass takes them; None: it is to look everywhere, and need not tell what it came by."""
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

    def learn(self, passed: Passed, began: float, took: float) -> None:
        """Take over what a pass found: the first tasks of the priorities that it came by, and nothing in those between."""
        if self.forgetful:
            self.slow = self.slow + 1 if took >= WORTH_SECONDS else 0
            self.forget_at = began + spacing(self.every, took)
        if passed.held:
            self.held.update(json.loads(passed.held))
        for text in passed.firsts:
            for queue, lanes in json.loads(text).items():
                for lane, firsts in lanes.items():
                    self._learn_lane(self.waiting.setdefault((queue, lane), {}), firsts, passed.now)

    def _learn_lane(self, known: dict[int, float | None], firsts: dict[str, Any], now: float) -> None:
        ended = firsts.pop("end", False)
        found = {int(priority): float(since) for priority, since in firsts.items()}
        last = HIGHEST if ended else max(found)
        known.update({priority: now for priority in known if priority <= last and priority not in found})
        for priority, since in found.items():
            known.pop(priority, None)  # so that those met last are the last
            known[priority] = since
        for priority in list(known)[:-PRIORITIES]:
            del known[priority]


def spacing(every: float, took: float) -> float:
    """Return after how many seconds to do again what ``took`` so many: ``every`` so often, or less often if that is too much."""
    return max(every, min(SHARE * took, LONGEST_SECONDS))


def ranges(known: dict[int, float | None]) -> list[dict[str, Any]]:
    """Return the ranges to look at, in the order of priorities: each from its cursor on, those between from the start."""
    found: list[dict[str, Any]] = []
    low = 1
    for priority in sorted(known):
        if low < priority:
            found.append({"low": low, "high": priority - 1})
        found.append({"low": priority, "high": priority, "since": known[priority]})
        low = priority + 1
    return [*found, {"low": low, "high": HIGHEST}]
