"""The statements that ask how the queues, the workers and the database do. None of them locks or writes."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from horsies_django.store.base import Connection, run
from horsies_django.store.overviews import parsed

WORKERS = 500  # shown at most
SCHEDULES = 100
RECENT = dt.timedelta(minutes=10)  # for so long a worker that ended is still shown


class WorkerHealth(NamedTuple):
    """A worker and its ``state``: living, stale (silent, not yet judged), dead (judged so by others) or stopped (on its own).

    ``holds`` counts its tasks in flight as the table of tasks has them; running and memory are from its last beat.
    """

    id: uuid.UUID
    hostname: str
    pid: int
    version: str
    queues: list[str]
    state: str
    seen_at: dt.datetime
    silent_seconds: float
    processes: int
    running_sync: int
    running_async: int
    memory_mb: float | None
    children_memory_mb: float | None
    holds: int


class XminHolder(NamedTuple):
    """What keeps dead rows from being removed: a transaction, prepared transaction, replication slot, or a standby.

    It is ``transactions`` old. ``seconds`` and ``state`` are None where this role may not see them, or nobody can.
    """

    kind: str
    pid: int | None
    name: str
    role: str | None
    state: str | None
    seconds: float | None
    transactions: int


class DatabaseHealth(NamedTuple):
    """How the server does; ``notify_queue`` is the used share of the queue of notifications, from 0 to 1.

    ``clock`` is the database's. Rows are those of horsies_tasks, as the server estimates them. ``xmin_holders`` has the oldest of
    each kind, the oldest of all first.
    """

    clock: dt.datetime
    version: str
    in_recovery: bool
    read_only: bool
    notify_queue: float
    connections: int
    max_connections: int
    live_rows: int
    dead_rows: int
    last_autovacuum: dt.datetime | None
    xmin_holders: list[XminHolder]


class ScheduleHealth(NamedTuple):
    """A schedule that is overdue or has an error; ``late_seconds`` is negative while its next fire time is still to come."""

    name: str
    late_seconds: float | None
    error: str | None


class HealthStore:
    """Runs the statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def bound(self, seconds: float) -> None:
        """Let each further statement of this session take no longer than ``seconds``."""
        run(self.connection, "monitoring/bounds", {"timeout_ms": round(seconds * 1000)})

    def database(self) -> DatabaseHealth:
        """Return how the server does."""
        ((*server,),) = run(self.connection, "monitoring/database")
        holders = [XminHolder(*row) for row in run(self.connection, "monitoring/xmin")]
        return DatabaseHealth._make([*server, sorted(holders, key=lambda holder: -holder.transactions)])

    def workers(self, threshold: dt.timedelta) -> list[WorkerHealth]:
        """Return the workers that are there, or ended lately; stale are those silent for longer than ``threshold``."""
        rows = run(self.connection, "monitoring/workers", {"threshold": threshold, "recent": RECENT, "many": WORKERS})
        return [found._replace(queues=parsed(found.queues)) for found in (WorkerHealth(*row) for row in rows)]

    def schedules(self, late: dt.timedelta) -> list[ScheduleHealth]:
        """Return the schedules that are overdue by more than ``late``, and those whose last task could not be sent."""
        rows = run(self.connection, "monitoring/schedules", {"late": late, "many": SCHEDULES})
        return [ScheduleHealth(*row) for row in rows]

    def waits(self, queues: Iterable[str]) -> dict[str, float]:
        """Return for how many seconds the oldest due task of each queue waits; parked ones do not count."""
        return dict(run(self.connection, "monitoring/waits", {"names": list(queues)}))
