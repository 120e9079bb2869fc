"""The statements that write and read the history of counts."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.counts import COMPLETED, NO_FAILURE, RETURNED, Total
from horsies_django.store.base import Store

# the widths of rows, in seconds
MINUTE_SECONDS = 60
HOUR_SECONDS = 3_600
LONGEST_BY_MINUTES = timedelta(hours=2)


class Failures(NamedTuple):
    """The number of times that a task failed for good with a code."""

    task: str
    code: str
    n: int


def row_width(span: timedelta) -> int:
    """Return the width, in seconds, of the rows that are read for a span.

    It is a minute for spans of up to two hours, else an hour.
    """
    return MINUTE_SECONDS if span <= LONGEST_BY_MINUTES else HOUR_SECONDS


class HistoryStore(Store):
    """The statements about the history.

    Workers write once a minute, so the last minute is missing.
    """

    def add(
        self, worker: uuid.UUID, number: int, counts: Iterable[Total], covers: timedelta
    ) -> None:
        """Add the counts of a worker, which cover the time ``covers`` until now.

        They are ignored if the worker has added counts with this ``number`` or a higher one before.
        """
        rows = json.dumps([count._asdict() for count in counts])
        self.execute("history/add", worker=worker, number=number, rows=rows, covers=covers)

    def totals(self, span: timedelta, but: Collection[str] = ()) -> list[Total]:
        """Return how often each result of each task occurred in the last ``span``.

        Results in ``but`` are omitted.
        """
        rows = self.run("horsies_totals", width=row_width(span), span=span, but=sorted(but))
        return [
            Total._make((*columns, tuple(map(int, buckets)), None)) for *columns, buckets in rows
        ]

    def series(
        self, span: timedelta, steps: int
    ) -> list[tuple[str, int, str, int, float | None, list[int]]]:
        """Return the sums of the last ``span`` by queue, step (the last is ``steps`` - 1) and kind.

        Each row ends with the number, the longest duration and the histogram.
        """
        params = {
            "width": row_width(span),
            "span": span,
            "steps": steps,
            "completed": [COMPLETED, RETURNED],
        }
        return self.run("horsies_series", **params, no_failure=sorted(NO_FAILURE))

    def failures(self, span: timedelta, many: int) -> list[Failures]:
        """Return which tasks failed for good in the last ``span``, and with which code.

        There are ``many`` at most, the most frequent first.
        """
        found = Counter[tuple[str, str]]()
        for total in self.totals(span, but=NO_FAILURE):
            found[total.task, total.result] += total.n

        ordered = sorted(found.items(), key=lambda failure: (-failure[1], failure[0]))
        return [Failures(*of, n) for of, n in ordered[:many]]

    def names(self) -> set[str]:
        """Return the names of the tasks in the history of hours."""
        return {name for (name,) in self.run("history/names")}

    def prune(self, width: int, age: timedelta, many: int) -> int:
        """Delete up to ``many`` rows of a width older than ``age``, and return their number."""
        return self.execute("history/prune", width=width, age=age, many=many)
