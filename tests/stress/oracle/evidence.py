"""What the database knows after a storm: the runs, the limits over time, and what is left that should not be."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connection

from horsies_django.models import AuditEntry, Queue
from tests.stress.oracle.judge import Chronicle, Run
from tests.stress.oracle.usage import Hold

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
RUNS = """
SELECT r.number, r.task, r.queue, r.tenant, coalesce(a.worker_id::text, ''), r.worker_pid, r.child_pid,
       extract(epoch FROM a.started_at)::float8, extract(epoch FROM r.started_at)::float8,
       extract(epoch FROM r.ended_at)::float8, extract(epoch FROM a.finished_at)::float8, extract(epoch FROM t.sent_at)::float8
FROM oracle_runs r
JOIN horsies_tasks t ON (t.kwargs ->> 'number')::int = r.number
LEFT JOIN LATERAL (
  SELECT * FROM horsies_task_attempts a WHERE a.task_id = t.id ORDER BY a.started_at > r.started_at, a.started_at DESC LIMIT 1
) AS a ON true
ORDER BY r.started_at
"""
HELD = """
SELECT t.queue_name, a.worker_id, extract(epoch FROM a.started_at)::float8, extract(epoch FROM a.finished_at)::float8
FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id
"""
WAITED = """
SELECT t.queue_name, extract(epoch FROM t.enqueued_at)::float8, extract(epoch FROM min(a.started_at))::float8
FROM horsies_tasks t JOIN horsies_task_attempts a ON a.task_id = t.id WHERE t.lane = 'async' GROUP BY t.id
"""
UNFINISHED = """
SELECT (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND NOT parked)
     + (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND parked)
     + (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NOT NULL AND finished_at IS NULL)
"""
STUCK = """
SELECT queue_name, status, parked, count(*) FROM horsies_tasks WHERE finished_at IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
DEAD_HOLDERS = """
SELECT t.queue_name, count(*) FROM horsies_tasks t LEFT JOIN horsies_heartbeats b ON b.id = t.claimed_by
WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND (b.id IS NULL OR b.died_at IS NOT NULL) GROUP BY 1
"""
ENDINGS = "SELECT status, coalesce(error_code, ''), count(*) FROM horsies_tasks GROUP BY 1, 2"
UNNOTED = """
SELECT count(*) FROM horsies_tasks t WHERE t.status = 'COMPLETED' AND t.task_name IN ('work', 'awork')
AND NOT EXISTS (SELECT FROM oracle_runs r WHERE r.number = (t.kwargs ->> 'number')::int AND r.ended_at IS NOT NULL)
"""
STOPPED = """
SELECT horsies_skip_stopped('line', NULL, t.partition_key::json, NULL, 'storm', 'it goes on', horsies_channel())
FROM horsies_tasks t WHERE t.queue_name = 'line' AND t.order_stop = 'stop'
"""
ANSWERS = """
WITH RECURSIVE answer AS (
  SELECT t.id, t.merged_into, t.status, t.result FROM horsies_tasks t WHERE t.queue_name = 'same'
  UNION ALL
  SELECT a.id, t.merged_into, t.status, t.result FROM answer a JOIN horsies_tasks t ON t.id = a.merged_into
)
SELECT a.id, (a.result ->> 'ok')::int FROM answer a WHERE a.merged_into IS NULL AND a.status = 'COMPLETED'
"""
TWINS = """
SELECT one.id, other.id FROM horsies_tasks one JOIN horsies_tasks other
  ON other.task_name = 'single' AND other.kwargs ->> 'page' = one.kwargs ->> 'page' AND other.id > one.id
  AND other.sent_at < one.finished_at
WHERE one.task_name = 'single'
"""
LIVING = """
SELECT count(*) FROM horsies_heartbeats b JOIN horsies_workers w ON w.id = b.id
WHERE b.role = 'claimer' AND b.died_at IS NULL AND w.stopped_at IS NULL AND b.sent_at > clock_timestamp() - interval '3 s'
"""


def steady(ask: Callable[[], T]) -> T:
    """Ask the database until it answers: it goes away now and then. Raises OperationalError when it stays away."""
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
    """Return what a query finds."""
    with connection.cursor() as cursor:
        cursor.execute(query, params)
        return cursor.fetchall()


