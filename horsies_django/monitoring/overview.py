"""Overviews of queues, schedules, permits, partitions and copies of tasks, and the list of tasks.

The module only reads.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import connections
from django.db.models.functions import Now

from horsies_django.conf import config
from horsies_django.core.patterns import Pattern
from horsies_django.core.schedules import as_texts, read_definition
from horsies_django.models import Schedule, Task
from horsies_django.models.fields import aware
from horsies_django.store.overviews import (
    OrderedKey,
    OverviewStore,
    PartitionLoad,
    PermitHolder,
    QueueOverview,
)
from horsies_django.store.schedules import Recent, ScheduleStore
from horsies_django.tasks.selection import Selection, newest_tasks

__all__ = [
    "OrderedKey",
    "PartitionLoad",
    "QueueOverview",
    "ScheduleOverview",
    "PermitHolder",
    "coming",
    "copies",
    "keys",
    "partitions",
    "queues",
    "schedules",
    "permits",
]


# The columns of a task in a list.
LISTED = (
    "id",
    "task_name",
    "queue_name",
    "status",
    "sent_at",
    "started_at",
    "finished_at",
    "error_code",
)


class ScheduleOverview(NamedTuple):
    """A schedule and its state.

    ``state`` is "on", "off", "gone" (from the code), or "error" (a task could not be sent, or the
    definition is invalid). ``pattern`` and ``zone`` are as in the definition, and ``in_words``
    describes the pattern. ``changed`` are the keys that override the declaration in the code.
    ``last_status`` is None if nothing has been sent or the task has been deleted. ``last_skipped``
    is true if the last fire time was skipped because ``last_task`` had not finished.
    """

    name: str
    state: str
    error: str | None
    task: str
    pattern: str
    in_words: str
    zone: str
    declared_in: str | None
    changed: list[str]
    next_fire_at: dt.datetime | None
    last_fire_at: dt.datetime | None
    last_task: uuid.UUID | None
    last_status: str | None
    last_skipped: bool


def queues(names: Iterable[str] | None = None) -> list[QueueOverview]:
    """Return the overviews of the queues in ``names`` that exist, or of all queues.

    The whole cluster, named ``*``, is first. Without ``names`` it is returned only if it has a cap
    or an override. The others are ordered by priority and name.
    """
    return _store().queues(names, claimed=_claims_hold_permits(), threshold=_threshold())


def permits(queue: str, limit: int = 100) -> list[PermitHolder]:
    """Return the tasks that hold permits of a queue (``*`` for any), the longest-held first."""
    return _store().permits(queue, limit, threshold=_threshold())


def partitions(queue: str, limit: int = 20) -> list[PartitionLoad]:
    """Return the partitions of a queue whose tasks hold permits.

    Those with most tasks, running and parked, are first.
    """
    return _store().partitions(queue, limit, claimed=_claims_hold_permits())


def keys(queue: str, *, stopped: bool = True, limit: int = 100) -> list[OrderedKey]:
    """Return the keys of a queue that a failed task stops, the one stopped the longest first.

    If ``stopped`` is false, all keys that have tasks are returned, in their order, each with its
    first task.
    """
    return _store().keys(queue, limit, stopped=stopped)


def schedules(names: Iterable[str] | None = None) -> list[ScheduleOverview]:
    """Return the overviews of the schedules in ``names`` that exist, or of all, ordered by name."""
    rows = Schedule.objects.using(config().database).order_by("name")
    found = list(rows if names is None else rows.filter(name__in=list(names)))
    recent = ScheduleStore(connections[config().database]).recent((row.name for row in found), 1)
    last = {run.name: run for run in recent}
    return [_schedule(row, last.get(row.name)) for row in found]


def _schedule(row: Schedule, last: Recent | None) -> ScheduleOverview:
    schedule, wrong = read_definition(row.definition)
    error = row.error or "; ".join(as_texts(wrong)) or None
    if row.gone_at:
        state = "gone"
    elif not row.definition.get("enabled", True):
        state = "off"
    else:
        state = "error" if error else "on"

    return ScheduleOverview(
        name=row.name,
        state=state,
        error=error,
        task=str(row.definition.get("task", "")),
        pattern=str(row.definition.get("pattern", "")),
        in_words=schedule.pattern.in_words if schedule else "",
        zone=str(row.definition.get("zone", "")),
        declared_in=row.declared_in,
        changed=changed_keys(row),
        next_fire_at=row.next_fire_at,
        last_fire_at=row.last_fire_at,
        last_task=last and last.task_id,
        last_status=last and last.status,
        last_skipped=last is not None and last.skipped,
    )


def changed_keys(schedule: Schedule) -> list[str]:
    """Return the keys that override the declaration in the code.

    Returns [] if the code does not declare the schedule.
    """
    if schedule.declared_in is None:
        return []
    declared = as_object(schedule.declared)
    held = as_object(schedule.definition)
    return sorted(key for key in held if held[key] != declared.get(key))


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object, or {} for any other value, because stored JSON may have any shape."""
    return value if isinstance(value, dict) else {}


def coming(name: str, count: int) -> tuple[Pattern, list[dt.datetime]] | None:
    """Return a schedule's pattern and its next ``count`` fire times, even if it is disabled.

    Returns None if the schedule is missing or invalid.
    """
    row = (
        Schedule.objects.using(config().database).annotate(read_at=Now()).filter(name=name).first()
    )
    schedule = read_definition(row.definition)[0] if row else None
    if row is None or schedule is None:
        return None

    return schedule.pattern, schedule.pattern.coming(aware(row.read_at), count, aware(row.since))


def _store() -> OverviewStore:
    return OverviewStore(connections[config().database])


def _threshold() -> dt.timedelta:
    """Return the time without a heartbeat after which a worker is stale."""
    return dt.timedelta(milliseconds=config().recovery.running_stale_threshold_ms)


def _claims_hold_permits() -> bool:
    """Return whether claims hold permits.

    They do not in soft mode, because prefetched tasks are checked again before they start.
    """
    return not config().prefetch_buffer


def copies(task_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, list[Task]]:
    """Return the copies of tasks that were run again, by the id of the original, newest first.

    Their arguments and results are not read.
    """
    found: dict[uuid.UUID, list[Task]] = {}
    rows = Task.objects.using(config().database).filter(copy_of__in=list(task_ids)).order_by("-pk")
    for row in rows.only("task_name", "status", "sent_at", "copy_of"):
        if row.copy_of is not None:
            found.setdefault(row.copy_of, []).append(row)
    return found


class TaskList(NamedTuple):
    """A list of tasks.

    ``partial`` is true if only the newest 30,000 were searched, so that there may be older ones.
    """

    tasks: list[Any]  # named tuples of ``LISTED``
    partial: bool


def tasks(chosen: Selection, limit: int = 50) -> TaskList:
    """Return the tasks of a selection, the newest first.

    For a final status, the tasks that finished last are first. Waiting tasks are in the order in
    which they will start, queue by queue.
    """
    found, bounded = newest_tasks(chosen)
    listed = list(found.values_list(*LISTED, named=True)[:limit])
    return TaskList(listed, bounded and len(listed) < limit)
