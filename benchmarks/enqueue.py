"""Enqueue: the cost of sends without workers, against the cost of the same rows in PostgreSQL."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import connection, transaction

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import empty_tables
from benchmarks.senders import senders
from horsies_django.tasks.ids import uuid7

SENDS = 2_000
BLOCK = 50
SENDERS = 8
SECONDS = 4.0
BULK = 100_000
SEND = "enqueue one by one, send"
INSERT = "enqueue one by one, bare INSERT"
JOINED = "enqueue in one transaction, send"
LOUD = "enqueue by 8 senders"
SILENT = "enqueue by 8 senders, without NOTIFY"
SEND_MANY = "enqueue in bulk, send_many"
COPY = "enqueue in bulk, COPY"
GOALS = (
    Goal("P7", SEND, 1.35, over=INSERT, at_most=True),
    Goal("P7", LOUD, 0.8, over=SILENT),
    Goal("P8", SEND_MANY, 70_000),
    Goal("P8", SEND_MANY, 0.35, over=COPY),
)
# The columns that a send writes. The values are those of a sent task, except for its id and its
# times.
COLUMNS = (
    "id, task_name, queue_name, lane, priority, kwargs, good_until, partition_key, "
    "partition_version, max_retries, options, "
    "sent_at, enqueued_at"
)
BARE = f"INSERT INTO horsies_tasks ({COLUMNS}) VALUES ({'%s, ' * 11}clock_timestamp(), now())"
ONE_ROW = (
    "SELECT task_name, queue_name, lane, priority, kwargs::text, good_until, partition_key, "
    "partition_version, max_retries, "
    "options::text FROM horsies_tasks WHERE id = %s"
)


def cases(scale: float) -> Sequence[Case]:
    """Return the three ways to send: one by one, from many processes, in bulk."""
    return [
        Case("enqueue one by one", partial(one_by_one, max(4, round(SENDS * scale)))),
        Case(LOUD, partial(by_many, max(0.2, SECONDS * scale))),
        Case("enqueue in bulk", partial(in_bulk, max(100, round(BULK * scale)))),
    ]


def one_by_one(n: int) -> list[Reading]:
    """Send, and insert the same row by hand, in turns: blocks of each, one commit a row.

    Then send in a single transaction.
    """
    empty_tables()
    sends: list[float] = []
    inserts: list[float] = []
    handle = tasks.noop.send(0)

    with connection.cursor() as cursor:
        cursor.execute(ONE_ROW, [handle.task_id])
        row = cursor.fetchone()

        def insert(id_: Any) -> None:
            cursor.execute(BARE, [id_, *row])

        for start in range(0, n, BLOCK):
            numbers = range(start, min(start + BLOCK, n))
            sends += timed(tasks.noop.send, numbers)
            inserts += timed(insert, [uuid7() for _ in numbers])

    with transaction.atomic():
        joined = timed(tasks.noop.send, range(n))

    found = {SEND: sends, INSERT: inserts, JOINED: joined}
    return [Reading(name, statistics.median(times) * 1e6, "us") for name, times in found.items()]


def timed(call: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Return the seconds of each call."""
    times = []
    for item in items:
        begin = time.perf_counter()
        call(item)
        times.append(time.perf_counter() - begin)

    return times


def by_many(seconds: float) -> list[Reading]:
    """Send from eight processes for some seconds, then as long without the trigger."""
    readings = []
    with senders(SENDERS) as crowd:
        crowd.send(0.2)  # the first sends of a process prepare much
        for name in (LOUD, SILENT):
            empty_tables()
            with trigger(enabled=name == LOUD):
                readings.append(Reading(name, len(crowd.send(seconds)) / seconds, "tasks/s"))

    return readings


@contextmanager
def trigger(*, enabled: bool) -> Iterator[None]:
    """Enable or disable the trigger during the block."""
    with connection.cursor() as cursor:
        if not enabled:
            cursor.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce")

        try:
            yield
        finally:
            cursor.execute("ALTER TABLE horsies_tasks ENABLE TRIGGER horsies_tasks_announce")


def in_bulk(n: int) -> list[Reading]:
    """Send many tasks by one call, then COPY their encoded rows into a similar table."""
    empty_tables()
    calls = [{"n": number} for number in range(n)]

    begin = time.perf_counter()
    tasks.noop.send_many(calls)
    sent = time.perf_counter() - begin

    with connection.cursor() as cursor:
        with cursor.copy(f"COPY horsies_tasks ({COLUMNS}) TO STDOUT (FORMAT binary)") as out:
            rows = b"".join(out)

        cursor.execute("CREATE TABLE copied_tasks (LIKE horsies_tasks INCLUDING ALL)")
        try:
            cursor.execute("CHECKPOINT")
            begin = time.perf_counter()
            with cursor.copy(f"COPY copied_tasks ({COLUMNS}) FROM STDIN (FORMAT binary)") as into:
                into.write(rows)
            copied = time.perf_counter() - begin
        finally:
            cursor.execute("DROP TABLE copied_tasks")

    return [Reading(SEND_MANY, n / sent, "tasks/s"), Reading(COPY, n / copied, "tasks/s")]
