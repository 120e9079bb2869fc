"""The task list: which rows, in which order, and how far it looks.

Each order is one that an index delivers, so a page reads from the newest row until it is full:

- in flight, or a few tasks pending: all of them are read through their small index and sorted;
- many pending, or any status: down the primary key, whose ids (UUIDv7) grow with time;
- finished: down horsies_tasks_finished.

A condition that the index does not know, a name say, drops rows on the way, and a rare one would lead through the whole
table; so such a list looks at the newest 100,000 rows of its order only, and says that it does.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import DateTimeField, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Coalesce
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.readonly import DEEPEST, NextPageMixin
from horsies_django.admin.base.worker_links import with_workers
from horsies_django.admin.tasks.filters import (
    WAITING,
    QueueFilter,
    StatusFilter,
    rows_of,
)
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Task

COLUMNS = ("task_name", "queue_name", "status", "error_code", "sent_at", "started_at", "finished_at", "claimed_by")
FEW = 10_000
OLDEST_ID = uuid.UUID(int=0)

# The number is DEEPEST; it stands in the text, for a translator to write it as the language does.
LOOKED_AT_NEWEST: str | Promise = _("Of the newest 100,000 tasks.")
LOOKED_AT_FINISHED: str | Promise = _("Of the 100,000 tasks that finished last.")


class TaskListMixin(NextPageMixin):
    """The change list of tasks; loads the columns that it shows and no payload."""

    def source(self) -> QuerySet[Task]:
        """Return the filtered tasks in an order that an index delivers, as far back as the list looks."""
        tasks: QuerySet[Task] = self.queryset.only(*COLUMNS)
        status, queue = self._chosen(StatusFilter), self._chosen(QueueFilter)
        if parse_id(self.query):
            return tasks  # one row, by the primary key
        if status in TERMINAL:
            self.note = LOOKED_AT_FINISHED
            return _newest_finished(tasks, rows_of(status)).order_by("-finished_at", "-pk")
        if status is not None and (status is not Status.PENDING or self._few_pending(queue)):
            # No index has sent_at: so the planner cannot take the primary key for it, and pass over millions of rows.
            return tasks.order_by("-sent_at", "-pk")
        if queue or self.query:
            self.note = LOOKED_AT_NEWEST
            tasks = _newest(tasks)
        return tasks.order_by("-pk")

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Find the workers of the page with one query."""
        return with_workers(self.model_admin, request, rows, "claimed_by")

    def _chosen(self, kind: type[StatusFilter | QueueFilter]) -> Any:
        spec = next((item for item in self.filter_specs if isinstance(item, kind)), None)
        return spec.status if isinstance(spec, StatusFilter) else spec.value() if spec else None

    def _few_pending(self, queue: str | None) -> bool:
        pending = Task.objects.using(self.root_queryset.db).filter(WAITING)
        if queue:
            pending = pending.filter(queue_name=queue)
        ids = pending.order_by("queue_name", "lane", "priority", "enqueued_at", "id").values_list("id", flat=True)
        return not ids[FEW : FEW + 1]


def _newest(tasks: QuerySet[Task]) -> QuerySet[Task]:
    last = Task.objects.using(tasks.db).order_by("-pk").values("pk")[DEEPEST - 1 : DEEPEST]
    return tasks.filter(pk__gte=Coalesce(Subquery(last), Value(OLDEST_ID, Task._meta.pk)))


def _newest_finished(tasks: QuerySet[Task], rows: Q) -> QuerySet[Task]:
    finished = Task.objects.using(tasks.db).filter(rows).order_by("-finished_at")
    last = finished.values("finished_at")[DEEPEST - 1 : DEEPEST]
    return tasks.filter(finished_at__gte=Coalesce(Subquery(last), Cast(Value("-infinity"), DateTimeField())))


def parse_id(term: str) -> uuid.UUID | None:
    """Return the id that a search asks for, or None when it is not one."""
    try:
        return uuid.UUID(term.strip())
    except ValueError:
        return None
