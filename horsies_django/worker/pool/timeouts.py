"""Timeouts and cancels of running tasks.

The task is first asked to stop, so that it can clean up. If it is still running after the grace period, its process is killed,
and the other tasks in that process count as crashed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence

from horsies_django.core.lanes import LANES
from horsies_django.core.records import Claim
from horsies_django.worker.child.interrupts import CANCEL, TIMEOUT
from horsies_django.worker.pool.deadlines import Deadlines, Place, TimeLimits
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.process.task_log import label

logger = logging.getLogger("horsies.worker")


class Timeouts:
    """Knows the deadlines of what the processes of a pool run; ``members`` is the pool's own list of them."""

    def __init__(self, members: Sequence[PoolProcess], limits: TimeLimits) -> None:
        self.members = members
        self.limits = limits
        self.deadlines = Deadlines()

    @property
    def next(self) -> float:
        """When ``enforce`` has something to do, by the monotonic clock."""
        return self.deadlines.next

    def watch(self, member: PoolProcess, lane: str, first: int, claims: Iterable[Claim]) -> None:
        """Note the timeouts of claims that were handed over, numbered from ``first``."""
        for number, claim in enumerate(claims, first):
            if (seconds := self.limits.timeout(claim.options)) is not None:
                at = member.since[lane][number] + seconds
                self.deadlines.add(at, Place(member, lane, number), TIMEOUT, kill=False)

    def enforce(self, now: float) -> None:
        """Tell tasks whose time is over to end, and kill the processes of those that were told and did not."""
        for place, reason, kill in self.deadlines.due(now):
            member = place.process
            if reason == TIMEOUT and member.stands(place.lane, place.number):
                member.since[place.lane][place.number] = now  # its time is not running yet
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
        """Tell a task, if it runs here, that it was cancelled; ``terminate`` kills its process if it does not end in time."""
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
