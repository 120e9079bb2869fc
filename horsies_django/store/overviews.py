"""Statements that read the state of queues, permit holders, partitions, and why a task or a node
does not run.

They take no locks.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from horsies_django.store.base import Store
from horsies_django.store.queues import DECLARED

PENDING_BOUND = 10_000  # to which due tasks, runs and nodes are counted, and
BOUND = 1_000  # other rows of a kind


class QueueOverview(NamedTuple):
    """The state of a queue.

    ``declared`` and ``effective`` have the keys of DECLARED. A limit of None is no limit; an
    ``effective["max_concurrency"]`` of 0 is a pause. ``running`` and ``claimed`` tasks hold a
    permit. ``pending`` tasks are due and wait, parked ones included; they are counted up to 10,000,
    and ``pending_more`` says whether there are more. ``full_partitions`` are at their limit on all
    living ``workers`` of the queue together; both are 0 for the cluster.
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
    """The running tasks of a partition, its ``limit`` (None: no limit), and its parked tasks,
    counted up to 1,000.
    """

    partition: str
    running: int
    limit: int | None
    parked: int
    parked_more: bool


class OrderedKey(NamedTuple):
    """A partition of a queue with a policy, and the task that comes first in it.

    ``since`` is when that failed, started or was sent. ``behind`` counts the tasks after it, up to
    1,000.
    """

    partition: str
    task_id: uuid.UUID
    task_name: str
    status: str
    since: dt.datetime
    behind: int
    behind_more: bool


class OverviewStore(Store):
    """Runs the statements on the given connection.

    ``claimed``: claims hold permits of the caps as well (hard mode).
    """

    def queues(
        self, names: Iterable[str] | None, *, claimed: bool, threshold: dt.timedelta | None = None
    ) -> list[QueueOverview]:
        """Return the named queues, or all: the cluster first, then by effective priority and name.

        Workers without a heartbeat for ``threshold`` do not count; None: those that were declared
        dead do not.
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

            told = (name, limits(declared), parsed(override), *changes, limits(effective))
            found.append(QueueOverview._make((*told, *counts)))

        return found

    def permits(
        self, queue: str, many: int, *, threshold: dt.timedelta | None = None
    ) -> list[PermitHolder]:
        """Return up to ``many`` tasks that hold permits of a queue (``*``: of the cluster), oldest
        claim first.
        """
        rows = self.run("monitoring/permits", queue=queue, many=many, threshold=threshold)
        return [PermitHolder(*row) for row in rows]

    def partitions(self, queue: str, many: int, *, claimed: bool) -> list[PartitionLoad]:
        """Return up to ``many`` partitions of a queue that hold permits, those with most tasks
        first.
        """
        params = {"queue": queue, "many": many, "claimed": claimed, "bound": BOUND}
        return [
            PartitionLoad(key, held, limit, min(parked, BOUND), parked > BOUND)
            for key, held, limit, parked in self.run("monitoring/partitions", **params)
        ]

    def keys(self, queue: str, many: int, *, stopped: bool) -> list[OrderedKey]:
        """Return up to ``many`` partitions of a queue with a policy: those that a failed task
        stops, or all, by key.
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

        ``claimed``: claims hold permits of the caps (hard mode). Workers without a heartbeat for
        ``threshold`` are left out.
        """
        # many: permit holders to return, at most; bound: tasks before this one are counted up to it
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
        # many: upstream nodes to return, at most
        return parsed(
            self.run("horsies_explain_node", workflow=workflow, number=number, many=10)[0][0]
        )


def limits(columns: str) -> dict[str, Any]:
    row = json.loads(columns)
    return {key: row[key] for key in DECLARED}


def parsed(text: str | None) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found
