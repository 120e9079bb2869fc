"""The statements about workers, their processes and the processes that wait."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from horsies_django.store.base import Connection, execute, run


class Process(NamedTuple):
    """A process that beats: ``role`` is "claimer" for the parent, "runner" for a child."""

    id: uuid.UUID
    role: str
    pid: int


class Load(NamedTuple):
    """What a worker holds at one moment."""

    running_sync: int
    running_async: int
    memory_usage_mb: float
    children_memory_mb: float


class WorkerStore:
    """Runs the worker statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def register(self, worker: uuid.UUID, **columns: Any) -> None:
        """Insert the row of a worker that starts."""
        execute(self.connection, "worker_register", {"worker": worker, **columns})

    def beat(self, worker: uuid.UUID, processes: Sequence[Process], load: Load) -> set[uuid.UUID]:
        """Beat for all processes of a worker and return the ids that are still counted among the living."""
        params = {
            "worker": worker,
            "ids": [process.id for process in processes],
            "roles": [process.role for process in processes],
            "pids": [process.pid for process in processes],
            **load._asdict(),
        }
        return {row[0] for row in run(self.connection, "worker_beat", params)}

    def stop(self, worker: uuid.UUID) -> None:
        """Note that a worker ended."""
        execute(self.connection, "worker_stop", {"worker": worker})


class WaiterStore:
    """Runs the waiter statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def register(self, waiter: uuid.UUID, lasting: timedelta) -> None:
        """Ask the workers to announce what they finish, for as long as ``lasting``."""
        execute(self.connection, "waiter_register", {"waiter": waiter, "lasting": lasting})

    def remove(self, waiter: uuid.UUID) -> None:
        """End it now."""
        execute(self.connection, "waiter_remove", {"waiter": waiter})
