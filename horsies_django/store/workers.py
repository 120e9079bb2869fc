"""The statements about workers, their processes, and processes that wait for results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from horsies_django.store.base import Store
from horsies_django.store.notify import channel_prefix


class Process(NamedTuple):
    """A child process; the parent sends its heartbeats.

    ``holding`` are the ids of its tasks, None while it is not ready.
    """

    id: uuid.UUID
    pid: int
    holding: Sequence[uuid.UUID] | None = ()

    @property
    def held(self) -> str | None:
        """The ids of its tasks as JSON."""
        return None if self.holding is None else json.dumps([str(id_) for id_ in self.holding])


class Load(NamedTuple):
    """The running tasks and memory of a worker at one time."""

    running_sync: int
    running_async: int
    memory_usage_mb: float
    children_memory_mb: float


class Beaten(NamedTuple):
    """The result of a heartbeat.

    ``alive`` is False if the worker was declared dead. ``on_duty`` is True if it rescues tasks and
    advances workflows for all workers. ``place`` is its place among the elected of its team, 0 to
    2, or None.
    """

    alive: bool
    on_duty: bool
    place: int | None


class Happened(NamedTuple):
    """An action of the reaper.

    ``kind`` is "died" for a worker. For an attempt of a task, it is "failed", "retried",
    "returned", "expired", or "refused" if the database refused the outcome. ``code`` is the error
    code of a failed attempt.
    """

    kind: str
    id: uuid.UUID
    task_name: str
    attempt: int
    queue_name: str = ""
    options: str | None = None
    code: str | None = None


class WorkerStore(Store):
    """The statements about workers."""

    def register(
        self,
        worker: uuid.UUID,
        *,
        task_names: Sequence[str] | None = None,
        wire: int | None = None,
        **columns: Any,
    ) -> None:
        """Insert the row of a starting worker."""
        self.execute("workers/register", worker=worker, task_names=task_names, wire=wire, **columns)

    def beat(
        self,
        worker: uuid.UUID,
        children: Sequence[Process] | None,
        load: Load,
        fresh: timedelta,
        *,
        listens: bool = False,
    ) -> Beaten:
        """Write the heartbeat of a worker, unless it was declared dead.

        Its ``load`` and its ``children`` are also written unless ``children`` is None. It may be
        elected if ``listens``. Workers whose last heartbeat is older than ``fresh`` are neither
        elected nor on duty.
        """
        ((alive, on_duty, place),) = self.run(
            "horsies_beat",
            worker=worker,
            listens=listens,
            ids=None if children is None else [child.id for child in children],
            pids=[child.pid for child in children or ()],
            holding=[child.held for child in children or ()],
            fresh=fresh,
            **load._asdict(),
        )
        return Beaten(alive, on_duty, place)

    def snapshot(
        self,
        worker: uuid.UUID,
        load: Load,
        children: Mapping[uuid.UUID, float],
        *,
        buffered: int,
        cpu_percent: float | None,
    ) -> None:
        """Insert a snapshot of the state of a worker.

        The memory of its ``children``, in MB, is written into their heartbeats.
        """
        columns = {
            "buffered": buffered,
            "children": len(children),
            "cpu_percent": cpu_percent,
            **load._asdict(),
        }
        columns |= {"ids": list(children), "memories": list(children.values())}
        self.execute("workers/snapshot", worker=worker, **columns)

    def lose_snapshot(self, worker: uuid.UUID, error: str) -> None:
        """Record for horsies_status that a snapshot could not be inserted, with the error."""
        self.run("horsies_lost", kind="snapshot", what=str(worker), error=error)

    def declare_dead_workers(
        self, worker: uuid.UUID, threshold: timedelta, fresh: timedelta
    ) -> list[uuid.UUID]:
        """Declare workers dead that sent no heartbeat for ``threshold``, and return their ids.

        ``worker`` is the caller. No worker is declared dead unless its last heartbeat is younger
        than ``fresh``.
        """
        rows = self.run("horsies_judge", worker=worker, threshold=threshold, fresh=fresh)
        return [id_ for (id_,) in rows]

    def reap(
        self, threshold: timedelta, *, declare_dead: bool, many: int, max_crashes: int = 0
    ) -> list[Happened]:
        """Rescue up to ``many`` tasks of dead workers, and return the actions.

        With ``declare_dead``, workers that sent no heartbeat for ``threshold`` are declared dead
        first. The list is empty while another reaper is active. A task that ended ``max_crashes``
        processes is poison; 0 means never.
        """
        limits = {"threshold": threshold, "many": many, "max_crashes": max_crashes}
        rows = self.run(
            "horsies_reap", judge=declare_dead, channel=channel_prefix(self.connection), **limits
        )
        happened = [Happened(*row) for row in rows]

        if failed := [one.id for one in happened if one.kind == "failed"]:
            codes = dict(self.run("horsies_error_codes", ids=failed))
            happened = [one._replace(code=codes.get(one.id)) for one in happened]

        return happened

    def begin_stop(self, worker: uuid.UUID) -> None:
        """Record that a worker takes no more tasks."""
        self.execute("workers/stopping", worker=worker)

    def stop(self, worker: uuid.UUID) -> None:
        """Record that a worker has stopped, and notify the workers that take its place."""
        self.execute("workers/stop", worker=worker, channel=channel_prefix(self.connection))


class WaiterStore(Store):
    """The statements about processes that wait for results."""

    def register(self, waiter: uuid.UUID, lasting: timedelta) -> None:
        """Register a waiter for the time ``lasting``, so that finished tasks are announced."""
        self.execute("workers/register_waiter", waiter=waiter, lasting=lasting)

    def remove(self, waiter: uuid.UUID) -> None:
        """Remove a waiter."""
        self.execute("workers/remove_waiter", waiter=waiter)
