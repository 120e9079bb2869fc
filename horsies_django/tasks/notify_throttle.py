"""The decision which sends notify workers.

All sends notify, except quiet sends. PostgreSQL serializes the commits of transactions that NOTIFY,
which prevents group commit for all senders. A burst consists of sends from one process to one lane
of a queue, each in its own transaction. In a burst, most notifications would wake no further
worker. So after BURST sends in quick succession, a send that begins within QUIET_SECONDS after a
notifying send is quiet. A send inside a transaction always notifies, because the time of its commit
is unknown. A task with a due time also always notifies, because workers wait differently for it.

Workers always find the task of a quiet send, because the elected workers read the queue again after
a notification. A quiet send that returns later than READ_AGAIN_SECONDS after the beginning of the
notifying send notifies after all. This is rare, because no send is quiet after a notifying send
that took SLOW_SECONDS.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

BURST = 8  # the number of notifying sends of a burst, before sends are quiet
BURST_SECONDS = 0.015  # the longest pause between two sends of a burst
QUIET_SECONDS = 0.005  # how long sends are quiet after a notifying send
SLOW_SECONDS = 0.01  # the duration of a notifying send after which no send is quiet
READ_AGAIN_SECONDS = 0.04  # less than each of "burst" in worker.engine.wakeups.AFTER


class Notified(NamedTuple):
    """The last notifying send to a lane of a queue.

    ``began`` and ``ended`` are in seconds of the monotonic clock. ``table`` is the OID of the table
    into which the task was sent. ``row`` is the number of sends in quick succession that notified.
    """

    began: float
    ended: float
    table: int
    row: int


class Turn(NamedTuple):
    """A send to a lane of a queue that has begun.

    ``notified`` is None, or for a quiet send the OID of the table of the notifying send. ``since``
    is when that send began. The times are in seconds of the monotonic clock.
    """

    queue: str
    lane: str
    began: float
    notified: int | None
    since: float = 0.0


class NotifyThrottle:
    """The last notifying sends of this process.

    Threads share them without a lock, because an entry is always replaced as a whole.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last: dict[tuple[str, str], Notified] = {}

    def begin(self, queue: str, lane: str) -> Turn:
        """Return the turn of a send that begins now in its own transaction.

        The attribute ``notified`` of the turn is not None if the send is quiet.
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
        """Record that a send has committed, and return whether a quiet send must notify after all.

        ``table`` is the OID of the table into which the task was sent.
        """
        now = self.clock()
        if turn.notified == table:
            return now - turn.since > READ_AGAIN_SECONDS

        last = self.last.get((turn.queue, turn.lane))
        row = 1
        if last and last.table == table and turn.began - last.ended < BURST_SECONDS:
            row += last.row

        self.last[turn.queue, turn.lane] = Notified(turn.began, now, table, row)
        return False


throttle = NotifyThrottle()
