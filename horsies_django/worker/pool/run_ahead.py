"""Run-ahead in soft mode: sync tasks are started ahead and stand in line, so that short ones need no round trip each.

A slot that takes a task, runs it for thirty microseconds and then waits a millisecond for the next is idle most of the time. So
a worker that may take tasks ahead hands a child more of them than it has threads, RUNNING already. How many is learned: no
more than would be done within ``STANDING_SECONDS`` if all were like those that ran lately, so tasks that take longer than that
never stand in line, and what a dying worker takes along stays within a few milliseconds of work.

Three things bound the harm. A line that does not move for ``STUCK_SECONDS`` is called back, and what stood there goes to
whoever has a slot. A cap that leaves tasks behind ends all lines, because who stands there holds a permit. And when only the
child dies, what stood in line goes back, as it never began.
"""

from __future__ import annotations

STANDING_SECONDS = 0.01
STUCK_SECONDS = 0.05
MOST = 256  # per slot
WEIGHT = 0.02  # of one task in the average


class RunAhead:
    """Learns how many tasks may stand before each slot; ``prefetch`` bounds all of them together, 0 allows none."""

    def __init__(self, prefetch: int = 0, slots: int = 1) -> None:
        self.most = min(MOST, prefetch // slots)
        self.limited = False  # whether a cap left tasks behind
        self.average: float | None = None  # seconds that a task runs, lately

    def learn(self, seconds: float) -> None:
        """Note how long a task ran."""
        before = seconds if self.average is None else self.average
        self.average = before + WEIGHT * (seconds - before)

    @property
    def depth(self) -> int:
        """How many tasks may stand before each slot now."""
        if not self.most or self.limited or self.average is None:
            return 0
        return min(self.most, int(STANDING_SECONDS / max(self.average, 1e-6)))
