"""Timeouts and cancels of running tasks.

The task is first asked to stop, so that it can clean up. If it is still running after the grace period, its process is killed,
and the other tasks in that process count as crashed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence

from horsies_django.core.queues import LANES
from horsies_django.core.records import Claim
from horsies_django.worker.child.interrupts import CANCEL, TIMEOUT
from horsies_django.worker.pool.deadlines import Deadlines, Place, TimeLimits
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.process.task_log import label

logger = logging.getLogger("horsies.worker")


class Timeouts:
    """The deadlines of the tasks of a pool; ``members`` is the pool's own list of its processes."""

    def __init__(self, members: Sequence[PoolProcess], limits: TimeLimits) -> None:
        self.members = members
        self.limits = limits
        self.deadlines = Deadlines()

    @property
    def next(self) -> float:
        """When ``enforce`` is to be called next, by the monotonic clock."""
        return self.deadlines.next

    def watch(self, member: PoolProcess, lane: str, first: int, claims: Iterable[Claim]) -> None:
        """Add the timeouts of dispatched claims, numbered from ``first``."""
        for number, claim in enumerate(claims, first):
            if (seconds := self.limits.timeout(claim.options)) is not None:
                at = member.since[lane][number] + seconds
                self.deadlines.add(at, Place(member, lane, number), TIMEOUT, kill=False)

    def enforce(self, now: float) -> None:
        """Ask tasks whose timeout has passed to stop; kill the processes of those that did not stop in the grace period."""
        for place, reason, kill in self.deadlines.due(now):
            member = place.process
            if reason == TIMEOUT and member.stands(place.lane, place.number):
                member.since[place.lane][place.number] = now  # it has not begun: restart its timeout
                self.watch(member, place.lane, place.number, [member.held[place.lane][place.number]])
            elif not kill:
                member.tell(reason, place.lane, place.number)
                self.deadlines.add(now + self.limits.grace, place, reason, kill=True)
            else:
                self._kill(place, reason)

    def _kill(self, place: Place, reason: str) -> None:
        member = place.process
        task = member.held[place.lane][place.number]
        if isinstance(member, Child):
            logger.error("%s did not end (%s); killing process %s", label(task), reason, member.pid)
            member.condemned[place.lane, place.number] = reason
            member.kill()
        else:
            logger.error(
                "%s did not end (%s), and cannot be killed: it runs in the worker's own process", label(task), reason
            )

    def cancel(self, task_id: uuid.UUID, *, terminate: bool) -> None:
        """Ask a task to stop if it runs here; with ``terminate``, its process is killed if it does not stop in time."""
        for member in self.members:
            for lane in LANES:
                for number, claim in member.held[lane].items():
                    if claim.id != task_id:
                        continue
                    member.tell(CANCEL, lane, number)
                    if terminate:
                        place = Place(member, lane, number)
                        self.deadlines.add(time.monotonic() + self.limits.grace, place, CANCEL, kill=True)
                    return
