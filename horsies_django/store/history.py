"""The statements that write and read the history of counts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.counts import COMPLETED, NO_FAILURE, RETURNED, Total
from horsies_django.store.base import Connection, execute, run

MINUTE, HOUR = 60, 3_600  # the widths of its rows, in seconds


class Failures(NamedTuple):
    """How often a task failed for good with a code."""

    task: str
    code: str
    n: int


class HistoryStore:
    """Runs the statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def add(self, worker: uuid.UUID, number: int, counts: Iterable[Total], covers: timedelta) -> None:
        """Add what a worker has counted in the last ``covers``; nothing if it has added this ``number`` or a later one before."""
        rows = json.dumps([count._asdict() for count in counts])
        execute(self.connection, "history/add", {"worker": worker, "number": number, "rows": rows, "covers": covers})

    def totals(self, width: int, span: timedelta) -> list[Total]:
        """Return the sums over the rows of a width that began in the last ``span``."""
        rows = run(self.connection, "horsies_totals", {"width": width, "span": span})
        return [
            Total(queue, task, result, n, seconds, tuple(map(int, buckets)))
            for queue, task, result, n, seconds, buckets in rows
        ]

    def series(self, width: int, span: timedelta, steps: int) -> list[tuple[str, int, str, int, list[int]]]:
        """Return the sums of a width by queue, step (the last is ``steps`` - 1) and kind, each with its histogram."""
        params = {"width": width, "span": span, "steps": steps, "completed": [COMPLETED, RETURNED]}
        return run(self.connection, "horsies_series", params | {"no_failure": sorted(NO_FAILURE)})

    def failures(self, width: int, span: timedelta, many: int) -> list[Failures]:
        """Return the tasks that failed for good and their codes, the most frequent first."""
        params = {"width": width, "span": span, "no_failure": sorted(NO_FAILURE), "many": many}
        return [Failures(*row) for row in run(self.connection, "horsies_failures", params)]

    def names(self) -> set[str]:
        """Return the names of the tasks that were counted in the hours that are kept."""
        return {name for (name,) in run(self.connection, "history/names")}

    def prune(self, width: int, age: timedelta, many: int) -> int:
        """Delete up to ``many`` rows of a width that are older than ``age``, and return how many were deleted."""
        return execute(self.connection, "history/prune", {"width": width, "age": age, "many": many})
