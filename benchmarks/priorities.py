"""The cost of many priorities in one queue.

Passes claim 8 or 200 of 10,000 tasks with 1, 100 or 201 priorities. A pass settles the tasks of the
last one and claims as many, on one connection and without a worker, so the time is that of the
statement and its commit. If tasks are due in the future, or each priority has one task only, a scan
that goes from priority to priority has to visit all of them. Buffers are those of a claim alone,
counted by EXPLAIN in a transaction that is rolled back.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.machine import empty_tables
from horsies_django.core.records import Outcome, Wanted
from horsies_django.store import base
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.tasks import Served, TaskStore

TASKS = 10_000
PASSES = 40
WARM = 5
# the waiting tasks: their number, their number of priorities, and the time from which on they are
# due
SPREADS = {
    "1 priority": (TASKS, 1, "0 s"),
    "100 priorities": (TASKS, 100, "0 s"),
    "201 priorities": (TASKS, 201, "0 s"),
    "201 priorities, due in a day, and the last one due now": (TASKS, 201, "1 day"),
}
BATCHES = (8, 200)
PASS = "priorities pass of"
GOALS = tuple(
    Goal(
        "priorities",
        f"{PASS} {batch}, {spread}",
        2.0,
        over=f"{PASS} {batch}, 1 priority",
        at_most=True,
    )
    for batch in BATCHES
    for spread in ("100 priorities", "201 priorities")
)
# All due tasks have different times; those of one priority are not side by side in the table.
ROWS = """
INSERT INTO horsies_tasks (
  id, task_name, queue_name, lane, priority, kwargs, codec, sent_at, enqueued_at
)
SELECT gen_random_uuid(), 'noop', 'default', 'sync', 1 + number %% %(priorities)s,
       '{"args": [], "kwargs": {}}', 'plain', now(),
       now() - interval '1 hour' + %(due)s::interval + interval '1 ms' * number
FROM generate_series(1, %(count)s) AS number
"""


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each spread and batch."""
    return [
        Case(f"{PASS} {batch}, {spread}", partial(measure, spread, batch, scale))
        for batch in BATCHES
        for spread in SPREADS
    ]


def measure(spread: str, batch: int, scale: float) -> Sequence[Reading]:
    """Run passes on the tasks of a spread.

    Raises RuntimeError if a pass claims fewer tasks than it should.
    """
    count, priorities, due = SPREADS[spread]
    passes = max(2, round(PASSES * min(1.0, scale)))
    needed = batch * (WARM + passes)
    count = max(needed, round(count * scale))

    empty_tables()
    fill(count, priorities, due)
    if due != "0 s":
        fill(needed, 1, "0 s", offset=200)

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks")

    with direct_connection("default", application_name="benchmarks", prepare=True) as conn:
        blocks = buffers(conn, batch)
        times = claim_times(conn, batch, passes)

    name = f"{PASS} {batch}, {spread}"
    details = {"tasks": count, "slowest, ms": max(times) * 1_000}
    return [
        Reading(name, statistics.median(times) * 1_000, "ms", details),
        Reading(f"{name}, buffers", blocks, "buffers"),
    ]


def fill(count: int, priorities: int, due: str, offset: int = 0) -> None:
    """Write waiting tasks."""
    with connection.cursor() as cursor:
        cursor.execute(
            ROWS.replace("1 + number", f"{1 + offset} + number"),
            {
                "count": count,
                "priorities": priorities,
                "due": due,
            },
        )


def claim_times(conn: Any, batch: int, passes: int) -> list[float]:
    """Return the seconds of each pass, after some passes to warm up."""
    store = TaskStore(conn)
    worker = uuid.uuid4()
    channel = channel_prefix(conn)
    served = Served(["default"])
    times = []
    outcomes = list[Outcome]()

    for number in range(WARM + passes):
        begin = time.perf_counter()
        claims = store.run_pass(
            worker, channel, served, Wanted(sync=batch), outcomes=outcomes
        ).claims

        if number >= WARM:
            times.append(time.perf_counter() - begin)
        if len(claims) != batch:
            raise RuntimeError(f"a claim brought {len(claims)} of {batch} tasks")

        outcomes = [
            Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": null}') for claim in claims
        ]

    return times


def buffers(conn: Any, batch: int) -> int:
    """Return the number of blocks that a claim reads."""
    given: list[Any] = []

    def noted(name: str, params: Any = None) -> str:
        given.append(params)
        return text(name, params)

    text = base.statement_text
    base.statement_text = noted
    try:
        with conn.transaction(force_rollback=True):
            worker = uuid.uuid4()
            channel = channel_prefix(conn)
            # This pass also reads the blocks that a session reads once.
            TaskStore(conn).run_pass(worker, channel, Served(["default"]), Wanted(sync=batch))
    finally:
        base.statement_text = text

    with conn.transaction(force_rollback=True):
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {base.sql_text('tasks/pass')}"
        plan = conn.execute(statement, given[-1]).fetchone()[0][0]["Plan"]

    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
