"""Whether short tasks wait for long ones: 30 tasks a second, each twentieth takes 1 s.

The other tasks take 2 ms. Measured: hard mode, four processes, for a minute; the wait of each 2 ms
task from the commit of its send to the start of its code. The sender takes the first time and the
task the second, both by the machine's clock: the difference in the row (started_at minus
enqueued_at) leaves out the commit of the claim and the way to the child. The sender goes by its own
clock and never waits for a task. Tasks go to three queues in turn, of priorities 1, 50 and 100; the
comparison is the same without the long tasks.

Long tasks come evenly, so at most two of the four processes have one: the figure is whether a short
task is ever put behind a long one while a process is free. Limits of the figure: with arrivals at
random, all four would be taken by long tasks for 4.5 % of the time (Erlang's formula for a load of
1.5 on 4), and no queue can start a task then that does not interrupt another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from django.test.utils import override_settings

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import ALL_ENDED, empty_tables, wait_for, worker
from benchmarks.settings_queues import HORSIES
from horsies_django.models import Task

RATE = 30
SECONDS = 60
PROCESSES = 4
LEAST = 40
SHORT_MS = 2
LONG_MS = 1_000
EACH = 20  # one of so many tasks is long
KINDS = {"with tasks of 1 s": True, "without": False}

GOALS = (Goal("P14", "mixed wait, with tasks of 1 s", 3, over="mixed wait, without", at_most=True),)


def cases(scale: float) -> Sequence[Case]:
    """Return the case with long tasks and the one without."""
    n = max(LEAST, round(RATE * SECONDS * scale))
    return [Case(f"mixed {kind}", partial(measure, kind, n)) for kind in KINDS]


def measure(kind: str, n: int) -> Sequence[Reading]:
    """Offer tasks at ``n`` moments; return the 99th percentile of the waits of the short ones."""
    empty_tables()

    with worker(f"--processes={PROCESSES}", DJANGO_SETTINGS_MODULE="benchmarks.settings_queues"):
        wait_for("SELECT count(*) >= %s FROM horsies_heartbeats WHERE role = 'runner'", PROCESSES)
        with override_settings(HORSIES=HORSIES):
            offer(LEAST, long=False)  # warm-up
            committed = offer(n, long=KINDS[kind])
        wait_for(ALL_ENDED)

    done = Task.objects.filter(id__in=list(committed), status="COMPLETED").values_list(
        "id", "result"
    )
    waits = [1000 * (result["ok"] - committed[id_]) for id_, result in done if result]
    if len(waits) != len(committed):
        raise RuntimeError(f"{len(waits)} of {len(committed)} tasks completed")

    cuts = statistics.quantiles(waits, n=100)
    details = {"p50": statistics.median(waits), "longest": max(waits), "tasks": len(waits)}
    return [Reading(f"mixed wait, {kind}", cuts[98], "ms", details)]


def offer(n: int, *, long: bool) -> dict[UUID, float]:
    """Send a task at each of ``n`` moments; return the times of the short ones' commits.

    Without ``long`` the moments of long tasks are skipped.
    """
    queues = [tasks.stay.with_options(queue=name) for name in HORSIES["QUEUES"]]
    committed = {}
    begin = time.monotonic()

    for number in range(n):
        time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
        queue = queues[number % len(queues)]

        if number % EACH < EACH - 1:
            handle = queue.send(SHORT_MS)
            committed[handle.task_id] = time.time()
        elif long:
            queue.send(LONG_MS)

    return committed
