"""Wakeups: which queues may have due tasks, according to notifications, and when to scan without one.

A pass that finds fewer tasks than slots has taken all due tasks: the lane has no work until a wakeup. A short pass is enough if
the wakeup is for one queue and all of its tasks are due. Only a whole pass returns when the next task becomes due: if that is not
known, a whole pass follows a short pass that found too few tasks.
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

UNFIT_SECONDS = 5.0  # without short passes, after one that found limits
LONG_SECONDS = 0.03  # only a long scan takes this long, not a busy machine


class Wakeups:
    """The wakeups of the ``queues`` that a worker serves; all are scanned every ``poll_seconds`` in any case."""

    def __init__(self, queues: Iterable[str], poll_seconds: float) -> None:
        self.queues = frozenset(queues)
        self.poll_seconds = poll_seconds
        self.fresh: dict[str, set[str]] = {lane: set() for lane in LANES}  # the queues that may have due tasks
        self.certain: set[str] = set()  # lanes whose next due time is known
        self.limited = False  # whether caps left tasks behind: then each settled task may free a permit
        self.poll_at = 0.0  # when to scan everything without a wakeup, by the monotonic clock
        self.due_at = math.inf  # when the next task becomes due
        self.whole_next = False  # whether the next pass must be a whole one
        self.short_from = 0.0  # no short pass before this time
        self.slow = 0  # slow short passes in a row

    def tell(self, queues: Iterable[str], lane: str | None = None) -> None:
        """These queues have new tasks, due now or later; with a ``lane`` they are all due, and in that lane."""
        for each in LANES if lane is None else [lane]:
            self.fresh[each].update(queues)
        if lane is None:
            self.certain.clear()

    def look_everywhere(self) -> None:
        """Any queue may have due tasks."""
        self.tell(self.queues)
        self.poll_at = time.monotonic() + self.poll_seconds * random.uniform(0.9, 1.1)
        self.due_at = math.inf

    @property
    def lanes_with_work(self) -> set[str]:
        """The lanes that may have due tasks."""
        return {lane for lane, fresh in self.fresh.items() if fresh}

    def short_pass(self, now: float, wanted: Wanted) -> tuple[bool, str | None]:
        """Return whether a short pass is enough, and the queue to claim from (None: claim nothing)."""
        if self.whole_next or self.limited or now < self.short_from or wanted.prefetch or wanted.batch:
            return False, None
        asked = [lane for lane, name in FIELDS.items() if getattr(wanted, name)]
        queues = set().union(*(self.fresh[lane] for lane in asked))
        if len(queues) == 1 and wanted.sync + wanted.async_ <= wanted.total:
            return True, next(iter(queues))
        return not asked, None

    def note_short_pass(self, now: float, took: float, *, fit: bool, scanned: bool) -> None:
        """Avoid short passes for a while after one that was not ``fit``, was very slow, or was one of many slow ones.

        Its scan may walk over future tasks or dead entries, which a whole pass skips. On a busy machine single passes are slow,
        too, but whole ones would be slower. How long a pass takes says nothing of scans if it did not scan.
        """
        if scanned:
            self.slow = self.slow + 1 if took >= WORTH_SECONDS else 0
        too_slow = took >= LONG_SECONDS or self.slow > SLOW_OFTEN
        self.short_from = now + ((spacing(0.0, took) if too_slow else 0.0) if fit else UNFIT_SECONDS)

    def learn(self, slots: Mapping[str, int], wanted: Wanted, passed: Passed, now: float) -> None:
        """Record which lanes with free ``slots`` have no more work, and when the next task becomes due."""
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
