"""Fleet: the cost of a lone send beside 1 to 64 idle workers, and how soon its task starts.

There are 25 sends a second. One fleet grows. At each size the idle fleet is measured first: its
heartbeats and polls are the same with and without sends, and are subtracted. Workers run tasks in
their own process (``--processes=0``), so that 64 of them fit on a small machine.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import psutil
from django.db import connection

from benchmarks import meters
from benchmarks.figures import Case, Goal, Reading
from benchmarks.latency import pace, percentiles
from benchmarks.listeners import ServerCpu
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, wait_for, worker

SIZES = (1, 4, 12, 24, 64)
SENDS = 150
PAUSE_SECONDS = 0.04
AT_ONCE = 6  # workers that start together
SETTLE_SECONDS = 6.0  # more than two heartbeats: then each worker has learned whether it is elected
STARTED = "SELECT count(*) >= %s FROM horsies_heartbeats WHERE role = 'claimer'"
ENDED = "SELECT count(*) >= %s FROM horsies_tasks WHERE finished_at IS NOT NULL"
SERVER = "fleet of {}, server CPU per send"
START = "fleet of {}, commit to user code"
GOALS = (
    Goal("W1", SERVER.format(64), 2.0, over=SERVER.format(1), at_most=True),
    Goal("W1", f"{START.format(64)}, p50", 1.2, over=f"{START.format(1)}, p50", at_most=True),
)


def cases(scale: float) -> Sequence[Case]:
    """Return the one case; a small scale has fewer workers than the names of its readings."""
    return [Case("fleet", partial(measure, scale))]


def measure(scale: float) -> list[Reading]:
    """Start a growing fleet, and send to it at each size."""
    empty_tables()
    readings: list[Reading] = []
    workers: list[subprocess.Popen[bytes]] = []

    with ExitStack() as stack:
        for size in SIZES:
            count = max(1, round(size * min(scale, 1.0)))
            while len(workers) < count:
                for _ in range(min(AT_ONCE, count - len(workers))):
                    options = ("--processes=0", "--threads=1", "--loglevel=WARNING")
                    workers.append(stack.enter_context(worker(*options)))
                wait_for(STARTED, len(workers))

            time.sleep(SETTLE_SECONDS * min(scale, 1.0))
            readings += send_to(size, workers, max(10, round(SENDS * scale)))

    return readings


def send_to(size: int, workers: Sequence[subprocess.Popen[bytes]], sends: int) -> list[Reading]:
    """Measure as many seconds without sends as with them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), pg_backend_pid() FROM horsies_tasks")
        before, backend = cursor.fetchone()

    processes = [psutil.Process(one.pid) for one in workers]
    of_server = ServerCpu(backend)

    def spent() -> tuple[float, float]:
        return of_server.read(), sum(meters.own(one) + meters.below(one) for one in processes)

    idle_from = spent()
    time.sleep(sends * PAUSE_SECONDS)
    busy_from = spent()

    sent = []
    for _ in pace(sends, PAUSE_SECONDS):
        handle = tasks.moment.send()
        sent.append((handle, time.time()))

    busy_to = spent()
    wait_for(ENDED, before + sends)

    server, clients = (
        (to - of) - (of - idle) for idle, of, to in zip(idle_from, busy_from, busy_to, strict=True)
    )
    idle_server, idle_clients = (of - idle for idle, of in zip(idle_from, busy_from, strict=True))

    details = {
        "workers' CPU, ms/send": clients / sends * 1e3,
        "server CPU with heartbeats, ms/send": (busy_to[0] - busy_from[0]) / sends * 1e3,
        "idle server, CPU %": idle_server / (sends * PAUSE_SECONDS) * 100,
        "idle workers, CPU %": idle_clients / (sends * PAUSE_SECONDS) * 100,
        "workers": len(workers),
    }

    starts = [handle.get(60_000).unwrap() - committed for handle, committed in sent]
    return [
        Reading(SERVER.format(size), server / sends * 1e3, "ms", details),
        *percentiles(START.format(size), starts),
    ]
