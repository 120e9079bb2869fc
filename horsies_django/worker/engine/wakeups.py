"""Wakeups: in which queues tasks may be due, as far as this worker was told, and when to look without having been told.

A pass that finds less than there were slots has taken what there was: the lane is dry until there is news. Then the short pass
will do, if the news is of one queue only and all of it is due. When the next task becomes due only a whole pass can
tell: where that is not known, a short pass that found too little is followed by a whole one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping

from horsies_django.core.lanes import LANES
from horsies_django.core.records import Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.capacity import FIELDS
from horsies_django.worker.engine.scan_cursors import SLOW_OFTEN, WORTH_SECONDS, spacing

UNFIT_SECONDS = 5.0  # without a short pass, after one that found limits
LONG_SECONDS = 0.03  # that only a scan takes, and not a busy machine


class Wakeups:
    """What is known of the ``queues`` that a worker serves; all of them are looked at every ``poll_seconds`` anyway."""

    def __init__(self, queues: Iterable[str], poll_seconds: float) -> None:
        self.queues = frozenset(queues)
        self.poll_seconds = poll_seconds
        self.fresh: dict[str, set[str]] = {lane: set() for lane in LANES}  # where something may be due: queues
        self.certain: set[str] = set()  # lanes of which it is known when their next task becomes due
        self.limited = False  # whether caps left tasks behind: then each settled task may make room for another
        self.poll_at = 0.0  # when to look everywhere without news, by the monotonic clock
        self.due_at = math.inf  # when a task becomes due
        self.whole_next = False  # whether the next pass is to be a whole one
        self.short_from = 0.0  # when a short pass may be tried again
        self.slow = 0  # short passes, one after the other, that took long

    def tell(self, queues: Iterable[str], lane: str | None = None) -> None:
        """Something may be due in these queues, now or later; with a ``lane`` only now, and only there."""
        for each in LANES if lane is None else [lane]:
            self.fresh[each].update(queues)
        if lane is None:
            self.certain.clear()

    def look_everywhere(self) -> None:
        """Something may be due anywhere."""
        self.tell(self.queues)
        self.poll_at = time.monotonic() + self.poll_seconds * random.uniform(0.9, 1.1)
        self.due_at = math.inf

    @property
    def lanes_with_work(self) -> set[str]:
        """The lanes that may have due tasks."""
        return {lane for lane, fresh in self.fresh.items() if fresh}

    def short_pass(self, now: float, wanted: Wanted) -> tuple[bool, str | None]:
        """Return whether a short pass will do, and from which queue it is to claim; None: from none."""
        if self.whole_next or self.limited or now < self.short_from or wanted.prefetch or wanted.batch:
            return False, None
        asked = [lane for lane, name in FIELDS.items() if getattr(wanted, name)]
        queues = set().union(*(self.fresh[lane] for lane in asked))
        if len(queues) == 1 and wanted.sync + wanted.async_ <= wanted.total:
            return True, next(iter(queues))
        return not asked, None

    def rest(self, now: float, took: float, *, fit: bool) -> None:
        """Do without short passes for a while after one that was not ``fit``, took very long, or was one of many that took long.

        Something may be in the way of its scan, tasks due in the future or dead entries, which a whole pass knows to go round.
        Where others keep the CPUs some take long as well, but a whole pass would take longer.
        """
        self.slow = self.slow + 1 if took >= WORTH_SECONDS else 0
        weary = took >= LONG_SECONDS or self.slow > SLOW_OFTEN
        self.short_from = now + ((spacing(0.0, took) if weary else 0.0) if fit else UNFIT_SECONDS)

    def learn(self, slots: Mapping[str, int], wanted: Wanted, passed: Passed, now: float) -> None:
        """Note which of the lanes that were asked for ``slots`` ran dry, and when something becomes due."""
        cut = wanted.batch or len(passed.claims) + len(passed.prefetched) >= wanted.total
        batched = cut and passed.claims
        self.whole_next = passed.short and passed.again
        for lane, asked in slots.items():
            got = sum(claim.lane == lane for claim in passed.claims)
            if not asked or passed.expired or passed.again or batched or got >= getattr(wanted, FIELDS[lane]):
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
