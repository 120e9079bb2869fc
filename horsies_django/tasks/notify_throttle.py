"""Decides which sends notify workers: all, except sends in a burst that directly follow a send that did.

PostgreSQL serializes the commits of transactions that NOTIFY, which prevents group commit for all senders. In a burst (sends from
one process to one lane of a queue, each in a transaction of its own) most notifications would wake no further worker. So a send
in a burst announces that more tasks may follow without a notification; sends that begin within HOLD_SECONDS are quiet, and
workers look again after each of AGAIN_SECONDS. A send inside a transaction always notifies, because the time of its commit is
unknown. So does a task with a due time, for which workers wait differently.

The task of a quiet send is always found. A worker receives the announcement after it began, and looks for the last time
AGAIN_SECONDS[-1] after that. So tasks that committed within AGAIN_SECONDS[-1] of that beginning are found, and a quiet send that
returns later notifies after all. That is rare: after an announcement that took more than half of that time, no send is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

HOLD_SECONDS = 0.005  # after an announced send has returned; sends that begin meanwhile are quiet
# Announced sends with at most this distance are a burst. After a single send, workers need not look again.
BURST_SECONDS = 0.01
AGAIN_SECONDS = (0.01, 0.02, 0.04)
PROMPT_SECONDS = AGAIN_SECONDS[-1] / 2


class Announced(NamedTuple):
    """The last announced send to a lane of a queue.

    ``began`` and ``ended`` are by the monotonic clock, ``table`` is the OID of the table, ``open``: quiet sends may follow.
    """

    began: float
    ended: float
    table: int
    open: bool


class Turn(NamedTuple):
    """A send to a lane of a queue that has begun.

    ``told`` is a parameter of the statement: the OID of the table whose workers are already notified (a quiet send), 0 to
    announce that quiet sends may follow, None for a plain notification. ``since``: when the announcing send began.
    """

    queue: str
    lane: str
    began: float
    told: int | None
    since: float = 0.0


class Announcements:
    """The announcements of this process. Threads share them; entries are replaced as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last: dict[tuple[str, str], Announced] = {}

    def begin(self, queue: str, lane: str) -> Turn:
        """Begin a send to ``lane`` of ``queue`` in a transaction of its own; return how it is announced."""
        now, last = self.clock(), self.last.get((queue, lane))
        if last is None or now - last.ended > BURST_SECONDS:
            return Turn(queue, lane, now, None)
        quiet = last.open and now - last.ended < HOLD_SECONDS
        return Turn(queue, lane, now, last.table if quiet else 0, last.began)

    def end(self, turn: Turn, table: int) -> bool:
        """Record that the send has committed, into ``table``. Return whether it must notify after all."""
        now = self.clock()
        if turn.told == table:
            return now - turn.since > AGAIN_SECONDS[-1]
        prompt = now - turn.began <= PROMPT_SECONDS
        self.last[turn.queue, turn.lane] = Announced(turn.began, now, table, prompt and turn.told is not None)
        return False


announcements = Announcements()
