"""The measurements. Repeats of the configurations of one scenario take turns, so that a slow minute hits them all alike."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django.db import connection, transaction

from benchmarks.load import tasks
from benchmarks.machine import empty_tables, report, worker

CHUNK = 20_000


def drain(n: int, repeats: int) -> None:
    """Let a worker run a backlog of no-op tasks: from the first start to the last settle, by the database's clock."""
    shapes = [
        ("sync", ("--processes=2",)),
        ("sync", ("--processes=4",)),
        ("async", ("--processes=2", "--async-concurrency=100")),
        ("sync", ("--processes=0",)),
        ("async", ("--processes=0", "--async-concurrency=100")),
    ]
    for _ in range(repeats):
        for lane, options in shapes:
            empty_tables()
            task = tasks.noop if lane == "sync" else tasks.anoop
            for start in range(0, n, CHUNK):
                task.send_many([{"n": number} for number in range(start, min(start + CHUNK, n))])
            with connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE horsies_tasks")
            with worker(*options, "--until-empty", wait=True):
                pass
            report(f"drain {lane} no-op", n, drained(n), " ".join(options))


def drained(n: int) -> float:
    """Return how long the drain took. Raises RuntimeError when not every task completed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at)) FROM horsies_tasks "
            "WHERE status = 'COMPLETED'"
        )
        count, seconds = cursor.fetchone()
    if count != n:
        raise RuntimeError(f"{count} of {n} tasks completed")
    return float(seconds)


def recycling(n: int, repeats: int) -> None:
    """Let one child of the example project run no-op tasks, replaced after each one, after every hundred, and never."""
    for _ in range(repeats):
        for most in (1, 100, 0):
            count = n if most != 1 else max(1, n // 20)
            empty_tables()
            tasks.noop.send_many([{"n": number} for number in range(count)])
            options = ("--processes=1", f"--max-tasks-per-child={most}")
            with worker(*options, "--until-empty", wait=True, DJANGO_SETTINGS_MODULE="benchmarks.settings_example"):
                pass
            report("recycling sync no-op", count, drained(count), " ".join(options))


def latency(n: int, repeats: int) -> None:
    """Send one task at a time to an idle worker: from the commit of send to the start of user code, and to get()."""
    for _ in range(repeats):
        empty_tables()
        with worker("--processes=2"):
            tasks.moment.send().get(60_000)
            starts, results = [], []
            for _pause in pace(n, 0.02):
                handle = tasks.moment.send()
                committed = time.time()
                began = handle.get(60_000).unwrap()
                results.append(time.time() - committed)
                starts.append(began - committed)
        report("latency commit to user code", n, sum(starts) or 1e-9, "--processes=2, idle", starts)
        report("latency commit to result", n, sum(results), "--processes=2, idle", results)


def pace(n: int, seconds: float) -> Iterator[int]:
    """Give n turns, one every ``seconds`` if the caller keeps up."""
    begin = time.monotonic()
    for turn in range(n):
        time.sleep(max(0.0, begin + turn * seconds - time.monotonic()))
        yield turn


def enqueue(n: int, repeats: int) -> None:
    """Send tasks with nobody there to run them: in bulk, one by one, and one by one in a single transaction."""
    for _ in range(repeats):
        empty_tables()
        calls = [{"n": number} for number in range(n)]
        begin = time.perf_counter()
        tasks.noop.send_many(calls)
        report("enqueue send_many", n, time.perf_counter() - begin, "one call")

        few = max(1, n // 50)
        samples = []
        for number in range(few):
            begin = time.perf_counter()
            tasks.noop.send(number)
            samples.append(time.perf_counter() - begin)
        report("enqueue send", few, sum(samples), "one commit each", samples)

        begin = time.perf_counter()
        with transaction.atomic():
            for number in range(few):
                tasks.noop.send(number)
        report("enqueue send", few, time.perf_counter() - begin, "one transaction")


SCENARIOS = {
    "drain": (drain, 20_000),
    "recycling": (recycling, 4_000),
    "latency": (latency, 500),
    "enqueue": (enqueue, 100_000),
}