def clock() -> float:
    """Return the moment by the database's clock."""
    return float(rows("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])


def unfinished() -> int:
    """Return how many tasks are not finished, at a cost that does not grow with those that are."""
    return int(rows(UNFINISHED)[0][0])


def runs() -> tuple[list[Run], list[str]]:
    """Return the noted runs, and what is wrong with those that no attempt was closed for."""
    found, orphans = [], []
    for row in rows(RUNS):
        if row[7] is None:
            orphans.append(f"task {row[0]} ran, and has no closed attempt")
        else:
            found.append(Run(*row))
    return found, orphans


def held() -> list[Hold]:
    """Return which attempts held a permit of which queue, by the queue's own records."""
    return [Hold(*row) for row in rows(HELD)]


def waited() -> dict[str, list[tuple[float, float]]]:
    """Return from when to when the async tasks of each queue waited: there are slots enough for those."""
    spans = defaultdict(list)
    for queue, start, end in rows(WAITED):
        spans[queue].append((start, end))
    return spans


def go_on() -> int:
    """Skip the failed tasks that stop partitions; return how many."""
    return len(rows(STOPPED))


def unseen(sent: Mapping[uuid.UUID, int]) -> list[str]:
    """Return what was sent with a change of a page that no run saw. Those whose run crashed do not count."""
    return [
        f"task {id_} was sent with version {sent[id_]}; the run that answers it saw {version}"
        for id_, version in rows(ANSWERS)
        if version < sent[id_]
    ]


def ended_with(code: str) -> int:
    """Return how many tasks ended with an error code."""
    return int(rows("SELECT count(*) FROM horsies_tasks WHERE error_code = %s", code)[0][0])


def twins() -> list[str]:
    """Return unique tasks that were sent while another one was the same work."""
    return [f"unique task {other} was sent while task {one} had not finished" for one, other in rows(TWINS)]


def first_rows() -> dict[str, dict[str, Any]]:
    """Return the rows of the queues as they are now."""
    return {row["name"]: row for row in Queue.objects.values()}


def last_change() -> uuid.UUID:
    """Return the id of the last change in the audit."""
    return AuditEntry.objects.order_by("-id").values_list("id", flat=True).first() or uuid.UUID(int=0)


def chronicles(first: Mapping[str, Mapping[str, Any]], after: uuid.UUID) -> dict[str, Chronicle]:
    """Return what became of the queues' ``first`` rows by the changes ``after`` the one with that id."""
    changes = defaultdict(list)
    for entry in AuditEntry.objects.filter(id__gt=after, subject__in=list(first)).order_by("at", "id"):
        changes[entry.subject].append((epoch(entry.at), entry.after or {}))
    return {name: Chronicle(row, changes[name]) for name, row in first.items()}


def epoch(at: dt.datetime) -> float:
    """Return a moment in seconds, as the queries above give them."""
    return at.timestamp()


def leaks(sent: int, workers: int) -> list[str]:
    """Return what is left behind once everything should be over: permits, tasks, workers that are missing."""
    found = [f"{there} of {workers} workers are there"] if (there := living()) != workers else []
    found += [f"{count} permit(s) of {queue} are held by the dead" for queue, count in rows(DEAD_HOLDERS)]
    found += [
        f"{count} task(s) of {queue} are {status}{', parked' if parked else ''}"
        for queue, status, parked, count in rows(STUCK)
    ]
    endings = {(status, code): count for status, code, count in rows(ENDINGS)}
    if sum(endings.values()) != sent:
        found.append(f"{sent} tasks were sent, there are {sum(endings.values())}")
    known = {("COMPLETED", ""), ("FAILED", "WORKER_CRASHED"), ("CANCELLED", "MERGED"), ("CANCELLED", "ORDER_CANCELLED")}
    found += [f"{count} task(s) ended {' '.join(end)}" for end, count in endings.items() if end not in known]
    if unnoted := rows(UNNOTED)[0][0]:
        found.append(f"{unnoted} task(s) are COMPLETED and noted no end")
    return found


def living() -> int:
    """Return how many workers are there; one that was just killed counts until it is known to be dead."""
    return int(rows(LIVING)[0][0])
