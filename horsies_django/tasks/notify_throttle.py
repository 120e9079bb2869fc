"""Which sends wake the workers: all, but those of a burst that follow right behind one that did.

PostgreSQL commits transactions that NOTIFY one after the other, so a NOTIFY costs not only its sender: it ends group commit among
all of them. In a burst (sends from one process to one lane of a queue, each a transaction of its own) most of them wake nobody
who is not awake already. So there a send that is announced says that more may follow without a word, those that begin within
HOLD do, and whoever heard it looks again after each time of AGAIN. A send inside a transaction is always announced: there is
nothing to find before a commit that this sender does not see. So is one of a task with a moment of its own: workers look for it
elsewhere, or have to hear when it is due.

A quiet send sees to it that its task is found. A worker cannot hear the announcement before that was begun, and looks for the
last time AGAIN[-1] after it heard; what committed within AGAIN[-1] of that beginning is found by then. So a quiet send that
returns later announces its task after all. It seldom has to: behind one that took more than half of that time, none is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

HOLD_SECONDS = 0.005  # from the return of an announced send on: what begins meanwhile is quiet
# Announced sends no further apart are a burst: only then may others follow, so a lone send makes nobody look again.
BURST_SECONDS = 0.01
AGAIN_SECONDS = (0.01, 0.02, 0.04)
PROMPT_SECONDS = AGAIN_SECONDS[-1] / 2


class Announced(NamedTuple):
    """The last announced send to a lane of a queue: when it began, and returned; the number of the table it went to; whether
    others may follow without a word."""

    began: float
    ended: float
    table: int
    open: bool


class Turn(NamedTuple):
    """A send to a lane of a queue, under way.

    ``told`` goes into the statement: the number of the table whose workers know already (then it is quiet), 0 to say that more
    may follow without a word, None to say nothing of others. ``since``: when the send that told them began.
    """

    queue: str
    lane: str
    began: float
    told: int | None
    since: float = 0.0


class Announcements:
    """What this process announced. Threads share it: each entry is replaced as a whole, and the last one wins."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last: dict[tuple[str, str], Announced] = {}

    def begin(self, queue: str, lane: str) -> Turn:
        """Say how a send to ``lane`` of ``queue`` that is a transaction of its own is to be announced."""
        now, last = self.clock(), self.last.get((queue, lane))
        if last is None or now - last.ended > BURST_SECONDS:
            return Turn(queue, lane, now, None)
        quiet = last.open and now - last.ended < HOLD_SECONDS
        return Turn(queue, lane, now, last.table if quiet else 0, last.began)

    def end(self, turn: Turn, table: int) -> bool:
        """Note that the send has committed, into ``table``. Returns whether it is to be announced after all."""
        now = self.clock()
        if turn.told == table:
            return now - turn.since > AGAIN_SECONDS[-1]
        prompt = now - turn.began <= PROMPT_SECONDS
        self.last[turn.queue, turn.lane] = Announced(turn.began, now, table, prompt and turn.told is not None)
        return False


announcements = Announcements()
