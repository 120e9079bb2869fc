"""The end of tasks at their timeout, after a cancel, or if their process was stopped.

A task first gets a request to stop, so that it can clean up. If it is still running after the grace
period, its process is killed, and the other tasks in that process count as crashed. Deadlines are
kept in a heap. Entries of tasks that ended remain in it, so it is cleaned when it may contain twice
as many entries as there are tasks.

A child that is stopped (by SIGSTOP or a debugger) is killed here, too. The parent sends its
heartbeats, so no other worker would rescue its tasks. Tasks that run for very long are logged.
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
from horsies_django.core.texts import printable_name
from horsies_django.worker.child.interrupts import CANCEL, TIMEOUT
from horsies_django.worker.limits.memory import PROCESS_ERRORS
from horsies_django.worker.logs.task_log import about, task_label
from horsies_django.worker.pool.process import Child, PoolProcess

logger = logging.getLogger("horsies.worker")


class TimeLimits(NamedTuple):
    """The time limits of tasks and children, in seconds.

    ``default`` is the timeout of tasks without one of their own; None means no limit. ``grace`` is
    the time between the request to stop and the kill of the process. A child that is not ready
    after ``ready`` seconds is killed.
    """

    default: float | None = None
    grace: float = 5.0
    ready: float = 60.0

    def timeout(self, options: str | None) -> float | None:
        if options is not None and (found := read_options(options).timeout_ms) is not None:
            return found / 1000
        return self.default


NO_LIMITS = TimeLimits()


class RunningPlace(NamedTuple):
    """The place where a task runs: the process, its lane, and the number of the task there."""

    process: PoolProcess
    lane: str
    number: int

    @property
    def occupied(self) -> bool:
        """True if the task still runs there; a process that has ended holds no tasks."""
        return self.number in self.process.held[self.lane]


class Timeouts:
    """The deadlines of the tasks of a pool; ``members`` is the pool's own list of its processes."""

    def __init__(self, members: Sequence[PoolProcess], limits: TimeLimits) -> None:
        self.members = members
        self.limits = limits
        self.heap: list[tuple[float, int, RunningPlace, str, bool]] = []
        self.order = itertools.count()
        self.clean_above = 0

    def add(self, at: float, place: RunningPlace, reason: str, *, kill: bool) -> None:
        """Add a deadline at ``at``, by the monotonic clock.

        At the deadline the task gets a request to stop, or with ``kill`` its process is killed.
        """
        heapq.heappush(self.heap, (at, next(self.order), place, reason, kill))
        if len(self.heap) > self.clean_above:
            self.heap = [entry for entry in self.heap if entry[2].occupied]
            heapq.heapify(self.heap)
            self.clean_above = 2 * len(self.heap)

    @property
    def next(self) -> float:
        """The earliest deadline of a task that still runs, by the monotonic clock.

        ``enforce`` is to be called then.
        """
        while self.heap and not self.heap[0][2].occupied:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else math.inf

    def watch(self, member: PoolProcess, lane: str, first: int, claims: Iterable[Claim]) -> None:
        """Add the timeouts of dispatched claims, numbered from ``first``."""
        for number, claim in enumerate(claims, first):
            if (seconds := self.limits.timeout(claim.options)) is not None:
                at = member.since[lane][number] + seconds
                self.add(at, RunningPlace(member, lane, number), TIMEOUT, kill=False)

    def enforce(self, now: float) -> None:
        """Send tasks whose timeout has passed the request to stop.

        The processes of tasks that did not stop in the grace period are killed.
        """
        while self.next <= now:
            _, _, place, reason, kill = heapq.heappop(self.heap)
            member = place.process

            if reason == TIMEOUT and member.is_ahead(place.lane, place.number):
                # the task has not begun, so its timeout begins again
                member.since[place.lane][place.number] = now
                self.watch(
                    member, place.lane, place.number, [member.held[place.lane][place.number]]
                )
            elif not kill:
                member.request_stop(reason, place.lane, place.number)
                self.add(now + self.limits.grace, place, reason, kill=True)
            else:
                self._kill(place, reason)

    def _kill(self, place: RunningPlace, reason: str) -> None:
        member = place.process
        task = member.held[place.lane][place.number]

        if isinstance(member, Child):
            logger.error(
                "%s did not end (%s); killing process %s",
                task_label(task),
                reason,
                member.pid,
                extra=about(task),
            )
            member.condemned[place.lane, place.number] = reason
            member.kill()
        else:
            logger.error(
                "%s did not end (%s), and cannot be killed: it runs in the worker's own process",
                task_label(task),
                reason,
            )

    def cancel(self, task_id: uuid.UUID, *, terminate: bool) -> None:
        """Send a task the request to stop, if it runs here.

        With ``terminate``, its process is killed if the task does not stop in the grace period.
        """
        for member in self.members:
            for lane in LANES:
                for number, claim in member.held[lane].items():
                    if claim.id != task_id:
                        continue

                    member.request_stop(CANCEL, lane, number)
                    if terminate:
                        place = RunningPlace(member, lane, number)
                        self.add(time.monotonic() + self.limits.grace, place, CANCEL, kill=True)
                    return


class StuckWatch:
    """The check for stopped children and for tasks that run for very long.

    A child is killed when it has been stopped for more than ``stopped_seconds``. A task is logged
    when it has been running for more than ``long_seconds``, or never if that is None.
    """

    def __init__(self, stopped_seconds: float, long_seconds: float | None) -> None:
        self.stopped_seconds = stopped_seconds
        self.long_seconds = long_seconds
        self.stopped_since: dict[uuid.UUID, float] = {}
        self.reported: set[uuid.UUID] = set()

    def check(self, members: Iterable[PoolProcess], now: float) -> None:
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
        """Log each running task that was dispatched before ``before``, once per task."""
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
                                "cancel it with terminate if it hangs",
                                claim.id,
                                printable_name(claim.task_name),
                                self.long_seconds,
                                member.pid,
                            )

        self.reported = old


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal or a debugger."""
    try:
        return bool(
            psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        )
    except PROCESS_ERRORS:
        return False
