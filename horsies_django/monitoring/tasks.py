"""The list of tasks for ``horsies_task list``. Only reads, in the order of an index.

A condition that no index has filters rows afterwards, and could read the whole table. Such a list is limited to the newest
100,000 rows of its order.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, NamedTuple

from django.db.models import DateTimeField, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Coalesce

from horsies_django.conf import config
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Task
from horsies_django.models.tasks import FINISHED, IN_FLIGHT, PENDING, UNSUCCESSFUL

DEEPEST = 100_000
OLDEST_ID = uuid.UUID(int=0)
FINAL = frozenset(status.value for status in TERMINAL)


class TaskOverview(NamedTuple):
    """A task in a list."""

    id: uuid.UUID
    task_name: str
    queue_name: str
    status: str
    sent_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    error_code: str | None


class TaskList(NamedTuple):
    """Tasks; ``partial``: only the newest 100,000 were searched, and there may be older ones."""

    tasks: list[TaskOverview]
    partial: bool


def tasks(
    *,
    status: str | None = None,
    queue: str | None = None,
    name: str | None = None,
    since: dt.datetime | None = None,
    limit: int = 50,
) -> TaskList:
    """Return tasks, the newest first; with a final ``status``, those that finished last first. ``since``: sent then or later."""
    given = {"queue_name": queue, "task_name": name, "sent_at__gte": since, "status": status}
    chosen = {column: value for column, value in given.items() if value is not None}
    rows = Task.objects.using(config().database)
    if status in FINAL:
        found = last_finished(rows, index_of(status))
    elif status is not None:
        # No index has sent_at, so the planner cannot choose the primary key and skip millions of finished rows.
        waiting = (PENDING & Q(parked=False)) | (PENDING & Q(parked=True))
        found = rows.filter(waiting if status == Status.PENDING.value else IN_FLIGHT).order_by("-sent_at", "-pk")
    else:
        found = newest(rows) if chosen else rows.order_by("-pk")
    listed = [TaskOverview(*row) for row in found.filter(**chosen).values_list(*TaskOverview._fields)[:limit]]
    searched_all = not chosen or (status is not None and status not in FINAL) or len(listed) == limit
    return TaskList(listed, not searched_all and rows_beyond(rows, status))


def index_of(status: str | None) -> Q:
    """Return the condition of the index that has the tasks of a final status."""
    return FINISHED if status == Status.COMPLETED.value else UNSUCCESSFUL


def newest(rows: Any) -> QuerySet[Task]:
    """Return the newest tasks by id; ids grow with time."""
    last = rows.order_by("-pk").values("pk")[DEEPEST - 1 : DEEPEST]
    found: QuerySet[Task] = rows.filter(pk__gte=Coalesce(Subquery(last), Value(OLDEST_ID, Task._meta.pk)))
    return found.order_by("-pk")


def last_finished(rows: Any, condition: Q) -> QuerySet[Task]:
    """Return the tasks of a condition, which an index has, that finished last."""
    last = rows.filter(condition).order_by("-finished_at").values("finished_at")[DEEPEST - 1 : DEEPEST]
    oldest = Coalesce(Subquery(last), Cast(Value("-infinity"), DateTimeField()))
    found: QuerySet[Task] = rows.filter(condition, finished_at__gte=oldest)
    return found.order_by("-finished_at", "-pk")


def rows_beyond(rows: Any, status: str | None) -> bool:
    """Whether there are more rows than were searched."""
    if status is None:
        return rows.order_by("-pk").values("pk")[DEEPEST : DEEPEST + 1].exists()  # type: ignore[no-any-return]
    beyond = rows.filter(index_of(status)).order_by("-finished_at").values("pk")[DEEPEST : DEEPEST + 1]
    return beyond.exists()  # type: ignore[no-any-return]
