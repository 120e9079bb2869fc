"""Caps on real workers: the cost of a cap that does not bind, and the usage of one that binds.

Four workers of ten slots run through the whole part; between measurements only the limits change,
as they would in production.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connection, transaction

from benchmarks.caps.ratios import Ratio, compare
from benchmarks.load import tasks
from benchmarks.machine import CHUNK, middle, report, wait_for, worker
from horsies_django.core.queues import DECLARED
from horsies_django.store.queues import QueueStore

WORKERS = 4
SLOTS = 10
TENANTS = 1_000
SHAPE = ("--processes=1", f"--threads={SLOTS}", f"--async-concurrency={SLOTS}")
SLOW_MS = 50
BOUND_MS = 10
BOUNDS = {1: 0.9, 4: 0.9, 40: 0.75}  # cap -> the share of its permitted rate that must be reached
SLOW_TASKS = 16_000
NOOP_TASKS = 40_000
BOUND_SECONDS = 10
FREE = dict.fromkeys(DECLARED) | {"priority": 100, "partition_by_task": False}
QUEUE_CAP = FREE | {"max_concurrency": WORKERS * SLOTS}
PARTITION_CAP = FREE | {
    "partition_by_args": ["tenant"],
    "partition_max_concurrency": WORKERS * SLOTS,
}
UNBOUND = {"no cap": FREE, "queue cap": QUEUE_CAP, "partition cap": PARTITION_CAP}
UNFINISHED = """
SELECT EXISTS (
         SELECT FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND NOT parked
       )
    OR EXISTS (
         SELECT FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND parked
       )
    OR EXISTS (SELECT FROM horsies_tasks WHERE claimed_by IS NOT NULL AND finished_at IS NULL)
"""


def slow(repeats: int, scale: float) -> list[Ratio]:
    """Compare tasks of 50 ms on 40 slots under caps of 40 with such tasks under none."""
    return unbinding(
        "tasks of 50 ms", tasks.apause, SLOW_MS, round(SLOW_TASKS * scale), repeats, 0.98
    )


def noop(repeats: int, scale: float) -> list[Ratio]:
    """Compare tasks that do nothing under caps of 40 with such tasks under none, at full speed."""
    return unbinding("no-op tasks", tasks.anoop_of, 0, round(NOOP_TASKS * scale), repeats, 0.65)


def unbinding(what: str, task: Any, ms: int, n: int, repeats: int, target: float) -> list[Ratio]:
    """Measure one kind of task under each of the limits that do not bind, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in UNBOUND}
    names = list(UNBOUND)

    with fleet():
        drain(task, ms, max(100, n // 10), FREE)  # warm-up

        for turn in range(repeats):
            for name in names[turn % 3 :] + names[: turn % 3]:
                seconds = drain(task, ms, n, UNBOUND[name])
                rates[name].append(0.8 * n / seconds)
                report(
                    f"caps {what}, {name}",
                    round(0.8 * n),
                    seconds,
                    f"{WORKERS} workers, {' '.join(SHAPE)}",
                )

    return [
        compare(
            f"{what}, {name} that does not bind, to none",
            rates[name],
            rates["no cap"],
            "tasks/s",
            target,
        )
        for name in names[1:]
    ]


def bound(repeats: int, scale: float) -> list[Ratio]:
    """Compare the rate of tasks of 10 ms under binding caps with the rate that the caps permit.

    The rate of a bare loop is compared with it as well.
    """
    kinds = {"sync": tasks.pause, "async": tasks.apause}
    rates: dict[tuple[str, int], list[float]] = {
        (lane, cap): [] for cap in BOUNDS for lane in kinds
    }
    bare: list[float] = []

    with fleet():
        drain(tasks.pause, BOUND_MS, 100, FREE)
        for _ in range(repeats):
            for (lane, cap), found in rates.items():
                n = max(20, round(cap * 1_000 / BOUND_MS * BOUND_SECONDS * scale))
                seconds = drain(kinds[lane], BOUND_MS, n, FREE | {"max_concurrency": cap})
                found.append(0.8 * n / seconds)
                name = f"caps {lane} tasks of 10 ms, cap {cap}"
                report(name, round(0.8 * n), seconds, f"{WORKERS} workers, {' '.join(SHAPE)}")
            bare.append(bare_rate(round(100 * BOUND_SECONDS * scale)))

    one = [1_000 / BOUND_MS]
    return [
        compare(
            f"{lane} tasks of 10 ms under a cap of {cap}, to what it allows",
            found,
            [cap * 1_000 / BOUND_MS],
            "tasks/s",
            BOUNDS[cap],
        )
        for (lane, cap), found in rates.items()
    ] + [
        compare(
            "a bare loop of sleep, UPDATE and COMMIT, to what a cap of 1 allows",
            bare,
            one,
            "tasks/s",
        )
    ]


def bare_rate(n: int) -> float:
    """Return how often per second a loop can sleep for 10 ms and commit an UPDATE.

    No durable claim under a cap of 1 is faster.
    """
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bare (number int)")
        cursor.execute("TRUNCATE bare")
        cursor.execute("INSERT INTO bare VALUES (0)")

        began = time.perf_counter()
        for _ in range(n):
            time.sleep(BOUND_MS / 1_000)
            cursor.execute("UPDATE bare SET number = number + 1")
        return n / (time.perf_counter() - began)


@contextmanager
def fleet() -> Iterator[None]:
    """Run the workers during the block, all of them up."""
    with ExitStack() as stack, connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE horsies_tasks, horsies_task_attempts, horsies_workers, horsies_heartbeats"
        )

        for _ in range(WORKERS):
            stack.enter_context(worker(*SHAPE))

        wait_for("SELECT count(*) >= %s FROM horsies_heartbeats WHERE role = 'runner'", WORKERS)
        yield


def drain(task: Any, ms: int, n: int, limits: Mapping[str, Any]) -> float:
    """Run ``n`` tasks under these limits; return the seconds of the middle eight tenths."""
    set_limits(limits)

    with transaction.atomic():
        for start in range(0, n, CHUNK):
            numbers = range(start, min(start + CHUNK, n))
            task.send_many([{"tenant": number % TENANTS, "ms": ms} for number in numbers])

    wait_for(f"SELECT NOT ({UNFINISHED})")
    return middle(n)


def set_limits(limits: Mapping[str, Any], *, wait: bool = True) -> None:
    """Empty the table and set the limits of the queue.

    Wait until the workers have finished the work that the change causes.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
        cursor.execute("CHECKPOINT")

    QueueStore(connection).configure(
        "default", limits, action="queue.set", actor="benchmarks", create=True
    )

    if wait:
        wait_for("SELECT sweep IS NULL FROM horsies_queues WHERE name = 'default'")
