"""The state of queues, workers and the database, and the problems in it. Only reads, without locks."""

from __future__ import annotations

import datetime as dt
import enum
import time
from collections.abc import Iterator
from typing import NamedTuple

from horsies_django.conf import config
from horsies_django.core.queues import CLUSTER
from horsies_django.monitoring.overview import QueueOverview
from horsies_django.store.base import Connection
from horsies_django.store.health import (
    DatabaseHealth,
    HealthStore,
    LostRecord,
    ScheduleHealth,
    WorkerHealth,
    XminHolder,
)
from horsies_django.store.overviews import OverviewStore

__all__ = [
    "DatabaseHealth",
    "Health",
    "LostRecord",
    "Problem",
    "ProblemCode",
    "QueueHealth",
    "ScheduleHealth",
    "WorkerHealth",
    "XminHolder",
    "examine",
    "problems",
]

LATE = dt.timedelta(minutes=1)  # a schedule that is due for longer has no scheduler
XMIN_SECONDS = 3_600.0
XMIN_LEAST = 1_000  # fewer transactions leave too few dead rows to matter


class QueueHealth(NamedTuple):
    """A queue, or the cluster as ``*``.

    ``pending`` counts the due tasks that wait, up to 10,000. ``oldest_seconds`` is how long the oldest of them has been waiting,
    without those whose partition is at its limit; None if there is none. ``workers`` counts the live workers of the queue.
    ``stopped`` counts the keys that failed tasks stop, up to 1,001; ``stopped_seconds`` is for how long the first.
    """

    name: str
    running: int
    claimed: int
    pending: int
    pending_more: bool
    oldest_seconds: float | None
    paused: bool
    workers: int
    stopped: int
    stopped_seconds: float | None


class Health(NamedTuple):
    """The state at one moment; ``schedules`` has only those that are late or failing.

    ``clock_skew_seconds`` is how far the clock of this host is ahead of the database's.
    """

    queues: list[QueueHealth]
    workers: list[WorkerHealth]
    database: DatabaseHealth
    clock_skew_seconds: float
    schedules: list[ScheduleHealth]
    lost: list[LostRecord]


class ProblemCode(enum.StrEnum):
    """Kinds of problems; the names are stable."""

    READ_ONLY = "READ_ONLY"
    NOTIFY_QUEUE = "NOTIFY_QUEUE"
    CONNECTIONS = "CONNECTIONS"
    XMIN_HELD = "XMIN_HELD"
    STALE_WORKER = "STALE_WORKER"
    NO_LIVING_WORKER = "NO_LIVING_WORKER"
    WAITS_TOO_LONG = "WAITS_TOO_LONG"
    ORDER_STOPPED = "ORDER_STOPPED"
    SCHEDULE_LATE = "SCHEDULE_LATE"
    SCHEDULE_FAILS = "SCHEDULE_FAILS"
    RECORD_LOST = "RECORD_LOST"


class Problem(NamedTuple):
    """A problem that needs attention: ``code`` is for programs, ``text`` says what is wrong and what to do."""

    code: ProblemCode
    text: str


def examine(connection: Connection) -> Health:
    """Read the state on the given connection. Raises the errors of the driver."""
    conf, store = config(), HealthStore(connection)
    asked = time.time()
    database = store.database()
    skew = (asked + time.time()) / 2 - database.clock.timestamp()
    workers = store.workers(dt.timedelta(milliseconds=conf.recovery.running_stale_threshold_ms))
    queues = OverviewStore(connection).queues(None, claimed=not conf.prefetch_buffer)
    waits = store.waits(queue.name for queue in queues if queue.name != CLUSTER)
    stops = store.stopped(queue.name for queue in queues if queue.declared["partition_policy"] is not None)
    found = [_queue(queue, waits, workers, stops) for queue in queues]
    return Health(found, workers, database, round(skew, 3), store.schedules(LATE), store.lost())


def _queue(
    queue: QueueOverview, waits: dict[str, float], workers: list[WorkerHealth], stops: dict[str, tuple[int, float]]
) -> QueueHealth:
    """Return the health of a queue. Silent workers do not count, even if they are not yet declared dead."""
    everywhere = queue.name == CLUSTER
    stopped, stopped_seconds = stops.get(queue.name, (0, None))
    return QueueHealth(
        name=queue.name,
        running=queue.running,
        claimed=queue.claimed,
        pending=queue.pending,
        pending_more=queue.pending_more,
        oldest_seconds=max(waits.values(), default=None) if everywhere else waits.get(queue.name),
        paused=queue.effective["max_concurrency"] == 0,
        workers=sum(one.state == "living" and (everywhere or queue.name in one.queues) for one in workers),
        stopped=stopped,
        stopped_seconds=stopped_seconds,
    )


def problems(health: Health, *, max_wait_seconds: float | None = None) -> list[Problem]:
    """Return the problems, those of the database first; [] if there are none.

    A due task that has been waiting longer than ``max_wait_seconds`` is a problem, unless its queue is paused.
    """
    return [
        *_of_database(health.database),
        *_of_workers(health.workers),
        *_of_queues(health.queues, max_wait_seconds),
        *_of_schedules(health.schedules),
        *_of_records(health.lost),
    ]


