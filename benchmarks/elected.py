"""Elected: how long the next task waits if the elected of five idle workers die or stand still.

Elected workers are notified of new tasks. They are the two oldest and the youngest. If none of them
is left, the others find the task by their polls. The floor is the cost of finding it within a tenth
of a second without notifications: the CPU time of the server if each of 64 idle workers polled that
often.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.bare import connected
from benchmarks.figures import Case, Goal, Reading
from benchmarks.fleet import SETTLE_SECONDS, STARTED
from benchmarks.latency import pace
from benchmarks.listeners import ServerCpu
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, wait_for, worker
from horsies_django.store.tasks import TaskStore

WORKERS = 5
GONE = {
    "elected killed: the oldest": ((0,), signal.SIGKILL),
    "elected killed: the two oldest": ((0, 1), signal.SIGKILL),
    "elected killed: the oldest and the youngest": ((0, 4), signal.SIGKILL),
    "elected killed: all three": ((0, 1, 4), signal.SIGKILL),
    "elected stopped: the two oldest": ((0, 1), signal.SIGSTOP),
}
LOOKS = 300
PAUSE_SECONDS = 0.01
FLEET = 64
LOOKS_A_SECOND = 10
LIMIT_MS = 100
GOALS = tuple(Goal("W1", f"{name}, next start", LIMIT_MS, at_most=True) for name in GONE)


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each set of lost workers, and the floor.

    A small scale does not wait for elections.
    """
    return [
        *(Case(name, partial(gone, name, min(1.0, scale))) for name in GONE),
        Case("elected floor", partial(floor, max(10, round(LOOKS * scale)))),
    ]


def gone(name: str, scale: float) -> list[Reading]:
    """Signal some of the workers at once; measure the time from a task's send to its first line."""
    places, number = GONE[name]
    empty_tables()

    with ExitStack() as stack:
        workers = []
        for count in range(1, WORKERS + 1):
            workers.append(
                stack.enter_context(worker("--processes=0", "--threads=1", "--loglevel=WARNING"))
            )
            # Ids ascend with time, so the workers start one after another.
            if scale == 1 or count == WORKERS:
                wait_for(STARTED, count)

        time.sleep(SETTLE_SECONDS * scale)
        tasks.moment.send().get(60_000)

        for place in places:
            workers[place].send_signal(number)
        if number == signal.SIGKILL:
            for place in places:
                workers[place].wait()

        began = time.time()
        waited = tasks.moment.send().get(60_000).unwrap() - began
        if number == signal.SIGSTOP:
            for place in places:
                workers[place].send_signal(signal.SIGCONT)

    return [Reading(f"{name}, next start", waited * 1e3, "ms", {"workers": WORKERS})]


def floor(looks: int) -> list[Reading]:
    """Poll for a waiting task repeatedly, on a connection like that of an engine."""
    empty_tables()
    with connected() as engine:
        server = ServerCpu(engine.info.backend_pid)
        store = TaskStore(engine)
        for _ in range(10):
            store.waits("sync", ["default"])

        before = server.read()
        for _ in pace(looks, PAUSE_SECONDS):
            store.waits("sync", ["default"])
        look = (server.read() - before) / looks

    value = look * FLEET * LOOKS_A_SECOND * 1e3
    details = {"one look, us": look * 1e6}
    return [Reading(f"elected floor, looks of {FLEET} workers, a second", value, "ms", details)]
