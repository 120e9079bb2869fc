"""The pass delay: whether the next pass waits a moment, so that one round trip serves several tasks.

A pass for one task takes nearly as long as one for four. Short tasks that began together end together, and if many are sent the
next one comes soon. So while tasks run, a pass does not follow the last one at once. With long tasks this gains nothing: a delay
is only used while delays paid off recently, and tried again now and then.
"""

from __future__ import annotations

SHARE = 2.0  # the longest delay, as a multiple of the duration of the last pass
LONGEST_SECONDS = 0.002
ENOUGH = 20  # outcomes: a pass that settles so many is not delayed
WORTH = 0.3
WEIGHT = 0.1
TRY_EVERY = 200


class PassDelay:
    """Learns from each delay whether anything arrived in it."""

    def __init__(self) -> None:
        self.yield_ = 1.0  # how often delays paid off recently, from 0 to 1
        self.declined = 0
        self.until = 0.0  # until when the next pass may be delayed, by the monotonic clock
        self.turns = 0  # of the engine's loop in which the next pass was delayed

    @property
    def waiting(self) -> bool:
        """Whether a pass is delayed until ``until``."""
        return self.turns > 0

    def puts_off(self, now: float, outcomes: int, *, running: bool) -> bool:
        """Return whether a pass that could begin ``now``, with so many outcomes, is delayed; only while tasks run."""
        if now >= self.until or outcomes >= ENOUGH or not running:
            return False
        self.turns += 1
        return True

    def passed(self, began: float, ended: float) -> None:
        """Learn from the delay before this pass, and set how long the next one may be delayed."""
        if self.turns:
            paid_off = self.turns > 1 or began < self.until
            self.yield_ += WEIGHT * (paid_off - self.yield_)
        self.turns = 0
        self.until = ended + min(SHARE * (ended - began), LONGEST_SECONDS) if self._worthwhile() else 0.0

    def _worthwhile(self) -> bool:
        if self.yield_ >= WORTH:
            return True
        self.declined += 1
        return self.declined % TRY_EVERY == 0
