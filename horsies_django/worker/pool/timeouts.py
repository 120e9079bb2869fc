"""Ends tasks at their timeout, after a cancel, or if their process was stopped; reports those that
run for very long.

A task is first asked to stop, so that it can clean up. If it is still running after the grace
period, its process is killed, and the other tasks in that process count as crashed. Deadlines are
kept in a heap. Entries of tasks that ended remain in it, so it is cleaned when it may contain twice
as many entries as there are tasks.

Nothing else would notice a stopped child (SIGSTOP, a debugger): the parent sends its heartbeats, so
its tasks are not recovered.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import psutil

from horsies_django.core.options import read_options
from horsies_django.core.queues import LANES
from horsies_django.core.records import Claim
from horsies_django.worker.child.interrupts import CANCEL, TIMEOUT
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.process.logs import shown_name
from horsies_django.worker.process.memory import UNREADABLE
from horsies_django.worker.process.task_log import about, label

logger = logging.getLogger("horsies.worker")


class TimeLimits(NamedTuple):
    """The default timeout of tasks in seconds (None: no limit), and the grace in seconds before the
    process is killed.

    ``ready``: after how many seconds a child is killed that is not ready.
    """

    default: float | None = None
    grace: float = 5.0
    ready: float = 60.0

    def timeout(self, options: str | None) -> float | None:
        if options is not None and (found := read_options(options).timeout_ms) is not None:
            return found / 1000
        return self.default


NO_LIMITS = TimeLimits()


class Place(NamedTuple):
    """Where a task runs: the process, its lane, the task's number there."""

    process: PoolProcess
    lane: str
    number: int

    @property
    def occupied(self) -> bool:
        """Whether the task still runs there; a process that ended holds nothing."""
        return self.number in self.process.held[self.lane]


class Timeouts:
    """The deadlines of the tasks of a pool; ``members`` is the pool's own list of its processes."""

    def __init__(self, members: Sequence[PoolProcess], limits: TimeLimits) -> None:
        self.members = members
        self.limits = limits
        self.heap: list[tuple[float, int, Place, str, bool]] = []
        self.order = itertools.count()
        self.clean_above = 0

    def add(self, at: float, place: Place, reason: str, *, kill: bool) -> None:
        """Add a deadline at ``at`` by the monotonic clock; ``kill``: kill the process instead of
        asking the task to stop.
        """
        heapq.heappush(self.heap, (at, next(self.order), place, reason, kill))
        if len(self.heap) > self.clean_above:
            self.heap = [entry for entry in self.heap if entry[2].occupied]
            heapq.heapify(self.heap)
            self.clean_above = 2 * len(self.heap)

    @property
    def next(self) -> float:
        """When ``enforce`` is to be called next, by the monotonic clock: at the earliest deadline
        of a task that still runs.
        """
        while self.heap and not self.heap[0][2].occupied:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else math.inf

    def watch(self, member: PoolProcess, lane: str, first: int, claims: Iterable[Claim]) -> None:
        """Add the timeouts of dispatched claims, numbered from ``first``."""
        for number, claim in enumerate(claims, first):
            if (seconds := self.limits.timeout(claim.options)) is not None:
                at = member.since[lane][number] + seconds
                self.add(at, Place(member, lane, number), TIMEOUT, kill=False)

    def enforce(self, now: float) -> None:
        """Ask tasks whose timeout has passed to stop; kill the processes of those that did not stop
        in the grace period.
        """
        while self.next <= now:
            _, _, place, reason, kill = heapq.heappop(self.heap)
            member = place.process

            if reason == TIMEOUT and member.is_ahead(place.lane, place.number):
                # it has not begun: restart its timeout
                member.since[place.lane][place.number] = now
                self.watch(
                    member, place.lane, place.number, [member.held[place.lane][place.number]]
                )
            elif not kill:
                member.tell(reason, place.lane, place.number)
                self.add(now + self.limits.grace, place, reason, kill=True)
            else:
                self._kill(place, reason)

    def _kill(self, place: Place, reason: str) -> None:
        member = place.process
        task = member.held[place.lane][place.number]

        if isinstance(member, Child):
            logger.error(
                "%s did not end (%s); killing process %s",
                label(task),
                reason,
                member.pid,
                extra=about(task),
            )
            member.condemned[place.lane, place.number] = reason
            member.kill()
        else:
            logger.error(
                "%s did not end (%s), and cannot be killed: it runs in the worker's own process",
                label(task),
                reason,
            )

    def cancel(self, task_id: uuid.UUID, *, terminate: bool) -> None:
        """Ask a task to stop if it runs here; with ``terminate``, its process is killed if it does
        not stop in time.
        """
        for member in self.members:
            for lane in LANES:
                for number, claim in member.held[lane].items():
                    if claim.id != task_id:
                        continue

                    member.tell(CANCEL, lane, number)
                    if terminate:
                        place = Place(member, lane, number)
                        self.add(time.monotonic() + self.limits.grace, place, CANCEL, kill=True)
                    return


class StuckWatch:
    """``stopped_seconds``: how long a child may be stopped.

    ``long_seconds``: the age at which a task is reported, or None.
    """

    def __init__(self, stopped_seconds: float, long_seconds: float | None) -> None:
        self.stopped_seconds = stopped_seconds
        self.long_seconds = long_seconds
        self.stopped_since: dict[uuid.UUID, float] = {}
        self.reported: set[uuid.UUID] = set()

    def look(self, members: Iterable[PoolProcess], now: float) -> None:
        """Check all processes of the pool; ``now`` is by the monotonic clock."""
        members = list(members)
        stopped = {
            member.id: member
            for member in members
            if isinstance(member, Child) and is_stopped(member.pid)
        }
        self.stopped_since = {id_: self.stopped_since.get(id_, now) for id_ in stopped}

        for id_, since in self.stopped_since.items():
            if now - since > self.stopped_seconds:
                logger.error(
                    "child %s has been stopped for %.0f s; killing it",
                    stopped[id_].pid,
                    now - since,
                )
                stopped[id_].kill()

        if self.long_seconds is not None:
            self.report(members, now - self.long_seconds)

    def report(self, members: Iterable[PoolProcess], before: float) -> None:
        """Log each running task once that was dispatched before ``before``."""
        old = set()
        for member in members:
            for lane in LANES:
                for number, since in member.since[lane].copy().items():  # in the order of dispatch
                    if since > before:
                        break

                    if claim := member.held[lane].get(number):
                        old.add(claim.id)
                        if claim.id not in self.reported:
                            logger.warning(
                                "task %s (%s) has been running for more than %.0f s in process %s; "
                                "if it hangs, cancel it with terminate",
                                claim.id,
                                shown_name(claim.task_name),
                                self.long_seconds,
                                member.pid,
                            )

        self.reported = old


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    try:
        return bool(
            psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        )
    except UNREADABLE:
        return False
