"""The state of queues, workers, schedules, tasks, workflows and the database at one moment."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from django.db import DatabaseError

from horsies_django import schedules
from horsies_django.conf import config
from horsies_django.core.counts import Total
from horsies_django.core.patterns import DAY
from horsies_django.core.queues import CLUSTER, PARTITION_LIMITS
from horsies_django.store.base import QUERY_CANCELED, Connection
from horsies_django.store.health import (
    MOST_WORKERS,
    Blocker,
    DatabaseHealth,
    FailingSchedule,
    HaltedRuns,
    HealthStore,
    LateRetention,
    RecordLoss,
    ScheduleHealth,
    UnknownTask,
    WorkerHealth,
)
from horsies_django.store.history import HistoryStore
from horsies_django.store.overviews import OverviewStore, QueueOverview
from horsies_django.store.retention import keys_of
from horsies_django.tasks import registry

LATE = dt.timedelta(minutes=1)  # a schedule that has been due for longer has no scheduler
# A round of retention begins every few minutes and usually ends soon, so a day is late.
RETENTION_LATE = dt.timedelta(days=1)
MISSED = dt.timedelta(hours=24)  # how long missed fire times are reported
LATELY = dt.timedelta(minutes=15)


class QueueHealth(NamedTuple):
    """A queue, or the cluster as ``*``.

    ``limit`` is the effective ``max_concurrency``, or None without a limit. ``pending`` counts the
    due tasks that wait, up to 10,000. ``oldest_seconds`` is how long the oldest of them has been
    waiting, or None if there is none. Tasks whose partition is at its limit do not count for it.
    ``workers`` counts the live workers of the queue. ``stopped`` counts the keys that failed tasks
    stop, up to 1,001, and ``stopped_seconds`` is how long the first has been stopped.
    ``partition_seconds`` is how long the oldest task has been waiting whose partition is at a limit
    that somebody has set; only the first 1,000 partitions are read.
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
    """The state of the system at one moment.

    ``complete`` is False if only the database and the blockers could be read, because the blockers
    kept the check from the tables. ``schedules`` has only those that are late or failing, or that
    missed fire times. ``clock_skew_seconds`` is how far the clock of this host is ahead of the
    database's. ``declared_schedules`` counts the schedules of this code that are not disabled, and
    ``schedules_kept_at`` is when a scheduler last had one of them in its code. ``lately`` and
    ``day`` count results by task in the last 15 minutes and 24 hours. ``late_retentions`` are the
    kinds of records that workers have not deleted completely for a day, although they are old
    enough.
    """

    complete: bool
    queues: list[QueueHealth]
    workers: list[WorkerHealth]
    database: DatabaseHealth
    clock_skew_seconds: float
    schedules: list[ScheduleHealth]
    lost: list[RecordLoss]
    blockers: Sequence[Blocker] = ()
    declared_schedules: int = 0
    schedules_kept_at: dt.datetime | None = None
    failing_schedules: Sequence[FailingSchedule] = ()
    unknown_tasks: Sequence[UnknownTask] = ()
    halted_runs: Sequence[HaltedRuns] = ()
    lately: Sequence[Total] = ()
    day: Sequence[Total] = ()
    late_retentions: Sequence[LateRetention] = ()

    def ago(self, seconds: float | None) -> dt.datetime | None:
        """Return the time ``seconds`` before the state was read, or None without seconds."""
        return None if seconds is None else self.database.clock - dt.timedelta(seconds=seconds)


def examine(connection: Connection) -> Health:
    """Read the state on the given connection, which is in autocommit mode.

    The modules of tasks are imported, because they declare schedules. Raises the errors of the
    driver.
    """
    store = HealthStore(connection)
    began = time.time()
    database = store.database()
    skew = round((began + time.time()) / 2 - database.clock.timestamp(), 3)

    try:
        return _whole(store, database, skew)
    except (psycopg.Error, DatabaseError) as error:
        code = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
        blockers = store.blockers(None) if code == QUERY_CANCELED else []
        if not blockers:
            raise
        return Health(False, [], [], database, skew, [], [], blockers)


def _whole(store: HealthStore, database: DatabaseHealth, skew: float) -> Health:
    """Read the complete state."""
    conf = config()
    history = HistoryStore(store.connection)

    # A younger transaction that locks tables may be a migration.
    blockers = store.blockers(dt.timedelta(seconds=5))
    threshold = dt.timedelta(milliseconds=conf.recovery.running_stale_threshold_ms)
    workers = store.workers(threshold)

    overviews = OverviewStore(store.connection).queues(
        None, claimed=not conf.prefetch_buffer, threshold=threshold
    )
    queues = _queues(store, overviews, workers)
    names = [queue.name for queue in queues if queue.name != CLUSTER]

    registry.autodiscover()
    in_code = sorted(
        one.name for one in schedules.declared() if one.definition.get("enabled", True)
    )
    declared, kept_at = store.kept_schedules(in_code) if in_code else (0, None)

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
        # At the end of the grace period an idle worker fails them, so they are reported before.
        unknown_tasks=store.unknown_tasks(
            names, dt.timedelta(milliseconds=conf.unknown_task_grace_ms / 2), threshold
        ),
        halted_runs=store.halted_runs(),
        lately=history.totals(LATELY),
        day=history.totals(DAY),
        late_retentions=store.late_retentions(
            keys_of(conf.retention.terminal_age, conf.retention.queue_ages), RETENTION_LATE
        ),
    )


def _queues(
    store: HealthStore, queues: Sequence[QueueOverview], workers: Sequence[WorkerHealth]
) -> list[QueueHealth]:
    """Return the health of queues.

    Silent workers do not count, even if they are not yet declared dead.
    """
    waits = store.waits(queue.name for queue in queues if queue.name != CLUSTER)
    stops = store.stopped(
        queue.name for queue in queues if queue.declared["partition_policy"] is not None
    )

    # Queues with a policy are left out: their limit is always 1.
    limited = [queue for queue in queues if queue.declared["partition_policy"] is None]
    parked = store.parked_waits(
        one.name
        for one in limited
        if any(one.effective[key] is not None for key in PARTITION_LIMITS)
    )

    found = []
    for queue in queues:
        name = queue.name
        most = queue.effective["max_concurrency"]

        living = sum(
            one.state == "living" and (name == CLUSTER or name in one.queues) for one in workers
        )
        if len(workers) == MOST_WORKERS:  # there may be more, which only the overview counts
            living = max(living, queue.workers)

        oldest = max(waits.values(), default=None) if name == CLUSTER else waits.get(name)
        stopped, stopped_seconds = stops.get(name, (0, None))
        found.append(
            QueueHealth(
                name,
                most,
                queue.running,
                queue.claimed,
                queue.pending,
                queue.pending_more,
                oldest,
                most == 0,
                living,
                stopped,
                stopped_seconds,
                parked.get(name),
            )
        )

    return found
