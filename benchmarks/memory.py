"""The memory of a worker: the parent, a further child, and a child full of waiting coroutines.

Measured on Linux as PSS, the kernel's proportional share of ``/proc/PID/smaps_rollup``: a page that
k processes share counts 1/k in each, so the sum over processes is their total; in MB of 1,048,576
bytes. Workers have run some tasks of both lanes and are idle, and their memory is read when it no
longer changes.

- *parent*: the process that claims and dispatches, of a worker of five processes.
- *further child*: the sum over all processes of a worker of five, minus that of a worker of one,
  over four. Pages that children share with the worker are in neither.
- *coroutines*: one child in which 10,000 async tasks sleep. Its growth since it was idle is given
  beside.

Limits of the figures: the measured project consists of the queue. The imports of an application add
to the worker, and the pages that a child writes to add to that child. The benchmark shares the
interpreter's files with the worker, which takes a few MB off the parent; resident memory (RSS),
which most tools show, counts all shared pages in full.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import ALL_ENDED, backlog, empty_tables, wait_for, worker
from horsies_django.models import Heartbeat

COROUTINES = 10_000
WARM = 200
FEW = 1
MANY = 5
LONG_MS = 3_600_000
# Memory is steady if it changed by STEADY_MB at most in READS reads; there are LOOKS reads at most.
STEADY_MB = 0.2
READS = 5
LOOKS = 100
UP = "SELECT count(*) >= %s FROM horsies_heartbeats WHERE role = 'runner'"
RUNNING = (
    "SELECT count(*) >= %s FROM horsies_tasks WHERE status = 'RUNNING' AND claimed_by IS NOT NULL "
    "AND finished_at IS NULL"
)

GOALS = (
    Goal("P13", "memory parent", 60, at_most=True),
    Goal("P13", "memory further child", 25, at_most=True),
    Goal("P13", "memory child with waiting coroutines", 150, at_most=True),
)


def cases(scale: float) -> Sequence[Case]:
    """Return one case for processes and one for coroutines."""
    return [
        Case("memory processes", processes),
        Case("memory coroutines", partial(coroutines, max(1, round(COROUTINES * scale)))),
    ]


def processes() -> Sequence[Reading]:
    """Compare workers of one and five processes."""
    sums = {}
    for count in (FEW, MANY):
        empty_tables()
        with worker(f"--processes={count}") as parent:
            warm_up(count)
            family = [
                parent.pid,
                *(child.pid for child in psutil.Process(parent.pid).children(recursive=True)),
            ]
            sums[count] = steady(family)
            of_parent = pss(parent.pid)

    further = (sums[MANY] - sums[FEW]) / (MANY - FEW)
    whole = {f"whole worker of {count}": found for count, found in sums.items()}

    return [
        Reading("memory parent", of_parent, "MB"),
        Reading("memory further child", further, "MB", whole),
    ]


def coroutines(n: int) -> Sequence[Reading]:
    """Fill one child with ``n`` tasks that sleep."""
    empty_tables()

    # They sleep for an hour: a worker that is stopped must not wait for them, and no other child
    # must take some of them.
    with worker(
        "--processes=1",
        f"--async-concurrency={n}",
        "--max-tasks-per-child=0",
        "--shutdown-timeout=1",
    ):
        warm_up(1)
        child = Heartbeat.objects.get(role="runner").pid
        idle = steady([child])

        tasks.apause.send_many([{"tenant": 0, "ms": LONG_MS}] * n)
        wait_for(RUNNING, n)
        full = steady([child])

    details = {
        "coroutines": n,
        "growth, MB": full - idle,
        "growth of one, kB": 1024 * (full - idle) / n,
    }

    return [Reading("memory child with waiting coroutines", full, "MB", details)]


def warm_up(count: int) -> None:
    """Wait until the children are there, and run some tasks of both lanes on them.

    The memory that the first tasks load stays.
    """
    wait_for(UP, count)
    for task in (tasks.noop, tasks.anoop):
        backlog(task, WARM * count)
    wait_for(ALL_ENDED)


def steady(pids: Sequence[int]) -> float:
    """Return the total memory of processes in MB, once it is steady.

    After ten seconds it is returned as it is.
    """
    reads: list[float] = []
    for _ in range(LOOKS):
        reads = [*reads, sum(map(pss, pids))][-READS:]
        if len(reads) == READS and max(reads) - min(reads) <= STEADY_MB:
            break
        time.sleep(0.1)

    return reads[-1]


def pss(pid: int) -> float:
    """Return the proportional share of one process, in MB.

    Raises RuntimeError if the kernel does not provide it.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if not rollup.exists():
        raise RuntimeError(
            f"{rollup} is not there: memory is measured on Linux only, and of processes that live"
        )
    found = next(line for line in rollup.read_text().splitlines() if line.startswith("Pss:"))
    return int(found.split()[1]) / 1024
