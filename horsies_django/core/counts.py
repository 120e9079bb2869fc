"""What is counted of tasks: how often each result occurred, and histograms of how long attempts ran
and due tasks waited.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from horsies_django.core.records import SNOOZED, Outcome

# The upper bounds of the buckets of a histogram, in seconds, each included
BOUNDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    15.0,
    60.0,
    300.0,
    1_800.0,
    7_200.0,
    math.inf,
)

# Results of attempts. Any other result is the code of a final failure.
COMPLETED = "COMPLETED"
RETURNED = "RETURNED"
CANCELLED = "CANCELLED"
EXPIRED = "EXPIRED"
RETRIED = "RETRIED"  # it failed, and the task runs again
CRASHED = "CRASHED"  # its process died, and the task runs again
# No result: the claims of a queue, under the name "", with how long they had been due.
CLAIMED = "CLAIMED"
NO_FAILURE = frozenset({COMPLETED, RETURNED, CANCELLED, EXPIRED, RETRIED, CRASHED, CLAIMED})
# Tasks, or codes of a task, beyond the number of those that are counted one by one; and codes that
# are in NO_FAILURE
OTHER = "(other)"

Key = tuple[str, str, str]  # queue, task, result


class Total(NamedTuple):
    """How often a result occurred: ``n`` times, ``seconds`` in all, and how many of them in each
    bucket of ``BOUNDS``.

    An attempt whose worker died has no duration, so the buckets may hold fewer than ``n``.
    """

    queue: str
    task: str
    result: str
    n: int
    seconds: float
    buckets: tuple[int, ...]
    longest: float | None = None  # seconds, of what a worker adds to the history

    def minus(self, earlier: Total | None) -> Total:
        """Return what was counted since ``earlier``, None for the beginning."""
        if earlier is None:
            return self
        buckets = tuple(
            now - before for now, before in zip(self.buckets, earlier.buckets, strict=True)
        )
        return self._replace(
            n=self.n - earlier.n, seconds=self.seconds - earlier.seconds, buckets=buckets
        )

    @property
    def failed(self) -> bool:
        """Whether the result is the code of a final failure.

        An error that a task returned is none.
        """
        return self.result not in NO_FAILURE


def bucket(seconds: float) -> int:
    """Return the index of the bucket of a duration."""
    return bisect_left(BOUNDS, seconds)


def quantile(buckets: Sequence[int], share: float, longest: float = 0.0) -> float | None:
    """Return the duration in seconds that ``share`` of the values do not exceed, interpolated in
    its bucket.

    Its bucket ends with the ``longest`` value, if that is known and in it: no value is longer. None
    without values; the last bound if it is in the bucket that has no end.
    """
    rank = share * sum(buckets)
    sums = list(accumulate(buckets))
    if not rank:
        return None

    place = bisect_left(sums, rank)
    low = BOUNDS[place - 1] if place else 0.0
    high = min(BOUNDS[place], longest) if longest > low else BOUNDS[place]
    return low if high == math.inf else high - (high - low) * (sums[place] - rank) / buckets[place]


def result_of(outcome: Outcome, decided: Mapping[str, Any]) -> str | None:
    """Return the result of an attempt whose outcome was written, None of a snooze; ``decided``: see
    ``horsies_settle``.
    """
    if outcome.status == COMPLETED:
        return COMPLETED
    status = outcome.ended_as(decided)
    if status == SNOOZED:
        return None

    if "retry" in decided:
        return CRASHED if outcome.crashed else RETRIED
    if status == CANCELLED:
        return CANCELLED

    code: str = decided.get("code") or outcome.error_code or OTHER
    if outcome.returned:
        return RETURNED
    return OTHER if code in NO_FAILURE else code
