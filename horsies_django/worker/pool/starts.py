"""The starts of children: when each has to be ready, and when missing children are started.

A child may fail to start: the system has no room for a process or a descriptor, or code of the
project hangs or fails before the first task (an import, a factory of middleware, a receiver of
``child_started``). While the worker starts, the worker ends with an error. Afterwards the failure
is logged, the start is tried again, and the other children continue to work.

A child that is replaced after some tasks ends when its successor is ready. If that takes too long,
the child goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from horsies_django.worker.pool.process import PoolProcess

RETRY_SECONDS = 1.0
# the longest wait before the next start while children end before their first task
MOST_RETRY_SECONDS = 10.0
LATE_SECONDS = 5.0  # other children do not wait longer for a child to become ready


class Starts:
    """The deadlines of children that start, and the times of further starts.

    ``ready_seconds`` is the longest time until a child is ready. Times are by the monotonic clock.
    """

    def __init__(self, ready_seconds: float) -> None:
        self.ready_seconds = ready_seconds
        self.deadlines: dict[PoolProcess, float] = {}  # of the processes that are not ready yet
        # children that end when a successor is ready -> since when they wait for it
        self.leaving: dict[PoolProcess, float] = {}
        self.retry_at = math.inf  # when to start missing children after a failure
        self.failed = 0  # how many children in a row ended before their first task

    @property
    def next_at(self) -> float:
        """The next time at which a deadline is over or missing children are started."""
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
        """Start missing children in ``seconds``, unless the time of their start is set already."""
        if self.retry_at == math.inf:
            self.retry_at = now + seconds

    def fail(self, now: float) -> None:
        """Record that a child ended before its first task.

        After each such child, the wait before the next start is twice as long.
        """
        self.failed += 1
        self.postpone(min(RETRY_SECONDS * 2 ** (self.failed - 1), MOST_RETRY_SECONDS), now)

    def late(self, now: float) -> bool:
        """Return whether a child cannot be started, or takes long to become ready."""
        if not self.deadlines:
            return self.retry_at != math.inf
        slow = any(
            now - (deadline - self.ready_seconds) > LATE_SECONDS
            for deadline in self.deadlines.values()
        )
        return slow or self.retry_at != math.inf

    def take_stalled(self, now: float) -> list[PoolProcess]:
        """Return the processes that are not ready at their deadline, each of them only once."""
        stalled = [member for member, deadline in self.deadlines.items() if deadline <= now]
        self.deadlines.update(dict.fromkeys(stalled, math.inf))
        return stalled

    def take_relieved(self, missing: int) -> list[PoolProcess]:
        """Return the children that may end now, because their successors are ready.

        As many children remain as successors are still to come. ``missing`` of these are not
        started yet.
        """
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
