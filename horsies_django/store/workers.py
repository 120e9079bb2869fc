"""The statements about workers, their processes and the processes that wait."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from horsies_django.store.base import Connection, execute, run
from horsies_django.store.notify import channel_prefix


class Process(NamedTuple):
    """A child that its worker's parent beats for."""

    id: uuid.UUID
    pid: int
    holding: Sequence[uuid.UUID] = ()


class Load(NamedTuple):
    """What a worker holds at one moment."""

    running_sync: int
    running_async: int
    memory_usage_mb: float
    children_memory_mb: float


class Happened(NamedTuple):
    """What the reaper did: "died" with a worker, or what befell an attempt of a task: "failed", "retried", "returned", "expired",
    or "refused" by the database."""

    kind: str
    id: uuid.UUID
    task_name: str
    attempt: int


class WorkerStore:
    """Runs the worker statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def register(
        self, worker: uuid.UUID, *, task_names: Sequence[str] | None = None, wire: int | None = None, **columns: Any
    ) -> None:
        """Insert the row of a worker that starts."""
        params = {"worker": worker, "task_names": task_names, "wire": wire, **columns}
        execute(self.connection, "workers/register", params)

    def beat(self, worker: uuid.UUID, children: Sequence[Process], load: Load) -> set[uuid.UUID]:
        """Beat for all processes of a worker and return the ids that did: none when the worker was declared dead."""
        params = {
            "worker": worker,
            "ids": [child.id for child in children],
            "pids": [child.pid for child in children],
            "holding": [json.dumps([str(id_) for id_ in child.holding]) for child in children],
            **load._asdict(),
        }
        return {row[0] for row in run(self.connection, "workers/beat", params)}

    def snapshot(
        self, worker: uuid.UUID, load: Load, *, buffered: int, children: int, cpu_percent: float | None
    ) -> None:
        """Note how a worker is now."""
        columns = {"buffered": buffered, "children": children, "cpu_percent": cpu_percent, **load._asdict()}
        execute(self.connection, "workers/snapshot", {"worker": worker, **columns})

    def reap(self, threshold: timedelta, *, judge: bool, many: int, max_crashes: int = 0) -> list[Happened]:
        """Declare workers dead that have not beaten for ``threshold`` (if ``judge``), and rescue up to ``many`` tasks.

        Returns what happened, nothing while another reaper is at it. A task that took ``max_crashes`` processes with it is
        poison, 0 never.
        """
        params = {
            "threshold": threshold,
            "judge": judge,
            "many": many,
            "max_crashes": max_crashes,
            "channel": channel_prefix(self.connection),
        }
        return [Happened(*row) for row in run(self.connection, "workers/reap", params)]

    def stop(self, worker: uuid.UUID) -> None:
        """Note that a worker ended."""
        execute(self.connection, "workers/stop", {"worker": worker})


class WaiterStore:
    """Runs the waiter statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def register(self, waiter: uuid.UUID, lasting: timedelta) -> None:
        """Ask the workers to announce what they finish, for as long as ``lasting``."""
        execute(self.connection, "workers/register_waiter", {"waiter": waiter, "lasting": lasting})

    def remove(self, waiter: uuid.UUID) -> None:
        """End it now."""
        execute(self.connection, "workers/remove_waiter", {"waiter": waiter})
