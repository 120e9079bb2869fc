"""The counts of tasks, which are numbers of results and histograms of durations.

The durations are those of attempts, and the times that due tasks waited until they were claimed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from horsies_django.core.records import SNOOZED, Outcome

# The upper bounds of the buckets of a histogram, in seconds. A bucket includes its bound.
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

# The results of attempts. Any other result is the error code of a final failure.
COMPLETED = "COMPLETED"
RETURNED = "RETURNED"
CANCELLED = "CANCELLED"
EXPIRED = "EXPIRED"
RETRIED = "RETRIED"  # the attempt failed, and the task runs again
CRASHED = "CRASHED"  # the process of the attempt died, and the task runs again
# This is not a result of an attempt, but the count of all claims of a queue. The name of the task
# is "", and the durations are the times for which the tasks had been due.
CLAIMED = "CLAIMED"
NO_FAILURE = frozenset({COMPLETED, RETURNED, CANCELLED, EXPIRED, RETRIED, CRASHED, CLAIMED})
# The count of tasks, or of codes of a task, that are too many to be counted one by one, and of
# codes that are in NO_FAILURE
OTHER = "(other)"

Key = tuple[str, str, str]  # queue, task, result


class Total(NamedTuple):
    """The count of a result.

    The result occurred ``n`` times, with ``seconds`` in total. ``buckets`` is the histogram of the
    durations, with the bounds in ``BOUNDS``. An attempt whose worker died has no duration, so the
    sum of the buckets may be less than ``n``.
    """

    queue: str
    task: str
    result: str
    n: int
    seconds: float
    buckets: tuple[int, ...]
    longest: float | None = None  # in seconds, only in counts that a worker adds to the history

    def minus(self, earlier: Total | None) -> Total:
        """Return the count since an earlier count, or since the beginning if that is None."""
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
        """Whether the result is the error code of a final failure.

        An error that a task returned is not such a failure.
        """
        return self.result not in NO_FAILURE


def bucket(seconds: float) -> int:
    """Return the index of the bucket of a duration in seconds."""
    return bisect_left(BOUNDS, seconds)


def quantile(buckets: Sequence[int], share: float, longest: float = 0.0) -> float | None:
    """Return the duration in seconds that a share of the values does not exceed.

    ``share`` is from 0 to 1. The duration is interpolated in its bucket. If the ``longest`` value
    is known and in that bucket, the bucket ends with it. Return None if there are no values, and
    the last finite bound if the duration is in the bucket without an end.
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
    """Return the result of an attempt whose outcome was written, or None if the task snoozed.

    For ``decided``, see ``horsies_settle``.
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
