"""Decides which sends notify workers: all, except sends in a burst that directly follow one that
did.

PostgreSQL serializes the commits of transactions that NOTIFY, which prevents group commit for all
senders. In a burst (sends from one process to one lane of a queue, each in a transaction of its
own) most notifications would wake no further worker. So after some sends in quick succession, those
that begin within QUIET_SECONDS after a notifying one do not notify. A send inside a transaction
always notifies, because the time of its commit is unknown. So does a task with a due time, for
which workers wait differently.

The task of a quiet send is always found: the elected workers look again after a notification, and a
quiet send that returns later than LOOK_SECONDS after the notifying one began notifies after all.
That is rare: behind a notifying send that took SLOW_SECONDS no send is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

BURST = 8  # notifying sends of a burst, until others are quiet
BURST_SECONDS = 0.015  # the longest pause between two of them
QUIET_SECONDS = 0.005  # after a notifying send
SLOW_SECONDS = 0.01
LOOK_SECONDS = 0.04  # less than each of "burst" in worker.engine.wakeups.AFTER


class Notified(NamedTuple):
    """The last notifying send to a lane of a queue, by the monotonic clock; its table, and how many
    sends in a row notified.
    """

    began: float
    ended: float
    table: int
    row: int


class Turn(NamedTuple):
    """A send to a lane of a queue that has begun.

    ``notified``: the OID of the table whose workers know already (a quiet send), else None.
    ``since``: when the notifying send began.
    """

    queue: str
    lane: str
    began: float
    notified: int | None
    since: float = 0.0


class NotifyThrottle:
    """The notifying sends of this process. Threads share them; entries are replaced as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last: dict[tuple[str, str], Notified] = {}

    def begin(self, queue: str, lane: str) -> Turn:
        """Begin a send to ``lane`` of ``queue`` in a transaction of its own; return whether it is
        quiet.
        """
        now = self.clock()
        last = self.last.get((queue, lane))
        if (
            last
            and last.row >= BURST
            and last.ended - last.began < SLOW_SECONDS
            and now - last.ended < QUIET_SECONDS
        ):
            return Turn(queue, lane, now, last.table, last.began)
        return Turn(queue, lane, now, None)

    def end(self, turn: Turn, table: int) -> bool:
        """Record that the send has committed, into ``table``.

        Return whether it must notify after all.
        """
        now = self.clock()
        if turn.notified == table:
            return now - turn.since > LOOK_SECONDS

        last = self.last.get((turn.queue, turn.lane))
        row = 1
        if last and last.table == table and turn.began - last.ended < BURST_SECONDS:
            row += last.row

        self.last[turn.queue, turn.lane] = Notified(turn.began, now, table, row)
        return False


throttle = NotifyThrottle()
