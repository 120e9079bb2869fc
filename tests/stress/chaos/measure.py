"""Measures how long it takes until a task of a dead process or a dead machine is rescued.

The times of recovery are the defaults. A child's death is over when its attempt is closed, to be
retried or as the last one. A machine's death (the worker and all its processes, by SIGKILL) is over
when user code of the task runs elsewhere: one old worker finds the dead ones, and another one,
which has room, runs their tasks.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horsies_django import RetryPolicy, TaskHandle
from tests.stress.chaos import evidence, tasks
from tests.stress.chaos.judge import CRASHED, Attempt
from tests.stress.chaos.members import Member
from tests.stress.chaos.notes import DIRECTORY, Noted, collect
from tests.support.deadlines import wait_until

MACHINES = 6  # that die in a round
EACH = 3  # tasks on each of them
SCATTER_SECONDS = 2.5  # the time over which they die: a heartbeat's interval
CHILDREN = 4
CHILD_ROUNDS = 4  # per round of machines
ONCE = RetryPolicy.fixed([0.0], auto_retry_for=[CRASHED], jitter=False)


class Measurement:
    """Workers, and the notes of their tasks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes = directory / "notes"
        self.notes.mkdir()

        self.moment = threading.Event()
        self.random = random.Random(1)
        self.members: list[Member] = []

    def member(self, *options: str) -> Member:
        """Start a worker, and wait until it is up."""
        found = Member(len(self.members), self.directory, options, {DIRECTORY: str(self.notes)})
        self.members.append(found)
        wait_until(lambda: found.ready, "a worker is up")
        return found

    def runs(self, handles: list[TaskHandle[Any]], attempt: int) -> dict[str, Noted]:
        """Return the runs of an attempt of these tasks, by task."""
        ids = {str(handle.task_id) for handle in handles}
        return {
            run.task: run
            for run in collect(self.notes)
            if run.attempt == attempt and run.task in ids
        }

    def running(self, handles: list[TaskHandle[Any]], attempt: int) -> dict[str, Noted]:
        """Wait until that attempt of each of the tasks runs."""
        wait_until(lambda: len(self.runs(handles, attempt)) == len(handles), "all tasks run")
        return self.runs(handles, attempt)

    def machines(self) -> list[float]:
        """Kill machines, and return how long it took until each of their tasks ran elsewhere."""
        machines = [
            self.member("--queues=free", "--processes=1", f"--async-concurrency={EACH}")
            for _ in range(MACHINES)
        ]
        handles = [
            tasks.forever.with_options(queue="free", retry_policy=ONCE).send()
            for _ in range(MACHINES * EACH)
        ]

        first = self.running(handles, 1)
        refuge = self.member("--queues=free", "--processes=1")

        died: dict[int, float] = {}
        for machine in machines:
            self.moment.wait(self.random.uniform(0, SCATTER_SECONDS / MACHINES))
            pids = [one.pid for one in machine.family()]
            at = time.time()
            machine.kill(group=True)
            died |= dict.fromkeys(pids, at)

        second = self.running(handles, 2)
        for handle in handles:
            handle.cancel()
        refuge.end()

        return [second[task].began - died[run.pid] for task, run in first.items()]

    def children(self) -> list[float]:
        """Kill the children of a worker, and return the time until each attempt was closed."""
        worker = self.member("--queues=free", f"--processes={CHILDREN}")
        samples = []
        for _ in range(CHILD_ROUNDS):
            sender = tasks.forever_sync.with_options(queue="free")
            once = [sender.with_options(retry_policy=ONCE).send() for _ in range(CHILDREN // 2)]
            never = [sender.send() for _ in range(CHILDREN - len(once))]

            for attempt, handles in ((1, once + never), (2, once)):
                samples += self.deaths(self.running(handles, attempt))

        worker.end()
        return samples

    def deaths(self, runs: Mapping[str, Noted]) -> list[float]:
        """Kill the processes of runs one by one, and wait until their attempts are closed."""
        died = {}
        for run in runs.values():
            died[run.task, run.attempt] = time.time()
            os.kill(run.pid, signal.SIGKILL)

        def closed() -> list[Attempt]:
            every = [one for tried in evidence.attempts().values() for one in tried]
            return [one for one in every if (one.task, one.attempt) in died]

        wait_until(lambda: len(closed()) == len(died), "the attempts are closed")
        return [one.finished_at - died[one.task, one.attempt] for one in closed()]

    def end(self) -> None:
        """End all living workers."""
        for member in self.members:
            if member.process.poll() is None:
                member.kill(group=True)


def measure(directory: Path, rounds: int) -> dict[str, Any]:
    """Measure both; the figures are seconds."""
    measurement = Measurement(directory)
    try:
        measurement.member("--queues=tight", "--processes=1")  # it finds the dead workers
        machines = [sample for _ in range(rounds) for sample in measurement.machines()]
        children = [sample for _ in range(rounds) for sample in measurement.children()]
    finally:
        measurement.end()

    return {
        "child death to its attempt's end": spread(children),
        "machine death to running elsewhere": {"machines": rounds * MACHINES, **spread(machines)},
    }


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, the 99th percentile and the maximum of some seconds."""
    if not samples:
        return {"samples": 0}
    cuts = (
        statistics.quantiles(samples, n=100, method="inclusive")
        if len(samples) > 1
        else [samples[0]] * 99
    )
    return {
        "samples": len(samples),
        "p50_s": round(cuts[49], 3),
        "p99_s": round(cuts[98], 3),
        "max_s": round(max(samples), 3),
    }
