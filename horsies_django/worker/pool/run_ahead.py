"""The run-ahead in soft mode: sync tasks dispatched ahead of a free slot, so that short tasks need no round trip each.

A slot that runs a task for thirty microseconds and then waits a millisecond for the next one is idle most of the time. So a
worker with a prefetch buffer dispatches more tasks to a child than it has threads; they are RUNNING already. Their number
follows from the average duration of recent tasks: they should finish within ``STANDING_SECONDS``. So longer tasks are never
dispatched ahead, and a worker that dies loses only a few milliseconds of work.

Three rules limit the disadvantages. A run-ahead that does not move for ``STUCK_SECONDS`` is called back, and its tasks go to
any free slot. If a cap leaves tasks waiting, no task is dispatched ahead, because each of them holds a permit. If only the
child dies, the tasks of its run-ahead are returned, because they have not begun.
"""

from __future__ import annotations

STANDING_SECONDS = 0.01
STUCK_SECONDS = 0.05
MOST = 256  # tasks per slot
WEIGHT = 0.02  # of one task in the moving average


class RunAhead:
    """Decides how many tasks may be dispatched ahead per slot; ``prefetch`` limits their total, 0 allows none."""

    def __init__(self, prefetch: int = 0, slots: int = 1) -> None:
        self.most = min(MOST, prefetch // slots)
        self.limited = False  # whether a cap left tasks waiting
        self.average: float | None = None  # seconds that recent tasks ran

    def learn(self, seconds: float) -> None:
        """Record how long a task ran, in seconds."""
        before = seconds if self.average is None else self.average
        self.average = before + WEIGHT * (seconds - before)

    @property
    def depth(self) -> int:
        """How many tasks may be dispatched ahead per slot now."""
        if not self.most or self.limited or self.average is None:
            return 0
        return min(self.most, int(STANDING_SECONDS / max(self.average, 1e-6)))
