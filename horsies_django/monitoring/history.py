"""The counts of queues over time, and groups of failures with the places where they occurred.

The module only reads, without locks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F

from horsies_django.conf import config
from horsies_django.core.counts import BOUNDS, quantile
from horsies_django.core.queues import CLUSTER
from horsies_django.models import TaskAttempt
from horsies_django.models.fields import aware
from horsies_django.store.base import Connection
from horsies_django.store.history import Failures, HistoryStore, row_width
from horsies_django.tasks.selection import Selection, newest_tasks

EMPTY_HISTOGRAM = (0,) * len(BOUNDS)  # an empty histogram

MOST_GROUPS = 1_000
NEWEST = 1_000  # tasks of a group that are read


class TimeStep(NamedTuple):
    """The counts of a queue in a step of time.

    ``completed`` counts the tasks that completed or returned an error, and ``failed`` those that
    failed. ``waits`` is a histogram of how long due tasks had waited when they were claimed, and
    ``runs`` of how long attempts ran. The longest of each is in seconds, 0 if none is known.
    """

    completed: int = 0
    failed: int = 0
    waits: tuple[int, ...] = EMPTY_HISTOGRAM
    runs: tuple[int, ...] = EMPTY_HISTOGRAM
    longest_wait: float = 0.0
    longest_run: float = 0.0

    def wait(self, share: float) -> float | None:
        """Return the seconds that ``share`` of the waits do not exceed, or None without waits."""
        return quantile(self.waits, share, self.longest_wait)

    def run(self, share: float) -> float | None:
        """Return the seconds that ``share`` of the attempts do not exceed, or None without any."""
        return quantile(self.runs, share, self.longest_run)


def series(connection: Connection, span: dt.timedelta, points: int) -> dict[str, list[TimeStep]]:
    """Return the counts of each queue in the last ``span``, in ``points`` equal steps.

    The steps are whole minutes, or whole hours if the span is longer than two hours. The last step
    has the present minute or hour. Queues without counts are missing. Raises the errors of the
    driver.
    """
    found: dict[str, list[TimeStep]] = {}
    for queue, place, kind, n, longest, buckets in HistoryStore(connection).series(span, points):
        steps = found.setdefault(queue, [TimeStep()] * points)
        histogram = tuple(map(int, buckets))

        if kind == "claimed":
            step = TimeStep(waits=histogram, longest_wait=longest or 0.0)
        else:
            ended = n * (kind == "completed"), n * (kind == "failed")
            step = TimeStep(*ended, runs=histogram, longest_run=longest or 0.0)

        steps[place] = together((steps[place], step))

    return found


def of_queue(found: Mapping[str, Sequence[TimeStep]], queue: str) -> list[TimeStep]:
    """Return the steps of a queue in a series, or [] if there are none.

    The steps of the cluster are the sums of those of all queues.
    """
    counted = [steps for name, steps in found.items() if queue in (name, CLUSTER)]
    return [together(each) for each in zip(*counted, strict=True)]


def together(steps: Iterable[TimeStep]) -> TimeStep:
    """Return the sum of steps."""
    completed, failed, *histograms, longest_wait, longest_run = zip(TimeStep(), *steps, strict=True)
    waits, runs = (tuple(map(sum, zip(*each, strict=True))) for each in histograms)
    return TimeStep(sum(completed), sum(failed), waits, runs, max(longest_wait), max(longest_run))


class FailurePlace(NamedTuple):
    """A place where tasks failed.

    It has the class of the exception, the site in the code, the number of failures, the time of the
    last one, and its message (payload).
    """

    exception: str
    site: str
    many: int
    at: dt.datetime
    message: str | None


def counted_from(moment: dt.datetime, now: dt.datetime) -> dt.datetime:
    """Return the begin of the row of the history that contains a moment."""
    seconds = row_width(now - moment)
    return dt.datetime.fromtimestamp(moment.timestamp() // seconds * seconds, dt.UTC)


def groups(since: dt.datetime, now: dt.datetime) -> list[Failures]:
    """Return the tasks and codes of final failures with their numbers, the most frequent first.

    Failures since ``since`` are counted, which is a return value of ``counted_from``.
    """
    span = now - since + dt.timedelta(seconds=1)  # with the row that begins then
    return HistoryStore(connections[config().database]).failures(span, MOST_GROUPS)


def places(task: str, code: str, since: dt.datetime, *, payload: bool) -> list[FailurePlace]:
    """Return the places where the newest 1,000 failed tasks failed, the most frequent first.

    Only failures since ``since`` count. The messages are read if ``payload`` is true.
    """
    alias = config().database
    chosen = Selection("FAILED", names=[task], code=code, since=since)
    ended = dict(
        newest_tasks(chosen)[0].values_list("pk", F("finished_at"))[:NEWEST]
    )  # see Moment for F
    attempts: Any = (
        TaskAttempt.objects.using(alias).filter(task_id__in=list(ended)).order_by("-finished_at")
    )

    found: dict[tuple[str, str], list[TaskAttempt]] = {}
    for row in attempts.only(
        "task_id", "claim_generation", "finished_at", "exception_class", "site"
    ):
        if row.finished_at == ended[row.task_id]:  # only the last attempt
            found.setdefault((row.exception_class or "", row.site or ""), []).append(row)

    messages: dict[Any, str | None] = {}
    if payload:
        with_message = TaskAttempt.objects.using(alias).filter(
            pk__in=[rows[0].pk for rows in found.values()]
        )
        messages = dict(with_message.values_list("pk", "error_message"))

    listed = [
        FailurePlace(*key, len(rows), aware(rows[0].finished_at), messages.get(rows[0].pk))
        for key, rows in found.items()
    ]
    return sorted(listed, key=lambda place: -place.many)
