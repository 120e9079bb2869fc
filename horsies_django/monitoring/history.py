"""What was counted of queues, in steps of time. Only reads, without locks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from horsies_django.core.counts import BOUNDS
from horsies_django.core.queues import CLUSTER
from horsies_django.store.base import Connection
from horsies_django.store.history import HistoryStore

NONE = (0,) * len(BOUNDS)  # the histogram of nothing


class Step(NamedTuple):
    """What was counted of a queue in a step of time: the tasks that completed or returned an error, and those that failed.

    ``waits`` and ``runs`` are histograms: how long due tasks had waited when they were claimed, and how long attempts ran.
    """

    completed: int = 0
    failed: int = 0
    waits: tuple[int, ...] = NONE
    runs: tuple[int, ...] = NONE


def series(connection: Connection, span: dt.timedelta, points: int) -> dict[str, list[Step]]:
    """Return what was counted in the last ``span``, by queue, in so many equal steps of whole minutes, beyond two hours of hours.

    The last step has the present minute or hour. Queues of which nothing was counted are missing.
    Raises the errors of the driver.
    """
    found: dict[str, list[Step]] = {}
    for queue, place, kind, n, buckets in HistoryStore(connection).series(span, points):
        steps = found.setdefault(queue, [Step()] * points)
        histogram = tuple(map(int, buckets))
        waits, runs = (histogram, NONE) if kind == "claimed" else (NONE, histogram)
        step = Step(n * (kind == "completed"), n * (kind == "failed"), waits, runs)
        steps[place] = together((steps[place], step))
    return found


def of_queue(found: Mapping[str, Sequence[Step]], queue: str) -> list[Step]:
    """Return the steps of a queue in a series, of the cluster those of all queues together; [] if nothing was counted."""
    counted = [steps for name, steps in found.items() if queue in (name, CLUSTER)]
    return [together(each) for each in zip(*counted, strict=True)]


def together(steps: Iterable[Step]) -> Step:
    """Return the sum of steps."""
    completed, failed, *histograms = zip(Step(), *steps, strict=True)
    waits, runs = (tuple(map(sum, zip(*each, strict=True))) for each in histograms)
    return Step(sum(completed), sum(failed), waits, runs)
