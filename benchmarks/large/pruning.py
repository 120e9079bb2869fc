"""10,000,000 rows older than their retention: how long tasks wait while a worker prunes them.

An otherwise idle worker of four processes gets 50 tasks a second, for half a minute; the figure is
the time from the commit of the send to the first line of the task. First it keeps all rows for
ever, then it deletes those that are older than 30 days, the default, on the same table. The rows
are written by statements of the server, with the trigger that wakes workers disabled.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.growth import HISTORY, fill
from benchmarks.large.projects import project, ready, working
from benchmarks.latency import pace
from benchmarks.load import tasks
from benchmarks.machine import ALL_ENDED, wait_for

ROWS = 10_000_000
RATE = 50
SECONDS = 30
OLD = HISTORY.replace("interval '1 hour'", "interval '40 days'")
KEPT = {"rows kept": 0, "rows pruned": 720}  # hours, 0: for ever
START = "large start p99"
WAITS = (
    "SELECT id, (result ->> 'ok')::float8 FROM horsies_tasks WHERE task_name = %s AND status = "
    "'COMPLETED'"
)
LEFT = "SELECT count(*) FROM horsies_tasks WHERE finished_at < now() - interval '30 days'"

GOALS = (Goal("large", f"{START}, rows pruned", 2.0, over=f"{START}, rows kept", at_most=True),)


def cases(scale: float) -> Sequence[Case]:
    """Return the one case, whose parts have the same table."""
    return [Case("large pruning", partial(measure, scale))]


def measure(scale: float) -> list[Reading]:
    """Fill the table, and measure starts without and with pruning.

    Raises RuntimeError if nothing was pruned.
    """
    with project():
        with silent():
            fill(OLD, round(ROWS * scale), {})

        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE horsies_tasks")
            cursor.execute("CHECKPOINT")

        return [under_load(name, max(2.0, SECONDS * min(1.0, scale * 10))) for name in KEPT]


@contextmanager
def silent() -> Iterator[None]:
    """Disable the trigger during the block."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce")
        try:
            yield
        finally:
            cursor.execute("ALTER TABLE horsies_tasks ENABLE TRIGGER horsies_tasks_announce")


def under_load(name: str, seconds: float) -> Reading:
    """Send at the rate for some seconds, whether or not tasks have ended.

    Return the 99th percentile of the waits.
    """
    before = left()

    with working("--processes=4", BENCH_RETENTION_HOURS=str(KEPT[name])):
        ready()
        committed = {}
        for _ in pace(round(seconds * RATE), 1 / RATE):
            handle = tasks.moment_of.with_options(queue="queue-0").send(0)
            committed[handle.task_id] = time.time()
        wait_for(ALL_ENDED)

    after = left()
    if KEPT[name] and after == before:
        raise RuntimeError(f"none of {before} rows was pruned")

    with connection.cursor() as cursor:
        cursor.execute(WAITS, [tasks.moment_of.name])
        waits = [began - committed[task] for task, began in cursor.fetchall() if task in committed]

    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    details = {
        "p50, ms": cuts[49] * 1_000,
        "rows": before,
        "left": after,
        "pruned/s": (before - after) / seconds,
    }

    return Reading(f"{START}, {name}", cuts[98] * 1_000, "ms", details)


def left() -> int:
    """Return how many rows are older than 30 days."""
    with connection.cursor() as cursor:
        cursor.execute(LEFT)
        return int(cursor.fetchone()[0])
