"""How one worker runs: what the command line chose, resolved, in a record that also travels to its children."""

from __future__ import annotations

import os
from dataclasses import dataclass

START_METHODS = ("forkserver", "spawn")
MAX_TASKS_PER_CHILD = 100  # unless the command line says otherwise (S1.10)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The shape of a worker.

    ``processes`` 0 runs user code in the worker's own process. ``threads`` sync tasks and ``async_concurrency`` coroutines
    run at once in each process. ``shutdown_timeout`` is in seconds. ``max_claim_batch`` bounds what one pass claims of a queue,
    ``max_claim_per_worker`` what it has claimed and not started; 0 leaves them to its slots and buffer. A child is replaced after
    ``max_tasks_per_child`` tasks (0: never), or once its resident memory reaches ``max_memory_per_child_mb`` after a task
    (None: never). Probes are answered on ``health_port``, if there is one. ``with_scheduler``: it is a scheduler, too.
    """

    queues: tuple[str, ...]
    processes: int
    threads: int = 1
    async_concurrency: int = 100
    until_empty: bool = False
    shutdown_timeout: float = 300.0
    start_method: str = "forkserver"
    loglevel: str = "INFO"
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    max_tasks_per_child: int = MAX_TASKS_PER_CHILD
    max_memory_per_child_mb: float | None = None
    with_scheduler: bool = False
    health_port: int | None = None
    health_host: str = "127.0.0.1"

    @property
    def sync_slots(self) -> int:
        """How many sync tasks this worker runs at once."""
        return max(self.processes, 1) * self.threads

    @property
    def async_slots(self) -> int:
        """How many async tasks this worker runs at once."""
        return max(self.processes, 1) * self.async_concurrency

    def slots(self, lane: str) -> int:
        """Return how many tasks of a lane this worker runs at once."""
        return self.sync_slots if lane == "sync" else self.async_slots


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
