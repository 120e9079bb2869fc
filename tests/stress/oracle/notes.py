"""The tasks' own table: each run notes its start and its end by the database's clock, on a connection of its own, each at once.

A start is noted after the claim was committed and an end before the settle, so what is noted lies within what the queue counts:
an overlap in here is one that really happened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psutil
import psycopg
from django.db import connection

CREATE = """
CREATE UNLOGGED TABLE oracle_runs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  number int NOT NULL, task text NOT NULL, queue text NOT NULL, tenant text NOT NULL,
  worker_pid int NOT NULL, child_pid int NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz
) WITH (fillfactor = 60)
"""
PAGES = """
CREATE TABLE oracle_pages (page int PRIMARY KEY, version int NOT NULL);
INSERT INTO oracle_pages SELECT page, 0 FROM generate_series(0, 9) AS page
"""
START = """
INSERT INTO oracle_runs (number, task, queue, tenant, worker_pid, child_pid) VALUES (%s, %s, %s, %s, %s, %s) RETURNING id
"""
END = "UPDATE oracle_runs SET ended_at = clock_timestamp() WHERE id = %s"
mine = threading.local()


@contextmanager
def table() -> Iterator[None]:
    """Have the table meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS oracle_runs, oracle_pages")
        cursor.execute(CREATE)
        cursor.execute(PAGES)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE oracle_runs, oracle_pages")


@contextmanager
def noted(task: str, number: int, queue: str, tenant: str) -> Iterator[None]:
    """Note the start and the end of what is done meanwhile."""
    conn = connected()
    row = conn.execute(START, (number, task, queue, tenant, worker_pid(), os.getpid())).fetchone()
    assert row is not None
    yield
    conn.execute(END, row)


def seen_version(page: int) -> int:
    """Return the version of a page that is committed now."""
    row = connected().execute("SELECT version FROM oracle_pages WHERE page = %s", [page]).fetchone()
    assert row is not None
    return int(row[0])


def connected() -> psycopg.Connection[Any]:
    """Return this thread's connection."""
    if not hasattr(mine, "connection"):
        url = os.environ["DATABASE_URL"]  # not by Django, which opens none on a running loop
        mine.connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, application_name="oracle")
    return mine.connection  # type: ignore[no-any-return]


@cache
def worker_pid() -> int:
    """Return the process id of the worker that this child belongs to; a fork server may stand between the two."""
    return next((one.pid for one in psutil.Process().parents() if "horsies_worker" in one.cmdline()), 0)
