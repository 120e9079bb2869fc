"""Recycling: a child that is replaced after each no-op task, after every hundred, and never.

The project has an ordinary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import backlog, drained, empty_tables, worker

TASKS = 4_000
LIFETIMES = {1: "after every task", 100: "after every 100 tasks", 0: "never"}
GOALS: tuple[Goal, ...] = ()


def cases(scale: float) -> Sequence[Case]:
    """Return one case per lifetime of a child.

    With a lifetime of a single task there are a twentieth of the tasks.
    """
    sizes = {most: TASKS * scale / (20 if most == 1 else 1) for most in LIFETIMES}
    return [
        Case(name, partial(measure, f"recycling {name}", most, max(2, round(sizes[most]))))
        for most, name in LIFETIMES.items()
    ]


def measure(name: str, most: int, n: int) -> list[Reading]:
    """Measure a worker with such a child on ``n`` tasks."""
    empty_tables()
    backlog(tasks.noop, n)

    options = ("--processes=1", f"--max-tasks-per-child={most}", "--until-empty")
    with worker(*options, wait=True, DJANGO_SETTINGS_MODULE="benchmarks.settings_example"):
        pass
    return [Reading(name, n / drained(n), "tasks/s")]
