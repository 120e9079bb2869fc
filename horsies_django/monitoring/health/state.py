"""The state of queues, workers, schedules, tasks, workflows and the database at one moment."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from django.db import DatabaseError

from horsies_django import schedules
from horsies_django.conf import Config, config
from horsies_django.core.counts import Total
from horsies_django.core.queues import CLUSTER
from horsies_django.monitoring.history import totals
from horsies_django.monitoring.overview import QueueOverview
from horsies_django.store.base import Connection
from horsies_django.store.health import (
    Blocker,
    DatabaseHealth,
    FailingSchedule,
    HaltedRuns,
    HealthStore,
    LostRecord,
    ScheduleHealth,
    UnknownTask,
    WorkerHealth,
)
from horsies_django.store.overviews import OverviewStore
from horsies_django.tasks import registry

LATE = dt.timedelta(minutes=1)  # a schedule that is due for longer has no scheduler
MISSED = dt.timedelta(hours=24)  # how long it is told that fire times were missed
LATELY, DAY = dt.timedelta(minutes=15), dt.timedelta(hours=24)
CANCELLED = "57014"  # the SQLSTATE of a statement that took too long


class QueueHealth(NamedTuple):
    """A queue, or the cluster as ``*``. ``limit`` is the effective ``max_concurrency``, None without one.

    ``pending`` counts the due tasks that wait, up to 10,000. ``oldest_seconds`` is how long the oldest of them has been waiting,
    without those whose partition is at its limit; None if there is none. ``workers`` counts the live workers of the queue.
    ``stopped`` counts the keys that failed tasks stop, up to 1,001; ``stopped_seconds`` is for how long the first.
    ``partition_seconds`` is how long the oldest task has been waiting whose partition is at a limit that somebody set, among
    those of the first 1,000 partitions.
    """

    name: str
    limit: int | None
    running: int
    claimed: int
    pending: int
    pending_more: bool
    oldest_seconds: float | None
    paused: bool
    workers: int
    stopped: int
    stopped_seconds: float | None
    partition_seconds: float | None


class Health(NamedTuple):
    """The state at one moment; ``schedules`` has only those that are late or failing, or missed fire times.

    ``clock_skew_seconds`` is how far the clock of this host is ahead of the database's. ``complete`` is False if only the
    database and the blockers could be read, because these kept the check from the tables. ``declared_schedules`` counts those of
    this code that are not disabled, and ``schedules_kept_at`` is when a scheduler last had one of them in its code. ``lately``
    and ``day`` count results by task in the last 15 minutes and 24 hours.
    """

    complete: bool
    queues: list[QueueHealth]
    workers: list[WorkerHealth]
    database: DatabaseHealth
    clock_skew_seconds: float
    schedules: list[ScheduleHealth]
    lost: list[LostRecord]
    blockers: Sequence[Blocker] = ()
    declared_schedules: int = 0
    schedules_kept_at: dt.datetime | None = None
    failing_schedules: Sequence[FailingSchedule] = ()
    unknown_tasks: Sequence[UnknownTask] = ()
    halted_runs: Sequence[HaltedRuns] = ()
    lately: Sequence[Total] = ()
    day: Sequence[Total] = ()


def examine(connection: Connection) -> Health:
    """Read the state on the given connection, in autocommit mode. Raises the errors of the driver.

    It imports the modules of tasks, to know which schedules they declare.
    """
    store = HealthStore(connection)
    asked = time.time()
    database = store.database()
    skew = round((asked + time.time()) / 2 - database.clock.timestamp(), 3)
    try:
        return _whole(connection, database, skew)
    except (psycopg.Error, DatabaseError) as error:
        code = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
        blockers = store.blockers(None) if code == CANCELLED else []
        if not blockers:
            raise
        return Health(False, [], [], database, skew, [], [], blockers)


def _whole(connection: Connection, database: DatabaseHealth, skew: float) -> Health:
    """Read all that is to be known."""
    conf, store = config(), HealthStore(connection)
    blockers = store.blockers(dt.timedelta(seconds=5))  # a younger transaction that locks tables may be a migration
    threshold = dt.timedelta(milliseconds=conf.recovery.running_stale_threshold_ms)
    workers = store.workers(threshold)
    queues, names = _queues(connection, conf, workers)
    declared, kept_at = _kept(store)
    return Health(
        complete=True,
        queues=queues,
        workers=workers,
        database=database,
        clock_skew_seconds=skew,
        schedules=store.schedules(LATE, MISSED),
        lost=store.lost(),
        blockers=blockers,
        declared_schedules=declared,
        schedules_kept_at=kept_at,
        failing_schedules=store.failing_schedules(),
        unknown_tasks=store.unknown_tasks(names, dt.timedelta(milliseconds=conf.unknown_task_grace_ms), threshold),
        halted_runs=store.halted_runs(),
        lately=totals(connection, LATELY),
        day=totals(connection, DAY),
    )


def _kept(store: HealthStore) -> tuple[int, dt.datetime | None]:
    """Return how many schedules of this code are not disabled, and when a scheduler last had one of them in its code."""
    registry.autodiscover()
    names = {one.name for one in schedules.declared() if one.definition.get("enabled", True)}
    return store.kept_schedules(sorted(names)) if names else (0, None)


def _queues(connection: Connection, conf: Config, workers: list[WorkerHealth]) -> tuple[list[QueueHealth], list[str]]:
    """Return the queues, and the names of all but the cluster."""
    store = HealthStore(connection)
    queues = OverviewStore(connection).queues(None, claimed=not conf.prefetch_buffer)
    names = [queue.name for queue in queues if queue.name != CLUSTER]
    waits = store.waits(names)
    stops = store.stopped(queue.name for queue in queues if queue.declared["partition_policy"] is not None)
    parked = store.parked_waits(queue.name for queue in queues if _limits_partitions(queue))
    return [_queue(queue, waits, workers, stops, parked) for queue in queues], names


def _limits_partitions(queue: QueueOverview) -> bool:
    """Return whether somebody set a limit of partitions; that of 1, which a policy implies, does not count."""
    limits = queue.effective
    return queue.declared["partition_policy"] is None and any(
        limits[key] is not None for key in ("partition_max_concurrency", "partition_local_limit")
    )


def _queue(
    queue: QueueOverview,
    waits: dict[str, float],
    workers: list[WorkerHealth],
    stops: dict[str, tuple[int, float]],
    parked: dict[str, Any],
) -> QueueHealth:
    """Return the health of a queue. Silent workers do not count, even if they are not yet declared dead."""
    everywhere = queue.name == CLUSTER
    stopped, stopped_seconds = stops.get(queue.name, (0, None))
    return QueueHealth(
        name=queue.name,
        limit=queue.effective["max_concurrency"],
        running=queue.running,
        claimed=queue.claimed,
        pending=queue.pending,
        pending_more=queue.pending_more,
        oldest_seconds=max(waits.values(), default=None) if everywhere else waits.get(queue.name),
        paused=queue.effective["max_concurrency"] == 0,
        workers=sum(one.state == "living" and (everywhere or queue.name in one.queues) for one in workers),
        stopped=stopped,
        stopped_seconds=stopped_seconds,
        partition_seconds=parked.get(queue.name),
    )
