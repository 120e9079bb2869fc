"""The notes of runs: a line when user code begins and one when it ends, in a file per process.

A file survives the faults of the database, and a written line survives the process, so every run is
noticed. The storm's server runs on this machine, so the database's clock is the machine's.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from horsies_django import current_task

DIRECTORY = "CHAOS_NOTES"
ASKED = "TRY_AGAIN"  # the code with which a task requests another attempt


class Noted(NamedTuple):
    """A run of user code by its own notes.

    It has the attempt, the process, the worker's process, and the times of its start and end.
    ``ended`` is None if the process died first, or the run was interrupted hard.
    """

    task: str
    attempt: int
    pid: int
    began: float
    ended: float | None = None
    worker: int = 0


@contextmanager
def noted() -> Iterator[None]:
    """Note the beginning and the end of the block, however it ends."""
    note("began")
    try:
        yield
    finally:
        note("ended")


def note(event: str) -> None:
    """Write one line about the run of this code."""
    run = current_task()
    pid = os.getpid()
    worker = os.getsid(0)  # each worker of a storm begins a session
    os.write(
        file_of(pid),
        f"{event} {run.task_id} {run.attempt} {pid} {worker} {time.time():.6f}\n".encode(),
    )


@cache
def file_of(pid: int) -> int:
    """Open the file of a process, once.

    The key is the process id: a forked process must not write into its parent's file.
    """
    return os.open(
        Path(os.environ[DIRECTORY]) / str(pid), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )


def collect(directory: Path) -> list[Noted]:
    """Return all noted runs, in the order in which they began."""
    return paired(line for path in directory.iterdir() for line in path.read_text().splitlines())


def paired(lines: Iterable[str]) -> list[Noted]:
    """Make runs of notes.

    A process that began an attempt twice has two runs; the first end belongs to the first of them.
    """
    began: list[Noted] = []
    ends: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)

    for line in lines:
        event, task, attempt, pid, worker, at = line.split()
        if event == "began":
            began.append(Noted(task, int(attempt), int(pid), float(at), worker=int(worker)))
        else:
            ends[task, int(attempt), int(pid)].append(float(at))

    return [
        run._replace(ended=its.pop(0)) if (its := ends[run[:3]]) else run
        for run in sorted(began, key=lambda one: one.began)
    ]
