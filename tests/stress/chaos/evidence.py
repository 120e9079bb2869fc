"""What the database knows after a storm: rows, attempts, and what is left that should not be."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.stress.chaos.judge import Attempt, Row
from tests.stress.chaos.notes import Noted
from tests.stress.oracle.evidence import rows as found
from tests.stress.oracle.judge import Run

# Tasks of workflows have no number.
ROWS = """
SELECT id::text, coalesce((kwargs ->> 'number')::int, -1), status, error_code, coalesce(options -> 'retry' -> 'codes', '[]'),
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
PLACES = "SELECT id::text, task_name, queue_name, kwargs ->> 'tenant' FROM horsies_tasks"
PIDS = "SELECT id::text, pid FROM horsies_workers"
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
    return [Row(*row[:4], tuple(as_list(row[4])), *row[5:]) for row in found(ROWS.format(condition), *params)]


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


def oracle_runs(
    noted: Iterable[Noted], tried: Mapping[str, Sequence[Attempt]], numbers: Mapping[str, int]
) -> list[Run]:
    """Return the runs as the oracle of caps knows them; the last digits of a run's number are its attempt."""
    closed = {(one.task, one.attempt): one for its in tried.values() for one in its}
    places = {row[0]: row[1:] for row in found(PLACES)}
    pids = dict(found(PIDS))
    made = []
    for run in noted:
        one = closed.get((run.task, run.attempt))
        if one is None or run.task not in places:
            continue  # a violation of its own
        name, queue, tenant = places[run.task]
        number = numbers[run.task] * 100 + run.attempt
        made.append(
            Run(number, name, queue, tenant, one.worker, pids.get(one.worker, 0), run.pid, one.started_at, run.began,
                run.ended, one.finished_at)
        )  # fmt: skip
    return made
