"""Whether to give running tasks a moment to finish before the next pass, so that one round trip settles several.

Short tasks that were dispatched together end together, and a pass costs far more than the moment. Long tasks do not, so the
moment is taken only while it paid off lately, and tried again now and then.
"""

from __future__ import annotations

import os
import selectors
import time

MOMENT = 30  # looks at the channels, giving way to other processes before each: well below the length of a pass
WORTH = 0.3
WEIGHT = 0.1
TRY_EVERY = 50


def give_way() -> None:
    """Let other processes run, on this CPU too, without going to sleep."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)


def moment(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    """Return what happens within a moment."""
    for _ in range(MOMENT):
        give_way()
        if events := selector.select(0):
            return events
    return []


class Gathering:
    """Learns from each moment whether it brought anything."""

    def __init__(self) -> None:
        self.yield_ = 1.0  # how often a moment paid off, lately
        self.declined = 0

    def worthwhile(self) -> bool:
        """Whether to wait a moment now."""
        if self.yield_ >= WORTH:
            return True
        self.declined += 1
        return self.declined % TRY_EVERY == 0

    def learn(self, *, paid_off: bool) -> bool:
        """Note what a moment brought, and return whether it paid off."""
        self.yield_ += WEIGHT * (paid_off - self.yield_)
        return paid_off
