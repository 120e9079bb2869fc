"""Kills children that were stopped, and reports tasks that run for very long.

Nothing else would notice a stopped child (SIGSTOP, a debugger): the parent sends its heartbeats, so its tasks are not recovered.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

import psutil

from horsies_django.core.queues import LANES
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.process.logs import shown_name

logger = logging.getLogger("horsies.worker")


class StuckWatch:
    """``stopped_seconds``: how long a child may be stopped. ``long_seconds``: the age at which a task is reported, or None."""

    def __init__(self, stopped_seconds: float, long_seconds: float | None) -> None:
        self.stopped_seconds = stopped_seconds
        self.long_seconds = long_seconds
        self.stopped_since: dict[uuid.UUID, float] = {}
        self.reported: set[uuid.UUID] = set()

    def look(self, members: Iterable[PoolProcess], now: float) -> None:
        """Check all processes of the pool; ``now`` is by the monotonic clock."""
        members = list(members)
        stopped = {member.id: member for member in members if isinstance(member, Child) and is_stopped(member.pid)}
        self.stopped_since = {id_: self.stopped_since.get(id_, now) for id_ in stopped}
        for id_, since in self.stopped_since.items():
            if now - since > self.stopped_seconds:
                logger.error("child %s has been stopped for %.0f s; killing it", stopped[id_].pid, now - since)
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
                                claim.id, shown_name(claim.task_name), self.long_seconds, member.pid,
                            )  # fmt: skip
        self.reported = old


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except psutil.Error:
        return False
