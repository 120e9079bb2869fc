"""Drain: a worker runs a backlog of no-op tasks, from the first start to the last settle.

Times are by the database's clock. Costs are read from the first task's end on, so that neither the
worker's start nor its end is included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.db import connection

from benchmarks import meters
from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import (
    ALL_ENDED,
    LAST_ENDED,
    SOFT,
    backlog,
    drained,
    empty_tables,
    wait_for,
    worker,
)

MANY = 200_000  # tasks
FEWER = 20_000  # where each task takes about a statement
PROCESSES = {0: "in process", 1: "1 process", 2: "2 processes", 4: "4 processes"}
ENDED = "FROM horsies_tasks WHERE finished_at IS NOT NULL"


@dataclass(frozen=True)
class Shape:
    """The shape of the worker: ``slots`` are threads or coroutines of each process."""

    lane: str  # "sync", "async"
    mode: str  # "hard", "soft"
    processes: int
    slots: int = 1

    @property
    def name(self) -> str:
        many = {
            "async": f" x {self.slots}",
            "sync": f" x {self.slots} threads" if self.slots > 1 else "",
        }
        return f"drain {self.lane}, {self.mode} mode, {PROCESSES[self.processes]}{many[self.lane]}"

    @property
    def options(self) -> tuple[str, str]:
        slots = "threads" if self.lane == "sync" else "async-concurrency"
        return f"--processes={self.processes}", f"--{slots}={self.slots}"

    @property
    def environment(self) -> dict[str, str]:
        return SOFT if self.mode == "soft" else {}

    @property
    def size(self) -> int:
        return FEWER if (self.lane, self.mode) == ("sync", "hard") else MANY


HARD_4 = Shape("sync", "hard", 4)
SOFT_2 = Shape("sync", "soft", 2)
ASYNC_2 = Shape("async", "hard", 2, 200)
ASYNC_0 = Shape("async", "hard", 0, 200)
SHAPES = (
    Shape("sync", "hard", 1),
    Shape("sync", "hard", 2),
    HARD_4,
    Shape("sync", "hard", 0),
    Shape("sync", "hard", 1, 8),
    Shape("sync", "soft", 1),
    SOFT_2,
    Shape("sync", "soft", 4),
    Shape("sync", "soft", 1, 8),
    ASYNC_2,
    ASYNC_0,
    Shape("async", "soft", 2, 200),
    Shape("async", "soft", 0, 200),
)
COSTED = (SOFT_2, ASYNC_2)  # shapes whose costs are readings, too
GOALS = (
    Goal("P1", HARD_4.name, 4_500),
    Goal("P2", SOFT_2.name, 15_700),
    Goal("P3", ASYNC_2.name, 24_000),
    Goal("P3", ASYNC_0.name, 24_000),
    *(Goal("P12", f"{shape.name}, parent CPU", 25, at_most=True) for shape in COSTED),
    *(Goal("P12", f"{shape.name}, statements", 0.1, at_most=True) for shape in COSTED),
)


def cases(scale: float) -> Sequence[Case]:
    """Return one case per shape."""
    return [
        Case(shape.name, partial(measure, shape, max(20, round(shape.size * scale))))
        for shape in SHAPES
    ]


def measure(shape: Shape, n: int) -> list[Reading]:
    """Measure a worker of this shape on ``n`` tasks."""
    empty_tables()
    last = backlog(tasks.noop if shape.lane == "sync" else tasks.anoop, n)

    with worker(*shape.options, wait=False, **shape.environment) as process:
        wait_for(f"SELECT EXISTS (SELECT {ENDED})", process=process)
        before = meters.read(process.pid)
        early = ended()

        wait_for(LAST_ENDED, last, process=process)
        wait_for(ALL_ENDED, process=process)
        costs = meters.read(process.pid).since(before, n - early)

    readings = [Reading(shape.name, n / drained(n), "tasks/s", costs)]
    if shape in COSTED:
        readings += [
            Reading(f"{shape.name}, parent CPU", costs["parent CPU, us/task"], "us"),
            Reading(f"{shape.name}, statements", costs["statements/task"], "statements"),
        ]

    return readings


def ended() -> int:
    """Return how many tasks have ended."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) {ENDED}")
        return int(cursor.fetchone()[0])
