"""The arithmetic of caps: from limits and loads to the tasks that may start.

A test compares the SQL of the pass with it. Levels are nested: the whole cluster, a queue, a
partition of a queue; a queue and a partition have a limit per worker as well. Beside them are the
worker's own slots, of two lanes. A task starts when each of its levels has room for one more. Tasks
are taken in one order; one that has no room is passed over, and does not keep later ones from
starting.

``None`` is no limit anywhere; rooms never go below 0. In hard mode a claim holds a permit like a
running task; in soft mode only running tasks do, because claims wait in a buffer and are checked
again before they start.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Limits(NamedTuple):
    """The limits in force for one queue. ``max_concurrency`` 0 is a pause."""

    priority: int = 100
    max_concurrency: int | None = None
    local_limit: int | None = None
    partition_max_concurrency: int | None = None
    partition_local_limit: int | None = None


class Waiting(NamedTuple):
    """A task that could start now, as far as its time is concerned.

    ``partition`` is None if its queue has no partitions.
    """

    id: int
    queue: str
    lane: str
    priority: int
    enqueued_at: dt.datetime
    partition: str | None = None
    late: bool = False


class Holding(NamedTuple):
    """A task in flight: ``here`` on the worker of the pass, ``running`` or only claimed."""

    queue: str
    partition: str | None = None
    here: bool = False
    running: bool = True


class Budget(NamedTuple):
    """The capacity of a worker.

    It has free slots per lane, places in its buffer (soft mode), and limits of tasks in all, and
    per queue and pass.
    """

    sync: int
    async_: int
    buffer: int = 0
    total: int | None = None
    batch: int | None = None
    soft: bool = False


class Allotment(NamedTuple):
    """The tasks that start, are claimed ahead, expire, or may be parked.

    The partition of a parked task is full for every worker, not only for this one.
    """

    start: list[int]
    ahead: list[int]
    expired: list[int]
    parked: list[int]


def room(limit: int | None, load: int) -> int | None:
    """Return how many more tasks fit under a limit, or None without a limit."""
    return None if limit is None else max(0, limit - load)


def least(*rooms: int | None) -> int | None:
    """Return the smallest of some rooms, or None if none of them is limited."""
    return min((one for one in rooms if one is not None), default=None)


def order(tasks: Iterable[Waiting], limits: Mapping[str, Limits]) -> list[Waiting]:
    """Return tasks in the order of queue priority, task priority, time, id.

    Queues of one priority share one order.
    """
    return sorted(
        tasks,
        key=lambda task: (limits[task.queue].priority, task.priority, task.enqueued_at, task.id),
    )


class Rooms:
    """The room of each level for one worker; it shrinks as tasks are taken."""

    def __init__(
        self,
        limits: Mapping[str, Limits],
        cluster: int | None,
        held: Iterable[Holding],
        budget: Budget,
        workers: int,
    ) -> None:
        counted = [one for one in held if one.running or not budget.soft]
        here = [one for one in counted if one.here]
        queues = Counter(one.queue for one in counted)
        local = Counter(one.queue for one in here)

        self.limits = limits
        self.workers = workers
        self.partitions = Counter((one.queue, one.partition) for one in counted)
        self.partitions_here = Counter((one.queue, one.partition) for one in here)
        # Claimed ahead by this pass: room that it must not give twice.
        self.ahead: Counter[tuple[str, str | None]] = Counter()

        self.total = least(budget.total, room(cluster, len(counted)))
        self.queues = {
            name: least(
                room(limit.max_concurrency, queues[name]),
                room(limit.local_limit, local[name]),
                budget.batch,
            )
            for name, limit in limits.items()
        }

    def queue_full(self, task: Waiting) -> bool:
        """Whether the task's queue has no room for this worker."""
        return self.queues[task.queue] == 0

    def partition_full(self, task: Waiting) -> bool:
        """Whether the task's partition has no room for this worker."""
        limit = self.limits[task.queue]
        key = (task.queue, task.partition)
        left = least(
            room(limit.partition_max_concurrency, self.partitions[key] + self.ahead[key]),
            room(limit.partition_local_limit, self.partitions_here[key] + self.ahead[key]),
        )
        return task.partition is not None and (left == 0 or self.full_for_everyone(task))

    def full_for_everyone(self, task: Waiting) -> bool:
        """Whether no worker could start the task.

        Its partition then has as many tasks as the living workers may run together.
        """
        limit = self.limits[task.queue]
        held = self.partitions[task.queue, task.partition]
        together = (
            None
            if limit.partition_local_limit is None
            else limit.partition_local_limit * max(self.workers, 1)
        )
        return least(room(limit.partition_max_concurrency, held), room(together, held)) == 0

    def take(self, task: Waiting, *, start: bool) -> None:
        """Count one more task.

        Only a started task takes a permit of its partition from other workers.
        """
        key = (task.queue, task.partition)
        left = self.queues[task.queue]

        self.queues[task.queue] = None if left is None else left - 1
        self.total = None if self.total is None else self.total - 1

        if start:
            self.partitions[key] += 1
            self.partitions_here[key] += 1
        else:
            self.ahead[key] += 1


def allot(
    waiting: Iterable[Waiting],
    limits: Mapping[str, Limits],
    held: Iterable[Holding],
    budget: Budget,
    *,
    cluster: int | None = None,
    workers: int = 1,
) -> Allotment:
    """Return the effect of one pass of a worker on the waiting tasks.

    See S4.7, S4.20 to S4.22, S0.38 to S0.40, S1.43, S1.44. Only sync tasks are claimed ahead.
    ``limits`` holds the queues that the worker serves, ``workers`` is how many living workers serve
    them.
    """
    rooms = Rooms(limits, cluster, held, budget, workers)
    slots = {"sync": budget.sync, "async": budget.async_}
    buffer = budget.buffer
    found = Allotment([], [], [], [])

    for task in order((one for one in waiting if one.queue in limits), limits):
        if rooms.total == 0 or not (any(slots.values()) or buffer):
            break
        if rooms.queue_full(task) or not (slots[task.lane] or (buffer and task.lane == "sync")):
            continue

        if task.late:
            found.expired.append(task.id)
        elif rooms.partition_full(task):
            if rooms.full_for_everyone(task):
                found.parked.append(task.id)
        else:
            rooms.take(task, start=slots[task.lane] > 0)
            if slots[task.lane]:
                slots[task.lane] -= 1
                found.start.append(task.id)
            else:
                buffer -= 1
                found.ahead.append(task.id)

    return found
