"""The heartbeat: says every few seconds that this worker and its processes live, and renews the leases of what it prefetched.

It beats for the engine, not for itself: while the engine's loop is stuck the heartbeat is silent, because nobody settles tasks
then. With each beat it winds the timer that ends the children of a worker that was stopped: both run out together. And it
looks after children that stand still alone, for whom nobody else would: their parent beats for them.

A worker that is cut off from the database cannot beat either, and cannot tell whether others can: whether this is an outage, in
which nobody judges anybody, or a partition, in which its tasks are given to others. With ON_CUT_OFF "wait" its tasks go on and
the watchdog keeps the timer wound; with "kill" they end before the first moment at which others may run them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import Load, Process, WorkerStore
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.engine.status import EngineStatus
from horsies_django.worker.maintenance.snapshots import Snapshots
from horsies_django.worker.pool.process import Child, PoolProcess
from horsies_django.worker.pool.stuck import StuckWatch
from horsies_django.worker.process.memory import memory_mb

logger = logging.getLogger("horsies.worker")

STUCK_SECONDS = 10.0
SHOWN = 100  # tasks of a child that its heartbeat names


class HeartbeatSender:
    """``tick`` is one beat."""

    def __init__(
        self,
        worker: uuid.UUID,
        pid: int,
        engine: Engine,
        interval_seconds: float,
        trust_seconds: float,
        wind: Callable[[float], None],
        watch: StuckWatch,
        snapshot_seconds: float = 30.0,
    ) -> None:
        self.worker = worker
        self.pid = pid
        self.engine = engine
        self.interval_seconds = interval_seconds
        self.trust_seconds = trust_seconds  # how long after a beat nobody can have taken this worker for dead
        self.wind = wind
        self.watch = watch
        self.snapshots = Snapshots(worker, pid, snapshot_seconds)
        self.unbroken_since: float | None = None  # by the monotonic clock: since when every beat went out in time
        self.tried_since: float | None = None  # since when the database was asked and did not answer

    def tick(self, connection: Any) -> bool:
        """Beat once. Returns False, without a beat, while the engine is stuck or once it was declared dead.

        Raises psycopg.Error.
        """
        now, status = time.monotonic(), self.engine.status
        if status.busy_since is not None and now - status.busy_since > STUCK_SECONDS:
            logger.error("the engine has been stuck for %.0f s; sending no heartbeat", now - status.busy_since)
            return False
        self.watch.look(status.members, now)
        children = processes(status.members)
        load = self.load(status, children)
        if not WorkerStore(connection).beat(self.worker, children, load):
            self.engine.disown()
            return False
        if status.prefetched:
            TaskStore(connection).renew(self.worker, status.prefetched, self.engine.lease or timedelta())
        self.wind(now)
        self.engine.trust(now + self.trust_seconds)
        if self.unbroken_since is None:
            self.unbroken_since = now
        self.snapshots.tick(connection, children, load, len(status.prefetched))
        return True

    def missed(self) -> None:
        """Note that a beat did not go out."""
        self.unbroken_since = None

    def unbroken_for(self, seconds: float) -> bool:
        """Whether every beat of the last ``seconds`` went out: only then may this worker judge others."""
        return self.unbroken_since is not None and time.monotonic() - self.unbroken_since >= seconds

    def asked(self) -> None:
        """Note that the database is asked for something, on the connection that carries the beats."""
        if self.tried_since is None:
            self.tried_since = time.monotonic()

    def answered(self) -> None:
        """Note that it answered."""
        self.tried_since = None

    def cut_off_for(self, seconds: float) -> bool:
        """Whether the database has not answered the heartbeat for ``seconds``; safe from another thread."""
        since = self.tried_since
        return since is not None and time.monotonic() - since >= seconds

    def load(self, status: EngineStatus, children: list[Process]) -> Load:
        """Measure what the worker holds now; memory is resident set size."""
        memory = sum(memory_mb(child.pid) for child in children)
        return Load(status.running_sync, status.running_async, memory_mb(self.pid), memory)


def processes(members: Iterable[PoolProcess]) -> list[Process]:
    """Return the children among the processes of a pool, as their heartbeats name them."""
    return [
        Process(member.id, member.pid, [claim.id for claim in member.claims()[:SHOWN]])
        for member in members
        if isinstance(member, Child)
    ]