def _of_database(database: DatabaseHealth) -> Iterator[Problem]:
    if database.read_only:
        yield Problem(
            ProblemCode.READ_ONLY,
            "the database is read-only, "
            + ("because it is a replica" if database.in_recovery else "by default_transaction_read_only")
            + ": no task can be sent, claimed or finished. Point DATABASES to the primary, or make the database writable",
        )
    # Of the notification queue; when it is full, transactions that send tasks cannot commit
    if database.notify_queue > 0.5:
        yield Problem(
            ProblemCode.NOTIFY_QUEUE,
            f"PostgreSQL's notification queue is {database.notify_queue:.0%} full; when it is full, transactions that send tasks "
            "cannot commit. A listening session has a transaction open: find the oldest one in pg_stat_activity and end it",
        )
    if database.connections > 0.9 * database.max_connections:
        yield Problem(
            ProblemCode.CONNECTIONS,
            f"{database.connections} of {database.max_connections} connections are in use: soon workers and sites "
            "cannot connect. Lower --threads, CONN_MAX_AGE and CHILD_CONN_MAX_AGE, pool connections, or raise max_connections",
        )
    for holder in database.xmin_holders:
        if _holds_too_long(holder):
            yield Problem(
                ProblemCode.XMIN_HELD,
                f"{named(holder)} has kept dead rows from being removed for {_age(holder)}: claims slow down. {_remedy(holder)}",
            )


def _holds_too_long(holder: XminHolder) -> bool:
    if holder.seconds is None:
        return holder.transactions > 10_000_000  # the limit if the role cannot see the start time
    return holder.seconds > XMIN_SECONDS and holder.transactions > XMIN_LEAST


def named(holder: XminHolder) -> str:
    """Return the name of an xmin holder."""
    who = f"{holder.kind} {holder.name!r}" if holder.name else f"a {holder.kind} without a name"
    return who + (f" of process {holder.pid}" if holder.pid else "")


def _age(holder: XminHolder) -> str:
    transactions = f"{holder.transactions:,} transactions"
    return transactions if holder.seconds is None else f"{holder.seconds / 60:,.0f} minutes, {transactions}"


def _remedy(holder: XminHolder) -> str:
    if holder.kind == "prepared transaction":
        return "If it is abandoned, run ROLLBACK PREPARED"
    if holder.kind == "replication slot":
        return "If its replica no longer exists, call pg_drop_replication_slot"
    if holder.kind == "standby":
        return "A query on the replica holds it (hot_standby_feedback): end that query there"
    return f"If its work may be lost, run SELECT pg_terminate_backend({holder.pid})"


def _of_workers(workers: list[WorkerHealth]) -> Iterator[Problem]:
    for worker in workers:
        if worker.holds and worker.state != "living":
            yield Problem(
                ProblemCode.STALE_WORKER,
                f"worker {worker.hostname}:{worker.pid} is {worker.state}, was last seen {worker.silent_seconds:,.0f} s ago, and "
                f"holds {_tasks(worker.holds)}. Any live worker recovers them: start one, or see in its log why it does not",
            )


def _of_queues(queues: list[QueueHealth], max_wait_seconds: float | None) -> Iterator[Problem]:
    if any(queue.name == CLUSTER and queue.paused for queue in queues):
        return
    for queue in queues:
        if queue.name == CLUSTER or queue.paused:
            continue
        if queue.pending and not queue.workers:
            count = f"more than {queue.pending:,} tasks" if queue.pending_more else _tasks(queue.pending)
            yield Problem(
                ProblemCode.NO_LIVING_WORKER,
                f"queue {queue.name} has {count} due and no live worker: start one that serves it, as in "
                f"'manage.py horsies_worker --queues={queue.name}'",
            )
        if max_wait_seconds is not None and (queue.oldest_seconds or 0) > max_wait_seconds:
            yield Problem(
                ProblemCode.WAITS_TOO_LONG,
                f"a due task of queue {queue.name} has been waiting for {queue.oldest_seconds:,.0f} s, longer than "
                f"{max_wait_seconds:g} s: start more workers, or raise the limit that holds it back; "
                "'manage.py horsies_explain ID' shows the reason",
            )
        if queue.stopped:
            count = "more than 1,000" if queue.stopped > 1_000 else str(queue.stopped)
            yield Problem(
                ProblemCode.ORDER_STOPPED,
                f"failed tasks stop {count} key{'s' * (queue.stopped > 1)} of queue {queue.name}, the first for "
                f"{queue.stopped_seconds:,.0f} s: retry or skip them; 'manage.py horsies_queue show {queue.name}' lists them",
            )


def _of_schedules(schedules: list[ScheduleHealth]) -> Iterator[Problem]:
    late = [one for one in schedules if (one.late_seconds or 0) > LATE.total_seconds()]
    if late:
        others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        yield Problem(
            ProblemCode.SCHEDULE_LATE,
            f"the schedule {late[0].name!r}{others} is overdue by {late[0].late_seconds:,.0f} s: start "
            "'manage.py horsies_scheduler' or a worker with --with-scheduler, or read in its log why it does not send it",
        )
    for one in schedules:
        if one.error is not None:
            yield Problem(
                ProblemCode.SCHEDULE_FAILS,
                f"the schedule {one.name!r} could not send its task: {one.error}. Correct it in the code or in the admin",
            )


def _of_records(lost: list[LostRecord]) -> Iterator[Problem]:
    for one in lost:
        what = f"the audit entry {one.what!r}" if one.kind == "audit" else f"a snapshot of worker {one.what}"
        yield Problem(
            ProblemCode.RECORD_LOST,
            f"{what} could not be written {one.seconds_ago:,.0f} s ago: {one.error}. What it records was done; the log has more",
        )


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count:,} tasks"
