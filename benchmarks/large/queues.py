"""2,000 queues: the start of a worker, a lone task, and 200 tasks at once in capped queues.

The start is measured from the start of the command to the result of a task that waits already. A
lone task meets an idle worker, every 20 ms and each in another queue: from the commit of its send
to its first line. The tasks in queues with a cap are sent in one transaction, each to another
queue, and measured from the first send to the last end, by the server's clock, for at most a
minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

from django.db import connection, transaction

from benchmarks.figures import Case, Goal, Reading
from benchmarks.large.projects import project, ready, starts, working
from benchmarks.load import tasks

QUEUES = 2_000
SPREAD = 200
SENDS = 200
PROCESSES = 4
PATIENCE_SECONDS = 60
LONE = "large lone task"
# the number of queues, and the cap of each (0: none)
PROJECTS = {
    "1 queue": (1, 0),
    "2,000 queues": (QUEUES, 0),
    "1 queue, cap": (1, 100),
    "2,000 queues, cap": (QUEUES, 100),
}
STARTS = {"1 queue": 1, "2,000 queues": QUEUES}
BURST = "large 200 tasks in 200 of 2,000 queues, cap of 1"
ENDED = """
SELECT count(finished_at), extract(epoch FROM max(finished_at) - min(sent_at))
FROM horsies_tasks
WHERE task_name = %s
"""

GOALS = (
    Goal("large", "large start of a worker, 2,000 queues", 2.0, at_most=True),
    Goal("large", f"{LONE}, 2,000 queues", 2.0, over=f"{LONE}, 1 queue", at_most=True),
    Goal("large", f"{LONE}, 2,000 queues, cap", 2.0, over=f"{LONE}, 1 queue, cap", at_most=True),
    Goal("large", BURST, 5.0, at_most=True),
)


def cases(scale: float) -> Sequence[Case]:
    """Return the cases of starts, of lone tasks, and of many at once."""
    return [
        *(Case(f"large start, {name}", partial(start, name, scale)) for name in STARTS),
        *(Case(f"{LONE}, {name}", partial(lone, name, scale)) for name in PROJECTS),
        Case(BURST, partial(burst, scale)),
    ]


def scaled(queues: int, scale: float) -> int:
    """Return a number of queues at a scale: one stays one."""
    return max(1, round(queues * min(1.0, scale))) if queues > 1 else 1


def start(name: str, scale: float) -> list[Reading]:
    """Start a worker while a task waits."""
    queues = scaled(STARTS[name], scale)
    with project(queues):
        handle = tasks.moment.with_options(queue=f"queue-{queues - 1}").send()

        begin = time.monotonic()
        with working(f"--processes={PROCESSES}", queues=queues):
            handle.get(60_000).unwrap()
            seconds = time.monotonic() - begin

    return [Reading(f"large start of a worker, {name}", seconds, "s", {"queues": queues})]


def lone(name: str, scale: float) -> list[Reading]:
    """Send one task after another to an otherwise idle worker."""
    queues = scaled(PROJECTS[name][0], scale)
    cap = PROJECTS[name][1]
    n = max(10, round(SENDS * min(1.0, scale)))

    with project(queues, cap), working(f"--processes={PROCESSES}", queues=queues, cap=cap):
        ready()
        waits = starts(
            [
                tasks.moment.with_options(queue=f"queue-{number * 7 % queues}").send
                for number in range(n)
            ]
        )

    details = {"queues": queues, "longest, ms": max(waits) * 1_000}
    return [Reading(f"{LONE}, {name}", statistics.median(waits) * 1_000, "ms", details)]


def burst(scale: float) -> list[Reading]:
    """Send a task to each of some queues at once."""
    queues = scaled(QUEUES, scale)
    n = max(2, round(SPREAD * min(1.0, scale)))

    with project(queues, 1), working(f"--processes={PROCESSES}", queues=queues, cap=1):
        ready()
        with transaction.atomic():
            for number in range(n):
                tasks.noop.with_options(queue=f"queue-{number * queues // n}").send(number)
        ended, seconds = wait(n)

    return [Reading(BURST, seconds, "s", {"queues": queues, "tasks": n, "completed": ended})]


def wait(n: int) -> tuple[int, float]:
    """Wait until so many tasks have ended, for a minute at most.

    Return how many did and how long it took.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(ENDED, [tasks.noop.name])
            ended, seconds = cursor.fetchone()

            if ended == n:
                return n, float(seconds)
            time.sleep(0.05)

    return ended, float(PATIENCE_SECONDS)
