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

MOST = 20  # of a kind of problems that are told
MOST_WORKERS = 500  # that are listed


class WorkerHealth(NamedTuple):
    """A worker. ``state``: living, stopping, stale (no recent heartbeat), dead (declared dead by
    another worker) or stopped.

    ``holds`` counts its tasks in flight in the table of tasks; running, memory and how many
    processes are ``ready`` are from its last heartbeat.
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
        """Whether it runs: it is living, or ends its tasks before it stops."""
        return self.state in ("living", "stopping")


class XminHolder(NamedTuple):
    """What keeps dead rows from being removed: a transaction, prepared transaction, replication
    slot, or standby.

    ``transactions`` is its age. ``seconds`` and ``state`` are None if this role, or any role,
    cannot see them.
    """

    kind: str
    pid: int | None
    name: str
    role: str | None
    state: str | None
    seconds: float | None
    transactions: int


class DatabaseHealth(NamedTuple):
    """The state of the server; ``notify_queue`` is the used share of the notification queue, from 0
    to 1.

    ``clock`` is the database's time. The numbers of rows are the server's estimates for
    horsies_tasks. ``xmin_holders`` has the oldest of each kind, oldest first.
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
    """A transaction that keeps others from a table: it holds a lock in that mode, or waits for one
    (``granted`` is False).

    ``pid`` is None, and ``name`` its identifier, if it is prepared. ``seconds`` is None if this
    role cannot see its age.
    """

    pid: int | None
    name: str
    mode: str
    table: str
    granted: bool
    seconds: float | None


