"""The starts of children: until when each has to be ready, and when those that are missing are
started.

A child may fail to start: the system has no room for a process or a descriptor, or code of the
project hangs or fails before the first task (an import, a factory of middleware, a receiver of
``child_started``). While the worker starts, that is an error of the start. Afterwards it is logged
and tried again, and the other children work.

A child that is replaced after some tasks ends when its successor is ready. If that takes too long,
the child goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from horsies_django.worker.pool.process import PoolProcess

RETRY_SECONDS = 1.0
MOST_RETRY_SECONDS = 10.0  # of children that end before their first task, again and again
LATE_SECONDS = 5.0  # a child that is not ready by then holds no other one up


class Starts:
    """``ready_seconds``: how long a child may take to become ready.

    Times are by the monotonic clock.
    """

    def __init__(self, ready_seconds: float) -> None:
        self.ready_seconds = ready_seconds
        self.deadlines: dict[PoolProcess, float] = {}  # of the processes that are not ready yet
        # children that end when a successor is ready, and since when
        self.leaving: dict[PoolProcess, float] = {}
        self.retry_at = math.inf  # when to start missing children: after a failure
        self.failed = 0  # children in a row that ended before their first task

    @property
    def next_at(self) -> float:
        """When a deadline is over, or missing children are started."""
        if not self.deadlines and not self.leaving:
            return self.retry_at
        late_at = min(self.leaving.values(), default=math.inf) + LATE_SECONDS
        return min(self.retry_at, late_at, min(self.deadlines.values(), default=math.inf))

    def begin(self, member: PoolProcess, now: float) -> None:
        """Record that a process was started."""
        self.deadlines[member] = now + self.ready_seconds

    def ready(self, member: PoolProcess) -> None:
        """Record that a process is ready."""
        self.deadlines.pop(member, None)
        self.failed = 0

    def forget(self, member: PoolProcess) -> None:
        """Record that a process ended."""
        self.deadlines.pop(member, None)
        self.leaving.pop(member, None)

    def postpone(self, seconds: float, now: float) -> None:
        """Start missing children in some seconds, unless that moment is set already."""
        if self.retry_at == math.inf:
            self.retry_at = now + seconds

    def fail(self, now: float) -> None:
        """Record that a child ended before its first task.

        The next one is started later and later.
        """
        self.failed += 1
        self.postpone(min(RETRY_SECONDS * 2 ** (self.failed - 1), MOST_RETRY_SECONDS), now)

    def late(self, now: float) -> bool:
        """Whether a child cannot be started, or takes long to become ready."""
        if not self.deadlines:
            return self.retry_at != math.inf
        slow = any(
            now - (deadline - self.ready_seconds) > LATE_SECONDS
            for deadline in self.deadlines.values()
        )
        return slow or self.retry_at != math.inf

    def take_stalled(self, now: float) -> list[PoolProcess]:
        """Return the processes that had to be ready by now, each of them once."""
        stalled = [member for member, deadline in self.deadlines.items() if deadline <= now]
        self.deadlines.update(dict.fromkeys(stalled, math.inf))
        return stalled

    def take_relieved(self, missing: int) -> list[PoolProcess]:
        """Return the children that may end now: no more of them wait than children are to come."""
        coming = len(self.deadlines) + max(missing, 0)
        return self._take(list(self.leaving)[: max(len(self.leaving) - coming, 0)])

    def take_waiting(self, now: float) -> list[PoolProcess]:
        """Return the children that have waited too long for a successor."""
        return self._take(
            [member for member, since in self.leaving.items() if since + LATE_SECONDS <= now]
        )

    def _take(self, members: Iterable[PoolProcess]) -> list[PoolProcess]:
        found = list(members)
        for member in found:
            del self.leaving[member]
        return found
