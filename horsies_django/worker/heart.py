"""The heart: says every few seconds that this worker and its processes live, on a connection and a thread of its own.

It beats for the engine, not for itself: while the engine's loop is stuck the heart is silent, because nobody settles tasks then.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid

import psutil
import psycopg

from horsies_django.store.notify import direct_connection
from horsies_django.store.workers import Load, Process, WorkerStore
from horsies_django.worker.engine import RETRYABLE, Engine

logger = logging.getLogger("horsies.worker")

BEAT_SECONDS = 3.0
STUCK_SECONDS = 10.0
MEGABYTE = 1_048_576


class Heart(threading.Thread):
    """Beats until ``stop``; ``tick`` is one beat."""

    def __init__(self, alias: str, worker: uuid.UUID, pid: int, engine: Engine) -> None:
        super().__init__(name="horsies-heart", daemon=True)
        self.alias = alias
        self.worker = worker
        self.parent = Process(worker, "claimer", pid)
        self.engine = engine
        self.connection: psycopg.Connection[tuple[object, ...]] | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        """Beat at the interval until stopped; a beat that fails is logged and the next one tries again."""
        while True:
            try:
                self.tick()
            except RETRYABLE as error:
                logger.warning("a heartbeat failed: %s", str(error).strip())
                self.disconnect()
            if self.ended.wait(BEAT_SECONDS):
                self.disconnect()
                return

    def tick(self) -> bool:
        """Beat once. Returns False, without a beat, while the engine is stuck. Raises psycopg.OperationalError."""
        busy_since = self.engine.busy_since
        if busy_since is not None and time.monotonic() - busy_since > STUCK_SECONDS:
            logger.error("the engine has not come round for %.0f s: no heartbeat", time.monotonic() - busy_since)
            return False
        if self.connection is None:
            self.connection = direct_connection(self.alias, application_name="horsies services")
            self.connection.execute("SET statement_timeout = '1s'")
        processes = self.engine.pool.processes()
        WorkerStore(self.connection).beat(self.worker, [self.parent, *processes], self.load(processes))
        return True

    def load(self, processes: list[Process]) -> Load:
        """Measure what the worker holds now; memory is resident set size."""
        pool = self.engine.pool
        children = sum(memory_mb(process.pid) for process in processes)
        return Load(pool.running("sync"), pool.running("async"), memory_mb(self.parent.pid), children)

    def stop(self) -> None:
        """End the thread and close its connection."""
        self.ended.set()
        self.join(5)

    def disconnect(self) -> None:
        """Close the connection, whatever state it is in."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in megabytes, 0 when it is gone."""
    try:
        return round(psutil.Process(pid).memory_info().rss / MEGABYTE, 1)
    except psutil.Error:
        return 0.0
