"""Steps: the cost of a durable step beside a transaction that writes the same row.

Both use the connection of the task's own code. A task is claimed, and its steps are taken in this
process: blocks of steps take turns with blocks of bare transactions. Then the same steps come
again, which return their recorded results.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from django.db import connection, transaction

from benchmarks.enqueue import timed
from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import empty_tables
from horsies_django import CurrentTask
from horsies_django.core.records import Wanted
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Served, TaskStore

STEPS = 2_000
BLOCK = 50
BARE = "steps bare transaction"
STEP = "steps step"
RECORDED = "steps recorded step"
GOALS = (Goal("steps", STEP, 2, over=BARE, at_most=True),)


def cases(scale: float) -> Sequence[Case]:
    """Return the one case, whose parts take turns."""
    return [Case("steps", partial(measure, max(4, round(STEPS * scale))))]


def measure(n: int) -> list[Reading]:
    """Write rows in bare transactions and in steps, and repeat the same steps, in turns."""
    empty_tables()
    times: dict[str, list[float]] = {name: [] for name in (BARE, STEP, RECORDED)}

    with table():
        current = running()
        for start in range(0, n, BLOCK):
            numbers = range(start, min(start + BLOCK, n))
            times[BARE] += timed(bare, numbers)
            for name in (STEP, RECORDED):
                times[name] += timed(
                    lambda number: current.step(f"row {number}", write, number), numbers
                )

    return [Reading(name, statistics.median(each) * 1e6, "us") for name, each in times.items()]


@contextmanager
def table() -> Iterator[None]:
    """Create a table for the rows during the block."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE rows_of_steps (id bigserial PRIMARY KEY, number int NOT NULL)")
        try:
            yield
        finally:
            cursor.execute("DROP TABLE rows_of_steps")


def running() -> CurrentTask:
    """Send a task and claim it; return the value of current_task() in its code."""
    worker = uuid.uuid4()
    tasks.noop.send(0)
    passed = TaskStore(connection).run_pass(
        worker, channel_prefix(connection), Served(["default"]), Wanted(1)
    )
    (claim,) = passed.claims
    return CurrentTask(claim, str(worker))


def write(number: int) -> int:
    """Write a row."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO rows_of_steps (number) VALUES (%s)", [number])
    return number


def bare(number: int) -> None:
    """Write a row in a transaction."""
    with transaction.atomic():
        write(number)
