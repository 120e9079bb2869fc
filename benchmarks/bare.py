"""The limits of PostgreSQL and the machine for a durable queue: a bare worker without a queue.

*Lone task*: an INSERT that notifies, a worker that claims by one UPDATE, another process that
reports when it got the task, and one UPDATE that settles and notifies the waiter. It is measured as
in ``latency``, but no task is validated, limited, fenced or recorded beside the row. *Drain*: one
connection settles a batch and claims the next one in a single statement, and no process runs the
tasks. The table has the columns, indexes and checks of that of the tasks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from django.db import connection as project

from benchmarks.figures import Case, Goal, Reading
from benchmarks.latency import pace, percentiles
from benchmarks.load.bare_worker import CLAIM, SETTLE
from horsies_django.store.notify import direct_connection

SENDS = 1_000
PAUSE_SECONDS = 0.02
BATCHES = (4, 200)
DRAINED = 20_000
GOALS: tuple[Goal, ...] = ()
SEND = """
WITH sent AS (
  INSERT INTO horsies_bare (id, task_name, queue_name, lane, kwargs)
  VALUES (%s, 'bare', 'default', 'sync', '{"n": 1}') RETURNING id)
SELECT pg_notify('horsies_bare', '') FROM sent
"""
ROUND = f"WITH settled AS ({SETTLE}), claimed AS ({CLAIM}) SELECT array_agg(id) FROM claimed"
FILL = """
INSERT INTO horsies_bare (id, task_name, queue_name, lane, kwargs)
SELECT md5(n::text)::uuid, 'bare', 'default', 'sync', '{"n": 1}' FROM generate_series(1, %s) AS n
"""


def cases(scale: float) -> Sequence[Case]:
    """Return the lone task, and a drain for each size of batches."""
    return [
        Case("bare lone task", partial(lone_task, max(10, round(SENDS * scale)))),
        *(
            Case(f"bare drain of {many}", partial(drain, many, max(400, round(DRAINED * scale))))
            for many in BATCHES
        ),
    ]


def lone_task(n: int) -> list[Reading]:
    """Send one task at a time to an idle bare worker, and wait for it."""
    starts = []
    results = []

    with table(), connected() as sender, connected() as waiter:
        waiter.execute("LISTEN horsies_bare_done")
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.bare_worker", os.environ["DATABASE_URL"]],
            stdin=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            sender.execute(SEND, [uuid.uuid4()])
            heard(waiter)

            for _ in pace(n, PAUSE_SECONDS):
                sender.execute(SEND, [uuid.uuid4()])
                committed = time.time()
                (began,) = heard(waiter)
                results.append(time.time() - committed)
                starts.append(float(began) - committed)
            process.stdin.close()

    return [
        *percentiles("bare lone task, commit to user code", starts),
        *percentiles("bare lone task, commit to result", results),
    ]


def heard(connection: psycopg.Connection[Any]) -> list[str]:
    """Wait for a notification and return its payload. Raises RuntimeError after a minute."""
    if not (payloads := [told.payload for told in connection.notifies(timeout=60, stop_after=1)]):
        raise RuntimeError("the bare worker does not answer")
    return payloads


def drain(many: int, n: int) -> list[Reading]:
    """Settle and claim ``n`` tasks in batches on one connection."""
    with table(), connected() as worker:
        worker.execute(FILL, [n])
        worker.execute("VACUUM ANALYZE horsies_bare")
        worker.execute("CHECKPOINT")

        asked: dict[str, Any] = {"worker": uuid.uuid4(), "many": many, "ids": []}
        began = time.perf_counter()
        while asked["ids"] is not None:
            ((asked["ids"],),) = worker.execute(ROUND, asked).fetchall()
        seconds = time.perf_counter() - began

    return [Reading(f"bare drain, one connection, batches of {many}", n / seconds, "tasks/s")]


@contextmanager
def table() -> Iterator[None]:
    """Create an empty table like that of the tasks for the block."""
    with project.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS horsies_bare")  # of a run that was interrupted
        cursor.execute("CREATE TABLE horsies_bare (LIKE horsies_tasks INCLUDING ALL)")

        try:
            yield
        finally:
            cursor.execute("DROP TABLE horsies_bare")


@contextmanager
def connected() -> Iterator[psycopg.Connection[Any]]:
    """Open a connection whose statements are prepared."""
    connection = direct_connection("default", application_name="horsies benchmark", prepare=True)
    try:
        yield connection
    finally:
        connection.close()
