"""What the database knows after a storm: rows, attempts, and what is left that should not be."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.stress.chaos.judge import Attempt, Row
from tests.stress.chaos.notes import Noted
from tests.stress.oracle.evidence import rows as found
from tests.stress.oracle.judge import Chronicle, Run

ROWS = """
SELECT id::text, coalesce((kwargs ->> 'number')::int, -1), task_name, queue_name,
       coalesce(kwargs ->> 'tenant', kwargs ->> 'page', ''), extract(epoch FROM sent_at)::float8,
       extract(epoch FROM enqueued_at)::float8, status, error_code, coalesce(options -> 'retry' -> 'codes', '[]'),
       max_retries, retry_count, claim_generation, claimed_by::text, extract(epoch FROM good_until)::float8,
       extract(epoch FROM cancel_requested_at)::float8, extract(epoch FROM finished_at)::float8
FROM horsies_tasks WHERE {} ORDER BY id
"""
ATTEMPTS = """
SELECT task_id::text, attempt, claim_generation, outcome, will_retry, error_code, extract(epoch FROM started_at)::float8,
       extract(epoch FROM finished_at)::float8, worker_id::text, child_pid
FROM horsies_task_attempts WHERE {} ORDER BY task_id, attempt
"""
COUNTED = """
SELECT CASE WHEN result IN ('COMPLETED', 'RETRIED', 'CRASHED', 'CANCELLED', 'EXPIRED') THEN result ELSE 'FAILED' END, sum(n)
FROM horsies_history WHERE width = 3600 AND result <> 'CLAIMED' GROUP BY 1
"""
DEAD = """
SELECT w.id::text FROM horsies_workers w LEFT JOIN horsies_heartbeats b ON b.id = w.id
WHERE b.id IS NULL OR b.died_at IS NOT NULL
"""
LEFT = """
SELECT 'the heartbeat of worker process ' || pid FROM horsies_heartbeats WHERE role = 'claimer' AND died_at IS NULL
UNION ALL SELECT 'the heartbeat of child ' || c.pid FROM horsies_heartbeats c
          WHERE c.role = 'runner' AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = c.worker_id)
UNION ALL SELECT 'a waiter, for longer than the minute that is its due' FROM horsies_waiters
          WHERE expires_at > clock_timestamp() + interval '90 s' OR expires_at < clock_timestamp() - interval '2 h'
UNION ALL SELECT 'a parked task' FROM horsies_tasks WHERE parked
UNION ALL SELECT 'an advisory lock of process ' || pid FROM pg_locks WHERE locktype = 'advisory'
"""


def task_rows(condition: str = "true", *params: Any) -> list[Row]:
    """Return the tasks of the storm for which a condition is true."""
    return [Row(*row[:9], tuple(as_list(row[9])), *row[10:]) for row in found(ROWS.format(condition), *params)]


def attempts(condition: str = "true", *params: Any) -> dict[str, list[Attempt]]:
    """Return the attempts for which a condition is true by their tasks, in their order."""
    by_task = defaultdict(list)
    for row in found(ATTEMPTS.format(condition), *params):
        by_task[row[0]].append(Attempt(*row))
    return by_task


def dead() -> set[str]:
    """Return the workers that do not live."""
    return {row[0] for row in found(DEAD)}


def counted() -> dict[str, int]:
    """Return what the history counts, failures under whatever code together."""
    return {kind: int(many) for kind, many in found(COUNTED)}


def left_behind() -> list[str]:
    """Return what the tables still hold although every worker has ended."""
    return [f"left behind: {row[0]}" for row in found(LEFT)]


def as_list(value: Any) -> Sequence[str]:
    """Return a value of a json column as the list that it is; Django's own cursors leave it as text."""
    return json.loads(value) if isinstance(value, str) else value


@dataclass
class Left:
    """What a storm left: rows, attempts by their tasks, runs by their own notes, and what became of the limits of the queues."""

    rows: Sequence[Row]
    attempts: Mapping[str, Sequence[Attempt]]
    noted: Sequence[Noted]
    chronicles: Mapping[str, Chronicle]

    @cached_property
    def tried(self) -> list[Attempt]:
        return [one for its in self.attempts.values() for one in its]

    @cached_property
    def runs(self) -> list[Run]:
        """Return the runs as the judge of limits knows them; the last digits of a run's number are its attempt."""
        closed = {(one.task, one.attempt): one for one in self.tried}
        rows = {row.id: row for row in self.rows}
        return [
            Run(row.number * 100 + run.attempt, row.name, row.queue, row.tenant, one.worker, run.worker, run.pid,
                one.started_at, run.began, run.ended, one.finished_at, row.sent_at)
            for run in self.noted
            if (one := closed.get((run.task, run.attempt))) and (row := rows.get(run.task))  # else a violation of its own
        ]  # fmt: skip
