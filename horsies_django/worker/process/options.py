"""The options of a worker and their validation; they are also sent to its children."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from horsies_django.core.errors import WorkerStartError

START_METHODS = ("forkserver", "spawn")
# libraries of macOS do not survive a fork
START_METHOD = "spawn" if sys.platform == "darwin" else "forkserver"
MAX_TASKS_PER_CHILD = 100  # the default, for a child that is at least a minute old
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LEAST_VALUES = {
    "processes": 0,
    "threads": 1,
    "async_concurrency": 1,
    "max_claim_batch": 0,
    "max_claim_per_worker": 0,
    "max_tasks_per_child": 0,
    "health_port": 0,
}
MAY_BE_NONE = ("max_tasks_per_child", "health_port")
CHOICES = {"start_method": START_METHODS, "loglevel": LOG_LEVELS}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker.

    If ``processes`` is 0, tasks run in the process of the worker. Each process runs ``threads``
    sync tasks and ``async_concurrency`` async tasks at once. ``shutdown_timeout`` is in seconds.
    ``max_claim_batch`` limits the tasks claimed from a queue in one pass; 0 means no limit.
    ``max_claim_per_worker`` limits the tasks claimed and not started; 0 means the slots and the
    prefetch buffer. A child is replaced after ``max_tasks_per_child`` tasks (0: never; None: the
    default of ``recycling.Recycling``), or when its resident memory has reached
    ``max_memory_per_child_mb`` after a task (None: never). Health checks are answered on
    ``health_port``, if it is set. With ``with_scheduler`` the worker is also a scheduler.
    """

    queues: tuple[str, ...]
    processes: int
    threads: int = 1
    async_concurrency: int = 100
    until_empty: bool = False
    shutdown_timeout: float = 300.0
    start_method: str = START_METHOD
    loglevel: str = "INFO"
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    max_tasks_per_child: int | None = None
    max_memory_per_child_mb: float | None = None
    with_scheduler: bool = False
    health_port: int | None = None
    health_host: str = "127.0.0.1"

    @property
    def forks(self) -> bool:
        """True if the children are forked by the fork server."""
        return self.processes > 0 and self.start_method == "forkserver"

    @property
    def sync_slots(self) -> int:
        """The number of sync tasks that this worker runs at once."""
        return max(self.processes, 1) * self.threads

    @property
    def async_slots(self) -> int:
        """The number of async tasks that this worker runs at once."""
        return max(self.processes, 1) * self.async_concurrency

    def slots(self, lane: str) -> int:
        """Return how many tasks of a lane this worker runs at once."""
        return self.sync_slots if lane == "sync" else self.async_slots


def refuse_impossible(options: WorkerOptions) -> None:
    """Raise WorkerStartError for invalid values."""
    for name, least in LEAST_VALUES.items():
        value = getattr(options, name)
        if value is None and name in MAY_BE_NONE:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WorkerStartError(
                f"{option(name)}: {value!r} is not a whole number of at least {least}"
            )

    for name, values in CHOICES.items():
        if getattr(options, name) not in values:
            raise WorkerStartError(
                f"{option(name)}: {getattr(options, name)!r} is not one of {', '.join(values)}"
            )

    if options.health_port is not None and options.health_port > 65_535:
        raise WorkerStartError(
            f"{option('health_port')}: {options.health_port!r} is not a port: a number from 0 to "
            "65535"
        )

    if not 0 <= options.shutdown_timeout < 10_000_000:
        raise WorkerStartError(
            f"{option('shutdown_timeout')}: {options.shutdown_timeout!r} is not a number of seconds"
        )

    memory = options.max_memory_per_child_mb
    if memory is not None and not 0 < memory < 10_000_000:
        raise WorkerStartError(
            f"{option('max_memory_per_child_mb')}: {memory!r} is not a number of megabytes"
        )

    if not options.processes and (options.max_tasks_per_child or memory is not None):
        raise WorkerStartError(
            "--processes=0 has no children: --max-tasks-per-child and --max-memory-per-child-mb "
            "need --processes=1 or more"
        )


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
