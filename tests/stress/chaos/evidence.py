"""The evidence from the database: living workers, rows, attempts, limits, and leftovers."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connection

from horsies_django.models import AuditEntry, Queue
from tests.stress.chaos.judge import Attempt, Row
from tests.stress.chaos.notes import Noted
from tests.stress.oracle.judge import Chronicle, Run

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
UNFINISHED = """
SELECT (SELECT count(*) FROM horsies_tasks
        WHERE claimed_by IS NULL AND finished_at IS NULL AND NOT parked)
     + (SELECT count(*) FROM horsies_tasks
        WHERE claimed_by IS NULL AND finished_at IS NULL AND parked)
     + (SELECT count(*) FROM horsies_tasks
        WHERE claimed_by IS NOT NULL AND finished_at IS NULL)
"""
LIVING = """
SELECT count(*) FROM horsies_heartbeats b JOIN horsies_workers w ON w.id = b.id
WHERE b.role = 'claimer' AND b.died_at IS NULL AND w.stopped_at IS NULL
  AND b.sent_at > clock_timestamp() - interval '3 s'
"""
ROWS = """
SELECT id::text, coalesce((kwargs ->> 'number')::int, -1), task_name, queue_name,
       coalesce(kwargs ->> 'tenant', kwargs ->> 'page', ''), extract(epoch FROM sent_at)::float8,
       extract(epoch FROM enqueued_at)::float8, status, error_code,
       ARRAY(SELECT jsonb_array_elements_text(options -> 'retry' -> 'codes')),
       max_retries, retry_count, claim_generation, claimed_by::text,
       extract(epoch FROM good_until)::float8,
       extract(epoch FROM cancel_requested_at)::float8, extract(epoch FROM finished_at)::float8
FROM horsies_tasks WHERE {} ORDER BY id
"""
ATTEMPTS = """
SELECT task_id::text, attempt, claim_generation, outcome, will_retry, error_code,
       extract(epoch FROM started_at)::float8, extract(epoch FROM finished_at)::float8,
       worker_id::text, child_pid
FROM horsies_task_attempts WHERE {} ORDER BY task_id, attempt
"""
COUNTED = """
SELECT CASE WHEN result IN ('COMPLETED', 'RETRIED', 'CRASHED', 'CANCELLED', 'EXPIRED') THEN result
            ELSE 'FAILED' END,
       sum(n)
FROM horsies_history WHERE width = 3600 AND result <> 'CLAIMED' GROUP BY 1
"""
TICKS = """
SELECT schedule_name, extract(epoch FROM fire_at)::bigint, task_id::text FROM horsies_schedule_ticks
WHERE sent_at > to_timestamp(%s) AND sent_at <= to_timestamp(%s) ORDER BY fire_at
"""
DEAD = """
SELECT w.id::text FROM horsies_workers w LEFT JOIN horsies_heartbeats b ON b.id = w.id
WHERE b.id IS NULL OR b.died_at IS NOT NULL
"""
LEFT = """
SELECT 'the heartbeat of worker process ' || pid FROM horsies_heartbeats
          WHERE role = 'claimer' AND died_at IS NULL
UNION ALL SELECT 'the heartbeat of child ' || c.pid FROM horsies_heartbeats c
          WHERE c.role = 'runner'
            AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = c.worker_id)
UNION ALL SELECT 'a waiter, for longer than the minute that is its due' FROM horsies_waiters
          WHERE expires_at > clock_timestamp() + interval '90 s'
             OR expires_at < clock_timestamp() - interval '2 h'
UNION ALL SELECT 'a parked task' FROM horsies_tasks WHERE parked
UNION ALL SELECT 'an advisory lock of process ' || pid FROM pg_locks WHERE locktype = 'advisory'
"""


def steady(ask: Callable[[], T]) -> T:
    """Run a query until the database answers: it is down at times.

    Raises OperationalError if it stays down.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > until:
                raise
            threading.Event().wait(PAUSE_SECONDS)


def rows(query: str, *params: Any) -> list[Any]:
    """Return the rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, params)
        return cursor.fetchall()


def clock() -> float:
    """Return the time by the database's clock."""
    return float(rows("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])


def unfinished() -> int:
    """Return the number of unfinished tasks, at a cost that does not grow with finished ones."""
    return int(rows(UNFINISHED)[0][0])


def from_now_on() -> Callable[[], dict[str, Chronicle]]:
    """Return a function that returns the changes of the queues' limits since now."""
    first = {row["name"]: row for row in Queue.objects.values()}
    before = list(AuditEntry.objects.values_list("id", flat=True))

    def chronicles() -> dict[str, Chronicle]:
        changes = defaultdict(list)
        for entry in (
            AuditEntry.objects.exclude(id__in=before)
            .filter(subject__in=list(first))
            .order_by("at", "id")
        ):
            changes[entry.subject].append((entry.at.timestamp(), entry.after or {}))

        return {name: Chronicle(row, changes[name]) for name, row in first.items()}

    return chronicles


def living() -> int:
    """Return the number of living workers; a killed one counts until it is declared dead."""
    return int(rows(LIVING)[0][0])


def task_rows(condition: str = "true", *params: Any) -> list[Row]:
    """Return the tasks of the storm for which a condition is true."""
    return [Row(*row) for row in rows(ROWS.format(condition), *params)]


def attempts(condition: str = "true", *params: Any) -> dict[str, list[Attempt]]:
    """Return the attempts for which a condition is true by their tasks, in their order."""
    by_task = defaultdict(list)
    for row in rows(ATTEMPTS.format(condition), *params):
        by_task[row[0]].append(Attempt(*row))
    return by_task


def ticks(after: float, until: float) -> list[Any]:
    """Return the fire times of schedules for which tasks were sent between two moments."""
    return rows(TICKS, after, until)


def dead() -> set[str]:
    """Return the dead workers."""
    return {row[0] for row in rows(DEAD)}


def counted() -> dict[str, int]:
    """Return the counts of the history, with failures of all codes together."""
    return {kind: int(many) for kind, many in rows(COUNTED)}


def left_behind() -> list[str]:
    """Return the rows that the tables still hold although every worker has ended."""
    return [f"left behind: {row[0]}" for row in rows(LEFT)]


@dataclass
class Left:
    """The evidence of a storm.

    Rows, attempts by their tasks, runs by their notes, fire times, and the limits over time.
    """

    rows: Sequence[Row]
    attempts: Mapping[str, Sequence[Attempt]]
    noted: Sequence[Noted]
    ticks: Sequence[tuple[str, int, str]]
    chronicles: Mapping[str, Chronicle]

    @cached_property
    def tried(self) -> list[Attempt]:
        return [one for its in self.attempts.values() for one in its]

    @cached_property
    def runs(self) -> list[Run]:
        """Return the runs for the judge of limits.

        The last digits of a run's number are its attempt.
        """
        closed = {(one.task, one.attempt): one for one in self.tried}
        rows = {row.id: row for row in self.rows}
        return [
            Run(
                row.number * 100 + run.attempt,
                row.name,
                row.queue,
                row.tenant,
                one.worker,
                run.worker,
                run.pid,
                one.started_at,
                run.began,
                run.ended,
                one.finished_at,
                row.sent_at,
            )
            for run in self.noted
            # otherwise a violation of its own
            if (one := closed.get((run.task, run.attempt))) and (row := rows.get(run.task))
        ]
