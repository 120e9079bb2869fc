"""Defaults: the drain of a worker with default options.

It is compared with a worker whose children are never replaced.

Shapes are measured one by one, both workers in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.drain import ASYNC_2, HARD_4, Shape
from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import backlog, drained, empty_tables, worker

SHAPES = (HARD_4, Shape("sync", "hard", 1, 8), ASYNC_2)
NEVER = ("--max-tasks-per-child=0",)


def names(shape: Shape) -> tuple[str, str]:
    """Return the names of both readings of a shape."""
    name = shape.name.replace("drain", "defaults", 1)
    return name, f"{name}, children never replaced"


GOALS = tuple(Goal("defaults", names(shape)[0], 0.95, over=names(shape)[1]) for shape in SHAPES)


def cases(scale: float) -> Sequence[Case]:
    """Return two cases per shape, one after the other."""
    return [
        Case(name, partial(measure, name, shape, options, max(20, round(shape.size * scale))))
        for shape in SHAPES
        for name, options in zip(names(shape), ((), NEVER), strict=True)
    ]


def measure(name: str, shape: Shape, options: Sequence[str], n: int) -> list[Reading]:
    """Measure a worker of this shape on ``n`` tasks."""
    empty_tables()
    backlog(tasks.noop if shape.lane == "sync" else tasks.anoop, n)
    with worker(*shape.options, *options, "--until-empty", wait=True):
        pass
    return [Reading(name, n / drained(n), "tasks/s")]
