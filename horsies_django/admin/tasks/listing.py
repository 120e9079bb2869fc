"""The task list: its rows, their order, and how many rows are searched.

Each order is that of an index, so a page is read from the newest row until it is full:

- tasks in flight, or a few pending tasks: all are read through their small index and sorted;
- many pending tasks, or any status: by the primary key, whose ids (UUIDv7) grow with time;
- finished tasks: by horsies_tasks_finished;
- tasks of a workflow run: by horsies_tasks_node.

A condition that is not in the index, such as a name, filters rows afterwards and could read the whole table. Such a list is
limited to the newest 100,000 rows of its order, and says so.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import DateTimeField, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Coalesce
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.links import parse_id, with_workers
from horsies_django.admin.base.readonly import DEEPEST, NextPageMixin
from horsies_django.admin.tasks.filters import (
    WAITING,
    QueueFilter,
    StatusFilter,
    WorkflowFilter,
    rows_of,
)
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Task

COLUMNS = ("task_name", "queue_name", "status", "error_code", "sent_at", "started_at", "finished_at", "claimed_by")
FEW = 10_000
OLDEST_ID = uuid.UUID(int=0)

# The number is DEEPEST; it is part of the text so that translators can format it.
LOOKED_AT_NEWEST: str | Promise = _("Only the newest 100,000 tasks were searched.")
LOOKED_AT_FINISHED: str | Promise = _("Only the 100,000 tasks that finished last were searched.")


class TaskListMixin(NextPageMixin):
    """The change list of tasks; loads only the columns that it shows, no payload."""

    def source(self) -> QuerySet[Task]:
        """Return the filtered tasks in the order of an index, limited to the newest ones where the filter needs it."""
        tasks: QuerySet[Task] = self.queryset.only(*COLUMNS)
        status, queue = self._chosen(StatusFilter), self._chosen(QueueFilter)
        if parse_id(self.query):
            return tasks  # one row, by the primary key
        if self._chosen(WorkflowFilter):
            return tasks.order_by("node", "node_index", "pk")
        if status in TERMINAL:
            self.note = LOOKED_AT_FINISHED
            return _newest_finished(tasks, rows_of(status)).order_by("-finished_at", "-pk")
        if status is not None and (status is not Status.PENDING or self._few_pending(queue)):
            # No index contains sent_at, so the planner cannot choose the primary key and skip millions of rows.
            return tasks.order_by("-sent_at", "-pk")
        if queue or self.query:
            self.note = LOOKED_AT_NEWEST
            tasks = _newest(tasks)
        return tasks.order_by("-pk")

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add the workers, found with one query for the page."""
        return with_workers(self.model_admin, request, rows, "claimed_by")

    def _chosen(self, kind: type[StatusFilter | QueueFilter | WorkflowFilter]) -> Any:
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
