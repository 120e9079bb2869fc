"""Decides which sends notify workers: all, except sends in a burst that directly follow one that did.

PostgreSQL serializes the commits of transactions that NOTIFY, which prevents group commit for all senders. In a burst (sends from
one process to one lane of a queue, each in a transaction of its own) most notifications would wake no further worker. So after
some sends in quick succession, those that begin within QUIET_SECONDS after a notifying one began do not notify. A send inside a
transaction always notifies, because the time of its commit is unknown. So does a task with a due time, for which workers wait
differently.

The task of a quiet send is always found: the elected workers look again after a notification, and a quiet send that returns later
than LOOK_SECONDS after the notifying one began notifies after all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

BURST_SECONDS = 0.01  # between the beginnings of two notifying sends of a burst
BURST = 8  # notifying sends of a burst, until others are quiet
QUIET_SECONDS = 0.005
LOOK_SECONDS = 0.04  # less than each of worker.engine.wakeups.LATER_SECONDS


class Notified(NamedTuple):
    """The last notifying send to a lane of a queue: when it ``began`` (monotonic clock), its table, how many in a row."""

    began: float
    table: int
    row: int


class Turn(NamedTuple):
    """A send to a lane of a queue that has begun.

    ``told``: the OID of the table whose workers were already notified (a quiet send), else None. ``since``: when the notifying
    send began.
    """

    queue: str
    lane: str
    began: float
    told: int | None
    since: float = 0.0


class NotifyThrottle:
    """The notifying sends of this process. Threads share them; entries are replaced as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last: dict[tuple[str, str], Notified] = {}

    def begin(self, queue: str, lane: str) -> Turn:
        """Begin a send to ``lane`` of ``queue`` in a transaction of its own; return whether it is quiet."""
        now, last = self.clock(), self.last.get((queue, lane))
        if last is None or last.row < BURST or now - last.began >= QUIET_SECONDS:
            return Turn(queue, lane, now, None)
        return Turn(queue, lane, now, last.table, last.began)

    def end(self, turn: Turn, table: int) -> bool:
        """Record that the send has committed, into ``table``. Return whether it must notify after all."""
        if turn.told == table:
            return self.clock() - turn.since > LOOK_SECONDS
        last = self.last.get((turn.queue, turn.lane))
        row = last.row + 1 if last and last.table == table and turn.began - last.began < BURST_SECONDS else 1
        self.last[turn.queue, turn.lane] = Notified(turn.began, table, row)
        return False


throttle = NotifyThrottle()
