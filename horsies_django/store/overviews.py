"""The statements that read the state of queues and partitions, and why a task does not run.

They take no locks.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from horsies_django.store.base import Store
from horsies_django.store.queues import read_declared

PENDING_BOUND = 10_000  # due tasks, runs and nodes are counted up to it
BOUND = 1_000  # other rows are counted up to it


class QueueOverview(NamedTuple):
    """The state of a queue.

    ``declared`` and ``effective`` have the columns of ``core.queues``. A limit of None means no
    limit; an ``effective["max_concurrency"]`` of 0 is a pause. ``running`` and ``claimed`` tasks
    hold a permit. ``pending`` tasks are due and wait, including parked ones. They are counted up to
    10,000; ``pending_more`` is True if there are more. ``full_partitions`` are at their limit on
    all living ``workers`` of the queue together; both are 0 for the cluster.
    """

    name: str
    declared: dict[str, Any]
    override: dict[str, Any] | None
    override_by: str | None
    override_reason: str | None
    override_at: dt.datetime | None
    override_until: dt.datetime | None
    paused_at: dt.datetime | None
    paused_by: str | None
    paused_reason: str | None
    effective: dict[str, Any]
    running: int
    claimed: int
    pending: int
    pending_more: bool
    full_partitions: int
    workers: int


class PermitHolder(NamedTuple):
    """A task that holds a permit.

    ``child_pid`` is from the last heartbeat; ``alive`` is False if its worker is stale, dead or
    gone.
    """

    task_id: uuid.UUID
    task_name: str
    status: str
    partition: str | None
    worker_id: uuid.UUID
    hostname: str | None
    child_pid: int | None
    since: dt.datetime
    alive: bool


class PartitionLoad(NamedTuple):
    """The load of a partition.

    It has the number of its running tasks, its ``limit`` (None means no limit), and the number of
    its parked tasks, counted up to 1,000. ``parked_more`` is True if there are more.
    """

    partition: str
    running: int
    limit: int | None
    parked: int
    parked_more: bool


class OrderedKey(NamedTuple):
    """A partition of a queue with a policy, and its head, the task whose turn it is.

    ``since`` is when the head failed, started or was sent. ``behind`` is the number of tasks after
    it, counted up to 1,000. ``behind_more`` is True if there are more.
    """

    partition: str
    task_id: uuid.UUID
    task_name: str
    status: str
    since: dt.datetime
    behind: int
    behind_more: bool


class OverviewStore(Store):
    """The statements about queues, partitions and permits.

    ``claimed`` is True in hard mode, in which claims also hold permits of the caps.
    """

    def queues(
        self, names: Iterable[str] | None, *, claimed: bool, threshold: dt.timedelta | None = None
    ) -> list[QueueOverview]:
        """Return the named queues, or all: the cluster first, then by effective priority and name.

        Workers without a heartbeat for ``threshold`` do not count. If it is None, workers that were
        declared dead do not count.
        """
        given = None if names is None else list(names)
        rows = self.run("monitoring/queues", names=given, claimed=claimed, threshold=threshold)
        present = [row[0] for row in rows]
        pending: dict[str, int] = dict(
            self.run("horsies_count_pending", names=present, bound=PENDING_BOUND)
        )

        found = []
        for (
            name,
            declared,
            override,
            *changes,
            effective,
            running,
            holding,
            full_partitions,
            workers,
        ) in rows:
            many = pending.get(name, 0)
            counts = (
                running,
                holding,
                min(many, PENDING_BOUND),
                many > PENDING_BOUND,
                full_partitions,
                workers,
            )

            stored = (
                name,
                read_declared(declared),
                parsed(override),
                *changes,
                read_declared(effective),
            )
            found.append(QueueOverview._make((*stored, *counts)))

        return found

    def permits(
        self, queue: str, many: int, *, threshold: dt.timedelta | None = None
    ) -> list[PermitHolder]:
        """Return up to ``many`` tasks that hold permits of a queue, oldest claim first.

        The queue ``*`` is the cluster.
        """
        rows = self.run("monitoring/permits", queue=queue, many=many, threshold=threshold)
        return [PermitHolder(*row) for row in rows]

    def partitions(self, queue: str, many: int, *, claimed: bool) -> list[PartitionLoad]:
        """Return up to ``many`` partitions of a queue that hold permits, most tasks first."""
        params = {"queue": queue, "many": many, "claimed": claimed, "bound": BOUND}
        return [
            PartitionLoad(key, held, limit, min(parked, BOUND), parked > BOUND)
            for key, held, limit, parked in self.run("monitoring/partitions", **params)
        ]

    def keys(self, queue: str, many: int, *, stopped: bool) -> list[OrderedKey]:
        """Return up to ``many`` partitions of a queue with a policy, by key.

        With ``stopped``, only the partitions that a failed task stops are returned.
        """
        params = {"queue": queue, "many": many, "stopped": stopped, "bound": BOUND}
        return [
            OrderedKey(key, id_, name, status, since, min(behind, BOUND), behind > BOUND)
            for key, id_, name, status, since, behind in self.run("monitoring/keys", **params)
        ]

    def facts(
        self, task_id: uuid.UUID, *, claimed: bool, threshold: dt.timedelta | None = None
    ) -> dict[str, Any] | None:
        """Return the facts about a task, or None if there is no such task.

        Workers without a heartbeat for ``threshold`` are omitted.
        """
        # ``many`` permit holders are returned at most; the tasks before this one are counted up to
        # ``bound``
        params = {
            "id": task_id,
            "claimed": claimed,
            "threshold": threshold,
            "many": 20,
            "bound": BOUND,
        }
        return parsed(self.run("horsies_explain", **params)[0][0])

    def node_facts(self, workflow: uuid.UUID, number: int) -> dict[str, Any] | None:
        """Return the facts about a node of a run, or None if there is no such node."""
        # ``many`` upstream nodes are returned at most
        return parsed(
            self.run("horsies_explain_node", workflow=workflow, number=number, many=10)[0][0]
        )


def parsed(text: str | None) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found
