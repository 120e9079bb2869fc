"""Writes what a worker has counted to the history, once a minute and when it stops."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from horsies_django.core.counts import Key, Total
from horsies_django.store.history import HistoryStore
from horsies_django.worker.process.counts import Counts


class HistoryWriter:
    """``tick`` writes what is new. What was not confirmed is written again, as it was, so that it counts once."""

    def __init__(self, worker: uuid.UUID, counts: Counts) -> None:
        self.worker = worker
        self.counts = counts
        self.number = 0  # of what was last sent
        self.sent: Sequence[Total] = ()  # what was not confirmed
        self.known: dict[Key, Total] = {}  # the counts up to it
        self.since, self.covers = time.monotonic(), timedelta()  # since when it counts; how long what was sent took

    def tick(self, connection: Any) -> None:
        """Write what was counted since the last time. Raises psycopg.Error."""
        self.send(connection)
        now, counts = time.monotonic(), self.counts.read()
        self.sent = [new for total in counts if (new := total.minus(self.known.get(total[:3]))).n]
        self.known = {total[:3]: total for total in counts}
        self.covers, self.since = timedelta(seconds=now - self.since), now
        self.number += 1
        self.send(connection)

    def send(self, connection: Any) -> None:
        if self.sent:
            HistoryStore(connection).add(self.worker, self.number, self.sent, self.covers)
            self.sent = ()
