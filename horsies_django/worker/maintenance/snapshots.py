"""Snapshots: the state of a worker and its children, one row every half minute or so, as a history."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import psutil
import psycopg

from horsies_django.core.repeats import Repeats
from horsies_django.store.base import said
from horsies_django.store.workers import Load, Process, WorkerStore

logger = logging.getLogger("horsies.worker")


class Snapshots:
    """``tick`` is called with every heartbeat, and writes a row when one is due."""

    def __init__(self, worker: uuid.UUID, pid: int, interval_seconds: float) -> None:
        self.worker = worker
        self.pid = pid
        self.interval_seconds = interval_seconds
        self.due_at = 0.0
        self.repeats = Repeats()
        self.measured_at: float | None = None
        self.consumed: dict[int, float] = {}  # CPU seconds by process, at the last snapshot

    def tick(self, connection: Any, children: Sequence[Process], load: Load, buffered: int) -> None:
        """Write a snapshot if one is due; the heartbeat goes on without it. Raises psycopg.Error if the connection is lost."""
        now = time.monotonic()
        if now < self.due_at:
            return
        self.due_at = now + self.interval_seconds
        cpu_percent = self.cpu_percent(now, [self.pid, *(child.pid for child in children)])
        store = WorkerStore(connection)
        try:
            store.snapshot(self.worker, load, buffered=buffered, children=len(children), cpu_percent=cpu_percent)
        except psycopg.Error as error:
            if connection.closed:
                raise
            if (more := self.repeats.told("snapshot", now)) is not None:
                logger.error("could not record the worker's state: %s%s", said(error), more)
            store.lose_snapshot(self.worker, said(error))

    def cpu_percent(self, now: float, pids: Iterable[int]) -> float | None:
        """Return the CPU usage of the processes since the last snapshot, 100 for one full CPU; None for the first snapshot.

        A child that started in between counts in full; one that ended does not count.
        """
        before, since = self.consumed, self.measured_at
        self.consumed, self.measured_at = {pid: cpu_seconds(pid) for pid in pids}, now
        if since is None or now <= since:
            return None
        used = sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in self.consumed.items())
        return round(100 * used / (now - since), 1)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
