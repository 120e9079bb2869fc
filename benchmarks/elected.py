"""Elected: how long the next task waits if those of five idle workers that are told of new tasks are killed or stand still.

Two workers are the oldest, the third of the elected is the youngest. When none of them is left, the others find the task by their
polls. The floor of doing without polls: the CPU time of the server if each of 64 idle workers looked ten times a second.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.fleet import SETTLE_SECONDS, STARTED
from benchmarks.latency import pace
from benchmarks.listeners import ServerCpu
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, wait_for, worker
from horsies_django.store.notify import direct_connection
from horsies_django.store.tasks import TaskStore

WORKERS = 5
KILLED = {"the oldest": (0,), "the two oldest": (0, 1), "the oldest and the youngest": (0, 4), "all three": (0, 1, 4)}
STOPPED = {"the two oldest": (0, 1)}
LOOKS, PAUSE_SECONDS, FLEET, LOOKS_A_SECOND = 300, 0.01, 64, 10
LIMIT_MS = 100
GOALS = tuple(
    Goal("W1", f"elected {how}: {name}, next start", LIMIT_MS, at_most=True)
    for how, sets in {"killed": KILLED, "stopped": STOPPED}.items()
    for name in sets
)


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each set of workers that are gone, and the floor. At a small scale nobody waits for elections."""
    killed = [(f"elected killed: {name}", which, signal.SIGKILL) for name, which in KILLED.items()]
    stopped = [(f"elected stopped: {name}", which, signal.SIGSTOP) for name, which in STOPPED.items()]
    return [
        *(Case(name, partial(gone, name, which, number, min(1.0, scale))) for name, which, number in killed + stopped),
        Case("elected floor", partial(floor, max(10, round(LOOKS * scale)))),
    ]


def gone(name: str, which: Sequence[int], number: signal.Signals, scale: float) -> list[Reading]:
    """Signal some of the workers at once, send a task, and measure how long it takes from the commit to its first line."""
    empty_tables()
    with ExitStack() as stack:
        workers = []
        for count in range(1, WORKERS + 1):
            workers.append(stack.enter_context(worker("--processes=0", "--threads=1", "--loglevel=WARNING")))
            if scale == 1 or count == WORKERS:  # ids ascend with time, so they start one after another
                wait_for(STARTED, count)
        time.sleep(SETTLE_SECONDS * scale)
        tasks.moment.send().get(60_000)
        for place in which:
            workers[place].send_signal(number)
        if number == signal.SIGKILL:
            for place in which:
                workers[place].wait()
        handle, committed = tasks.moment.send(), time.time()
        waited = handle.get(60_000).unwrap() - committed
        for place in which:
            workers[place].send_signal(signal.SIGCONT)
    return [Reading(f"{name}, next start", waited * 1e3, "ms", {"workers": WORKERS})]


def floor(looks: int) -> list[Reading]:
    """Look for a task that waits, again and again, on a connection like that of an engine."""
    empty_tables()
    engine = direct_connection("default", application_name="horsies benchmark", prepare=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            server = ServerCpu(cursor.fetchone()[0])
        store = TaskStore(engine)
        for _ in range(10):
            store.waits("sync", ["default"])
        before = server.read()
        for _ in pace(looks, PAUSE_SECONDS):
            store.waits("sync", ["default"])
        look = (server.read() - before) / looks
    finally:
        engine.close()
    details = {"one look, us": look * 1e6}
    return [
        Reading(
            f"elected floor, looks of {FLEET} workers, a second", look * FLEET * LOOKS_A_SECOND * 1e3, "ms", details
        )
    ]
