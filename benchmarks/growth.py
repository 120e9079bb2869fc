"""Whether a drain slows down as the table grows: 200,000 tasks beside none or millions of rows.

Measured: async no-ops in hard mode, two processes of 200, from the first start to the last end by
the server's clock. The other rows of the table are 10,000,000 tasks that completed in the last
hours; or 1,000,000 that are due, of a lower priority; or 1,000,000 that are due in a month and
would come next. The last two are in the same index as the drained tasks, right behind them.

The rows are written by one statement for every 500,000 as the queue would have left them, vacuumed
and checkpointed, and written again for each repeat, since cases take turns on one table: the
history takes about two minutes and three gigabytes of disk.

Limits of the figures: the history has no attempts, which are in a table of their own that a drain
only appends to. A freshly vacuumed table proves nothing about one where vacuum cannot keep up (see
xmin). And 200,000 tasks are over within seconds: an autovacuum, which reads all indexes of a large
table, falls into few of the drains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import LAST_ENDED, backlog, completed, empty_tables, wait_for, worker

DRAINED = 200_000
# rows per statement: the rows that a trigger on INSERT sees are kept in memory or in a file
PIECE = 500_000
URGENT = 1  # the priority of the drained tasks

# An id is a UUIDv7 of the millisecond at which the task was sent; the workers are four earlier
# ones.
HISTORY = """
INSERT INTO horsies_tasks (
  id, task_name, queue_name, lane, kwargs, status, partition_version, sent_at, enqueued_at,
  claimed_at, claimed_by, claim_generation, started_at, finished_at, result
)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
        || '70008' || lpad(to_hex(number), 15, '0'))::uuid,
       %(task)s, 'default', 'async', jsonb_build_object('n', number), 'COMPLETED', 0, at, at,
       at + interval '10 ms', ('00000000-0000-7000-8000-00000000000' || number %% 4)::uuid, 1,
       at + interval '10 ms', at + interval '20 ms', '{"ok": null}'
FROM (SELECT number, now() - interval '1 hour' - (%(rows)s - number) * interval '2 ms' AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number) AS past
"""
# delay: the time from which on they are due, one every ten microseconds.
WAITING = """
INSERT INTO horsies_tasks (
  id, task_name, queue_name, lane, priority, kwargs, status, partition_version, sent_at, enqueued_at
)
SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')
        || '70008' || lpad(to_hex(number), 15, '0'))::uuid,
       %(task)s, 'default', 'async', %(priority)s, jsonb_build_object('n', number), 'PENDING', 0,
       now(), now() + %(delay)s::interval + number * interval '10 us'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
"""
# the rows beside the drained tasks: their number, and how they are written
BESIDE: dict[str, tuple[int, str, dict[str, str | int]]] = {
    "empty table": (0, "", {}),
    "finished rows": (10_000_000, HISTORY, {}),
    "pending rows": (1_000_000, WAITING, {"priority": 100, "delay": "-1 hour"}),
    "far-future rows": (1_000_000, WAITING, {"priority": URGENT, "delay": "30 days"}),
}
DRAIN = f"""
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at)) FROM horsies_tasks
WHERE finished_at >= now() - interval '1 hour' AND priority = {URGENT} AND status = 'COMPLETED'
"""

GOALS = tuple(
    Goal("P9", f"growth drain, {beside}", 0.9, over="growth drain, empty table")
    for beside in BESIDE
    if BESIDE[beside][0]
)


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each kind of other rows."""
    return [Case(f"growth {beside}", partial(measure, beside, scale)) for beside in BESIDE]


def measure(beside: str, scale: float) -> Sequence[Reading]:
    """Fill the table, and drain the tasks that come first in it.

    Raises RuntimeError if not all of them completed.
    """
    rows, statement, params = BESIDE[beside]
    rows = round(rows * scale)
    n = max(1, round(DRAINED * scale))

    empty_tables()
    fill(statement, rows, params)
    last = backlog(tasks.anoop.with_options(priority=URGENT), n)

    # The new rows must not be written to disk during the drain.
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")

    with worker("--processes=2", "--async-concurrency=200") as process:
        # When the last task has ended, none is waiting, and a worker that is stopped finishes those
        # that run.
        wait_for(LAST_ENDED, last, process=process)

    seconds = completed(n, DRAIN)
    return [
        Reading(
            f"growth drain, {beside}", n / seconds, "tasks/s", {"tasks": n, "rows beside": rows}
        )
    ]


def fill(statement: str, rows: int, params: Mapping[str, str | int]) -> None:
    """Write so many rows."""
    with connection.cursor() as cursor:
        for first in range(1, rows + 1, PIECE):
            given: dict[str, str | int] = {
                "first": first,
                "last": min(first + PIECE - 1, rows),
                "rows": rows,
                "task": tasks.anoop.name,
            }
            cursor.execute(statement, {**given, **params})
