"""The counts of a worker since its start: results and durations of attempts, and waits of tasks.

``HistoryWriter`` writes them to the history, once a minute and when the worker stops.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from horsies_django.core.counts import (
    BOUNDS,
    CLAIMED,
    COMPLETED,
    EXPIRED,
    NO_FAILURE,
    OTHER,
    Key,
    Total,
    bucket,
    result_of,
)
from horsies_django.core.records import Claim, Outcome
from horsies_django.store.history import HistoryStore
from horsies_django.worker.logs.task_log import NOT_DECIDED, TaskRecord

MOST_TASKS = 300
MOST_CODES = 50  # per task


class Counts:
    """The counts by queue, task and result.

    The engine and the reaper add to them; any thread may read them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: dict[Key, list[Any]] = {}  # n, seconds, and a number for each bucket
        self.codes = defaultdict[str, set[str]](set, {"": set()})  # by task, and "" for claims

    def settled(self, outcomes: Iterable[Outcome], decided: Mapping[str, Any]) -> None:
        """Count attempts whose outcome was written.

        The SQL function ``horsies_settle`` describes ``decided``.
        """
        with self.lock:
            for outcome in outcomes:
                # most attempts complete, and ``decided`` has no entry for those
                decision = (
                    NOT_DECIDED
                    if outcome.status == COMPLETED
                    else decided.get(str(outcome.id), NOT_DECIDED)
                )
                if (result := result_of(outcome, decision)) is not None:
                    self._add((outcome.queue_name, outcome.task_name, result), outcome.seconds)

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Count claims, with how long each had been due."""
        with self.lock:
            for claim in claims:
                self._add((claim.queue_name, "", CLAIMED), max(0.0, -claim.due_in))

    def ended(self, keys: Iterable[Key]) -> None:
        """Count attempts whose duration is unknown."""
        with self.lock:
            for key in keys:
                self._add(key, None)

    def expired(self, tasks: Iterable[TaskRecord]) -> None:
        """Count tasks that expired before they started."""
        self.ended((task.queue_name, task.task_name, EXPIRED) for task in tasks)

    def read(self) -> list[Total]:
        """Return the counts so far."""
        with self.lock:
            return [
                Total(*key, n, seconds, tuple(buckets))
                for key, (n, seconds, _longest, *buckets) in self.entries.items()
            ]

    def take_longest(self) -> dict[Key, float]:
        """Return the longest duration in seconds of each key since the last call."""
        with self.lock:
            found = {key: entry[2] for key, entry in self.entries.items() if entry[2]}
            for key in found:
                self.entries[key][2] = 0.0
            return found

    def _add(self, key: Key, seconds: float | None) -> None:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries.setdefault(
                self._counted_as(key), [0, 0.0, 0.0, *[0] * len(BOUNDS)]
            )

        entry[0] += 1
        if seconds is not None:
            entry[1] += seconds
            if seconds > entry[2]:
                entry[2] = seconds
            entry[3 + bucket(seconds)] += 1

    def _counted_as(self, key: Key) -> Key:
        """Return the key under which a new key is counted, with OTHER if there are too many.

        An unlimited number of names or error codes would fill the memory and the table.
        """
        queue, task, result = key
        if task not in self.codes and len(self.codes) > MOST_TASKS:
            task = OTHER

        codes = self.codes[task]
        if result not in NO_FAILURE:
            if result not in codes and len(codes) >= MOST_CODES:
                result = OTHER
            codes.add(result)

        return queue, task, result


class HistoryWriter:
    """The writer of the history; ``tick`` writes the new counts.

    Counts that were not confirmed are written again unchanged, with the same number, so that they
    count only once.
    """

    def __init__(self, worker: uuid.UUID, counts: Counts) -> None:
        self.worker = worker
        self.counts = counts

        self.number = 0  # of the last counts that were sent
        self.sent: Sequence[Total] = ()  # counts that were sent and not confirmed
        self.sent_totals: dict[Key, Total] = {}  # the total counts at that time
        self.since = time.monotonic()  # when the present counts began
        self.covers = timedelta()  # the time that the last counts cover

    def tick(self, connection: Any) -> None:
        """Write the counts since the last call.

        Raises psycopg.Error.
        """
        self.send(connection)

        now = time.monotonic()
        counts = self.counts.read()
        longest = self.counts.take_longest()
        new = [total.minus(self.sent_totals.get(total[:3])) for total in counts]

        self.sent = [one._replace(longest=longest.get(one[:3])) for one in new if one.n]
        self.sent_totals = {total[:3]: total for total in counts}
        self.covers, self.since = timedelta(seconds=now - self.since), now

        self.number += 1
        self.send(connection)

    def send(self, connection: Any) -> None:
        if self.sent:
            HistoryStore(connection).add(self.worker, self.number, self.sent, self.covers)
            self.sent = ()
