"""100,000 partitions, in a queue whose partitions run one task at a time.

The drains are of 100,000 tasks, one of each partition or ten of each of a tenth of them, by the
async slots of two processes: the cost of a task must not grow with the number of partitions. A lone
task of another partition meets an idle worker, beside 100,000 tasks that are due in a month and
beside none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.large.projects import project, starts, working
from benchmarks.load import tasks
from benchmarks.machine import ALL_ENDED, CHUNK, drained, wait_for

PARTITIONS = 100_000
SENDS = 200
WARM = 10
SHAPE = ("--processes=2", "--async-concurrency=200")
DRAIN = "large drain"
LONE = "large lone task"
DRAINS = {"10,000 partitions": 10, "100,000 partitions": 1}  # tasks of each
BESIDE = {"no partition": 0, "100,000 partitions": PARTITIONS}

GOALS = (
    Goal("large", f"{DRAIN}, 100,000 partitions", 0.9, over=f"{DRAIN}, 10,000 partitions"),
    Goal("large", f"{LONE}, 100,000 partitions", 1.2, over=f"{LONE}, no partition", at_most=True),
)


def cases(scale: float) -> Sequence[Case]:
    """Return the cases of drains and of lone tasks."""
    return [
        *(Case(f"{DRAIN}, {name}", partial(drain, name, scale)) for name in DRAINS),
        *(Case(f"{LONE}, {name}", partial(lone, name, scale)) for name in BESIDE),
    ]


def send(n: int, each: int = 1, delay_days: int = 0) -> None:
    """Send so many tasks, ``each`` to every partition, in rounds over all partitions."""
    task = tasks.anoop_of.with_options(
        queue="tenants", delay=timedelta(days=delay_days) if delay_days else None
    )

    for first in range(0, n, CHUNK):
        task.send_many(
            [
                {"tenant": number % (n // each), "ms": 0}
                for number in range(first, min(first + CHUNK, n))
            ]
        )

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks")
        cursor.execute("CHECKPOINT")


def drain(name: str, scale: float) -> list[Reading]:
    """Drain as many tasks, of that many partitions, with a worker."""
    n = max(20, round(PARTITIONS * scale))
    with project():
        send(n, DRAINS[name])
        with working(*SHAPE) as process:
            wait_for(ALL_ENDED, process=process)
        seconds = drained(n)

    return [Reading(f"{DRAIN}, {name}", n / seconds, "tasks/s", {"tasks": n})]


def lone(name: str, scale: float) -> list[Reading]:
    """Send one task after another to an otherwise idle worker."""
    beside = round(BESIDE[name] * scale)
    n = max(10, round(SENDS * min(1.0, scale)))

    with project():
        if beside:
            send(beside, delay_days=30)

        with working("--processes=4"):
            task = tasks.moment_of.with_options(queue="tenants")
            waits = starts([partial(task.send, -number) for number in range(WARM + n)])[WARM:]

    return [
        Reading(f"{LONE}, {name}", statistics.median(waits) * 1_000, "ms", {"tasks beside": beside})
    ]