class ScheduleHealth(NamedTuple):
    """A schedule that is overdue, has an error or missed fire times in the last day.

    ``late_seconds`` is negative while its next fire time is still to come. ``missed_at`` is when a
    scheduler last noticed.
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
    """Due tasks that no living worker of their queue knows; the first is due since ``since``."""

    queue: str
    task_name: str
    many: int
    since: dt.datetime


class HaltedRuns(NamedTuple):
    """Runs that go on only if somebody acts. ``reason``: paused (by a failure), not undone, or gate
    (it times out soon).

    ``run`` is the id of the first of them, ``since`` when that happened or its gate began to wait,
    ``until`` its timeout.
    """

    reason: str
    name: str
    many: int
    run: uuid.UUID
    since: dt.datetime
    until: dt.datetime | None


class WaitingGates(NamedTuple):
    """Gates of a workflow that wait for a decision: ``number`` is that of the node of the oldest of
    their runs.
    """

    workflow: str
    gate: str
    many: int
    run: uuid.UUID
    number: int


class LostRecord(NamedTuple):
    """The last audit entry or snapshot of a worker (``kind``: audit, snapshot) that could not be
    written, and why.

    ``what`` is the action and subject of the entry, or the id of the worker.
    """

    kind: str
    what: str
    error: str
    seconds_ago: float


class LateRetention(NamedTuple):
    """A kind of record, by its key in horsies_prunings, of which nothing was left to delete at
    ``done_at`` for the last time.
    """

    key: str
    done_at: dt.datetime


class HealthStore(Store):
    """Runs the statements on the given connection."""

    def database(self) -> DatabaseHealth:
        ((*server,),) = self.run("monitoring/database")
        holders = [XminHolder(*row) for row in self.run("monitoring/xmin")]
        return DatabaseHealth._make(
            [*server, sorted(holders, key=lambda holder: -holder.transactions)]
        )

    def workers(self, threshold: dt.timedelta) -> list[WorkerHealth]:
        """Return workers that are living or ended recently; stale ones sent no heartbeat for
        ``threshold``.
        """
        ended = dt.timedelta(minutes=10)  # not longer ago
        params = {"threshold": threshold, "recent": ended, "many": MOST_WORKERS}
        return [WorkerHealth(*row) for row in self.run("monitoring/workers", **params)]

    def blockers(self, older: dt.timedelta | None) -> list[Blocker]:
        """Return the first transactions that keep others from the tables, and are ``older`` than
        that; None: of any age.
        """
        return [Blocker(*row) for row in self.run("monitoring/blockers", older=older, many=MOST)]

    def schedules(self, late: dt.timedelta, missed: dt.timedelta) -> list[ScheduleHealth]:
        """Return the schedules that are overdue by more than ``late``, could not send their last
        task, or missed fire times.
        """
        rows = self.run("monitoring/schedules", late=late, missed=missed, many=100)
        return [ScheduleHealth(*row) for row in rows]

    def kept_schedules(self, names: Iterable[str]) -> tuple[int, dt.datetime | None]:
        """Return how many of the schedules users have not disabled, and when a scheduler last had
        one of them in its code.
        """
        ((enabled, kept_at),) = self.run("monitoring/kept_schedules", names=list(names))
        return enabled, kept_at

    def failing_schedules(self) -> list[FailingSchedule]:
        """Return the schedules whose last two tasks failed, the longest first."""
        return [
            FailingSchedule(*row)
            for row in self.run("horsies_failing_schedules", recent=1_000, many=MOST)
        ]

    def halted_runs(self) -> list[HaltedRuns]:
        """Return the runs that go on only if somebody acts, by workflow and reason."""
        return [HaltedRuns(*row) for row in self.run("horsies_halted_runs", many=PENDING_BOUND)]

    def waiting_gates(self) -> list[WaitingGates]:
        """Return the gates that wait for a decision, by workflow and name, the most first."""
        return [WaitingGates(*row) for row in self.run("horsies_waiting_gates", many=PENDING_BOUND)]

    def unknown_tasks(
        self, queues: Iterable[str], grace: dt.timedelta, threshold: dt.timedelta
    ) -> list[UnknownTask]:
        """Return the tasks that have been due for longer than ``grace`` and that no living worker
        of their queue knows.
        """
        # many: of each lane and priority of a queue
        params = {"names": list(queues), "grace": grace, "threshold": threshold, "many": 100}
        return [UnknownTask(*row) for row in self.run("horsies_unknown_waiting", **params)]

    def parked_waits(self, queues: Iterable[str]) -> dict[str, float]:
        """Return how many seconds the oldest parked task of each queue has waited, among those of
        its first partitions.
        """
        return dict(self.run("horsies_parked_waits", names=list(queues), many=BOUND))

    def lost(self) -> list[LostRecord]:
        """Return the audit entry and the snapshot that were lost last, if that was in the last
        hour.
        """
        return [
            LostRecord(*row) for row in self.run("monitoring/lost", recent=dt.timedelta(hours=1))
        ]

    def late_retentions(self, keys: Iterable[str], late: dt.timedelta) -> list[LateRetention]:
        """Return the retentions, of these ``keys`` and of tasks, that have not come to an end for
        ``late``.
        """
        rows = self.run("monitoring/retention", keys=list(keys), late=late, many=MOST)
        return [LateRetention(*row) for row in rows]

    def stopped(self, queues: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Return how many partitions of each queue failed tasks stop, up to 1,001, and for how many
        seconds the first.
        """
        params = {"names": list(queues), "bound": BOUND}
        return {
            name: (many, seconds)
            for name, many, seconds in self.run("monitoring/stopped", **params)
        }

    def waits(self, queues: Iterable[str]) -> dict[str, float]:
        """Return how many seconds the oldest due task of each queue has waited, without parked
        tasks and those of paused runs.
        """
        return dict(self.run("horsies_longest_waits", names=list(queues)))

    def fire_times(self) -> dict[str, float]:
        """Return when schedules fire next, as an epoch; those that are off have no such time."""
        return dict(self.run("monitoring/fire_times", many=1_000))

    def runs(self) -> dict[str, int]:
        """Return how many of the 10,000 oldest unfinished workflow runs have each status."""
        return dict(self.run("horsies_count_runs", bound=PENDING_BOUND))
