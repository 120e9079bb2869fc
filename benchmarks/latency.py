"""Latency: from the commit of a send to the start of user code, and to the return of get().

All times are by the wall clock of one machine, where sender and worker both run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

from django.db import connection

from benchmarks import drain
from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import ALL_ENDED, empty_tables, wait_for, worker
from benchmarks.senders import senders

SENDS = 1_000
PAUSE_SECONDS = 0.02
SENDERS = 4
HALF_LOAD_SECONDS = 10.0
IDLE = "latency idle"
NOT_DURABLE = "latency idle, claims not durable"
START = f"{IDLE}, commit to user code"
RESULT = f"{IDLE}, commit to result"
HALF = "latency half load, commit to user code"
GOALS = (
    Goal("P5", f"{START}, p50", 0.9, at_most=True),
    Goal("P5", f"{START}, p99", 1.4, at_most=True),
    Goal("P5", f"{RESULT}, p50", 1.5, at_most=True),
    Goal("P5", f"{RESULT}, p99", 3.0, at_most=True),
    Goal("P6", f"{HALF}, p99", 50.0, at_most=True),
)


def cases(scale: float) -> Sequence[Case]:
    """Return the idle worker, with durable claims and without, and the half-busy one."""
    sends = max(10, round(SENDS * scale))
    return [
        Case(IDLE, partial(idle, sends, IDLE)),
        Case(NOT_DURABLE, partial(idle, sends, NOT_DURABLE, BENCH_DURABLE_CLAIMS="0")),
        Case("latency half load", partial(half_load, max(0.2, HALF_LOAD_SECONDS * scale), scale)),
    ]


def idle(n: int, name: str, **environment: str) -> list[Reading]:
    """Send one task at a time to an otherwise idle worker, and wait for it."""
    empty_tables()
    starts = []
    results = []

    with worker("--processes=2", **environment):
        tasks.moment.send().get(60_000)

        for _ in pace(n, PAUSE_SECONDS):
            handle = tasks.moment.send()
            committed = time.time()
            began = handle.get(60_000).unwrap()
            results.append(time.time() - committed)
            starts.append(began - committed)

    return [
        *percentiles(f"{name}, commit to user code", starts),
        *percentiles(f"{name}, commit to result", results),
    ]


def pace(n: int, seconds: float) -> Iterator[int]:
    """Yield n turns, one every ``seconds`` if the caller keeps up."""
    begin = time.monotonic()
    for turn in range(n):
        time.sleep(max(0.0, begin + turn * seconds - time.monotonic()))
        yield turn


def half_load(seconds: float, scale: float) -> list[Reading]:
    """Measure how fast a worker drains, then send to it half as fast, even if it falls behind."""
    shape = drain.HARD_4
    full = drain.measure(shape, max(20, round(shape.size * scale)))[0].value
    empty_tables()

    with worker(*shape.options) as process, senders(SENDERS) as crowd:
        tasks.moment.send().get(60_000)
        sent = crowd.send(seconds, full / 2)
        wait_for(ALL_ENDED, process=process)

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id::text, (result ->> 'ok')::float8 FROM horsies_tasks WHERE status = "
                "'COMPLETED'"
            )
            began = dict(cursor.fetchall())

    waits = [began[task] - committed for task, committed in sent]
    load = {"full load, tasks/s": full, "sent, tasks/s": len(sent) / seconds}
    return list(percentiles(HALF, waits, load))


def percentiles(
    name: str, seconds: Sequence[float], details: dict[str, float] | None = None
) -> Iterator[Reading]:
    """Return the 50th and the 99th percentile."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    for percent in (50, 99):
        yield Reading(f"{name}, p{percent}", cuts[percent - 1] * 1_000, "ms", details or {})
