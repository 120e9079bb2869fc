"""The statements that read the state of queues, workers and the database.

They take no locks and write nothing.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from horsies_django.store.base import Store
from horsies_django.store.overviews import BOUND, PENDING_BOUND

MOST_PROBLEMS = 20  # the most problems of a kind that are returned
MOST_WORKERS = 500  # the most workers that are returned


class WorkerHealth(NamedTuple):
    """A worker.

    ``state`` is living, stopping, stale (no recent heartbeat), dead (declared dead by another
    worker) or stopped. ``holds`` is the number of its tasks in flight in the table of tasks. The
    numbers of running tasks and of ``ready`` processes, and the memory, are from its last
    heartbeat.
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
    ready: int
    age_seconds: float

    @property
    def up(self) -> bool:
        """True if the worker runs: it is living, or ends its tasks before it stops."""
        return self.state in ("living", "stopping")


class XminHolder(NamedTuple):
    """A cause why dead rows cannot be removed.

    It is a transaction, a prepared transaction, a replication slot or a standby. ``transactions``
    is its age. ``seconds`` and ``state`` are None if this role, or any role, cannot read them.
    """

    kind: str
    pid: int | None
    name: str
    role: str | None
    state: str | None
    seconds: float | None
    transactions: int


class DatabaseHealth(NamedTuple):
    """The state of the server.

    ``clock`` is the database's time. ``notify_queue`` is the used share of the notification queue,
    from 0 to 1. The numbers of rows are the server's estimates for horsies_tasks. ``xmin_holders``
    has the oldest of each kind, oldest first.
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


class Blocker(NamedTuple):
    """A transaction that blocks others on a table.

    It holds a lock in the ``mode``, or waits for one if ``granted`` is False. If it is prepared,
    ``pid`` is None and ``name`` is its identifier. ``seconds`` is None if this role cannot read its
    age.
    """

    pid: int | None
    name: str
    mode: str
    table: str
    granted: bool
    seconds: float | None


class ScheduleHealth(NamedTuple):
    """A schedule that is overdue, has an error or missed fire times in the last day.

    ``late_seconds`` is negative while its next fire time is still to come. ``missed_at`` is the
    time when a scheduler last recorded missed fire times.
    """

    name: str
    late_seconds: float | None
    error: str | None
    error_at: dt.datetime | None
    missed_at: dt.datetime | None


class FailingSchedule(NamedTuple):
    """A schedule whose last two tasks failed or expired, the first of the two at ``since``."""

    name: str
    task_name: str
    since: dt.datetime


class UnknownTask(NamedTuple):
    """Due tasks of a name that is unknown to all living workers of their queue.

    ``since`` is the due time of the first of them.
    """

    queue: str
    task_name: str
    many: int
    since: dt.datetime


class HaltedRuns(NamedTuple):
    """Runs of a workflow that continue only after an action of a person.

    ``reason`` is paused (by a failure), not undone, or gate (it times out soon). ``run`` is the id
    of the first run. ``since`` is when that happened to it or its gate began to wait, and ``until``
    the timeout of the gate.
    """

    reason: str
    name: str
    many: int
    run: uuid.UUID
    since: dt.datetime
    until: dt.datetime | None


class WaitingGates(NamedTuple):
    """Gates of a workflow that wait for a decision.

    ``run`` is the oldest of their runs, and ``number`` the number of the node in it.
    """

    workflow: str
    gate: str
    many: int
    run: uuid.UUID
    number: int


class RecordLoss(NamedTuple):
    """The last audit entry or snapshot of a worker that could not be written, and the error.

    ``kind`` is audit or snapshot. ``what`` is the action and subject of the entry, or the id of the
    worker.
    """

    kind: str
    what: str
    error: str
    seconds_ago: float


class LateRetention(NamedTuple):
    """A kind of record whose deletion is late, by its key in horsies_prunings.

    ``done_at`` is the last time when no old records of the kind were left.
    """

    key: str
    done_at: dt.datetime


class HealthStore(Store):
    """The statements about the state of workers, schedules, runs and the database."""

    def database(self) -> DatabaseHealth:
        ((*server,),) = self.run("monitoring/database")
        holders = [XminHolder(*row) for row in self.run("monitoring/xmin")]
        return DatabaseHealth._make(
            [*server, sorted(holders, key=lambda holder: -holder.transactions)]
        )

    def workers(self, threshold: dt.timedelta) -> list[WorkerHealth]:
        """Return the workers that are living or have ended in the last 10 minutes.

        Workers that sent no heartbeat for ``threshold`` are stale.
        """
        ended = dt.timedelta(minutes=10)
        params = {"threshold": threshold, "recent": ended, "many": MOST_WORKERS}
        return [WorkerHealth(*row) for row in self.run("monitoring/workers", **params)]

    def blockers(self, older: dt.timedelta | None) -> list[Blocker]:
        """Return the first transactions that block others on the tables.

        They are older than ``older``; None means of any age.
        """
        return [
            Blocker(*row)
            for row in self.run("monitoring/blockers", older=older, many=MOST_PROBLEMS)
        ]

    def schedules(self, late: dt.timedelta, missed: dt.timedelta) -> list[ScheduleHealth]:
        """Return the schedules with a problem.

        They are overdue by more than ``late``, could not send their last task, or missed fire times
        in the last ``missed``.
        """
        rows = self.run("monitoring/schedules", late=late, missed=missed, many=100)
        return [ScheduleHealth(*row) for row in rows]

    def kept_schedules(self, names: Iterable[str]) -> tuple[int, dt.datetime | None]:
        """Return how many of these schedules are enabled, and when one was last in the code.

        Schedules count that users have not disabled. The time is when a scheduler last had one of
        them in its code.
        """
        ((enabled, kept_at),) = self.run("monitoring/kept_schedules", names=list(names))
        return enabled, kept_at

    def failing_schedules(self) -> list[FailingSchedule]:
        """Return the schedules whose last two tasks failed, in the order of the failures."""
        return [
            FailingSchedule(*row)
            for row in self.run("horsies_failing_schedules", recent=1_000, many=MOST_PROBLEMS)
        ]

    def halted_runs(self) -> list[HaltedRuns]:
        """Return the runs that continue only after a person's action, by workflow and reason."""
        return [HaltedRuns(*row) for row in self.run("horsies_halted_runs", many=PENDING_BOUND)]

    def waiting_gates(self) -> list[WaitingGates]:
        """Return the gates that wait for a decision, by workflow and name, most frequent first."""
        return [WaitingGates(*row) for row in self.run("horsies_waiting_gates", many=PENDING_BOUND)]

    def unknown_tasks(
        self, queues: Iterable[str], grace: dt.timedelta, threshold: dt.timedelta
    ) -> list[UnknownTask]:
        """Return the due tasks that are unknown to all living workers of their queue.

        They have been due for longer than ``grace``. Workers without a heartbeat for ``threshold``
        do not count as living.
        """
        # ``many`` is the limit per lane and priority of a queue
        params = {"names": list(queues), "grace": grace, "threshold": threshold, "many": 100}
        return [UnknownTask(*row) for row in self.run("horsies_unknown_waiting", **params)]

    def parked_waits(self, queues: Iterable[str]) -> dict[str, float]:
        """Return how many seconds the oldest parked task of each queue has waited.

        Only the first partitions of a queue are read.
        """
        return dict(self.run("horsies_parked_waits", names=list(queues), many=BOUND))

    def lost(self) -> list[RecordLoss]:
        """Return the last audit entry and the last snapshot that were lost in the last hour."""
        return [
            RecordLoss(*row) for row in self.run("monitoring/lost", recent=dt.timedelta(hours=1))
        ]

    def late_retentions(self, keys: Iterable[str], late: dt.timedelta) -> list[LateRetention]:
        """Return the kinds of records that still had old records for the whole time ``late``.

        Only the kinds with these ``keys`` and the retentions by ``keep_result`` are checked.
        """
        rows = self.run("monitoring/retention", keys=list(keys), late=late, many=MOST_PROBLEMS)
        return [LateRetention(*row) for row in rows]

    def stopped(self, queues: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Return how many partitions of each queue are stopped, and for how many seconds the first.

        Failed tasks stop them. They are counted up to 1,001.
        """
        params = {"names": list(queues), "bound": BOUND}
        return {
            name: (many, seconds)
            for name, many, seconds in self.run("monitoring/stopped", **params)
        }

    def waits(self, queues: Iterable[str]) -> dict[str, float]:
        """Return how many seconds the oldest due task of each queue has waited.

        Parked tasks and tasks of paused runs do not count.
        """
        return dict(self.run("horsies_longest_waits", names=list(queues)))

    def fire_times(self) -> dict[str, float]:
        """Return the next fire time of each schedule that is not off, as an epoch in seconds."""
        return dict(self.run("monitoring/fire_times", many=1_000))

    def runs(self) -> dict[str, int]:
        """Return how many of the 10,000 oldest unfinished workflow runs have each status."""
        return dict(self.run("horsies_count_runs", bound=PENDING_BOUND))
