"""The filters of the task list, and the index that each of them uses.

No index contains the status, because every start of a task would have to update it. The filters use the conditions of the
partial indexes instead: unowned and unfinished tasks are PENDING, owned and unfinished ones CLAIMED or RUNNING, and finished
tasks are indexed by the time when they finished.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.html import STATUSES
from horsies_django.conf import config
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Queue, Task
from horsies_django.models.tasks import FINISHED, IN_FLIGHT, PENDING, UNSUCCESSFUL

# Each operand is the condition of an index: horsies_tasks_claim and horsies_tasks_parked.
WAITING = (PENDING & Q(parked=False)) | (PENDING & Q(parked=True))


def rows_of(status: Status) -> Q:
    """Return the condition of the partial index that holds the tasks of a status."""
    if status in TERMINAL:
        return FINISHED if status is Status.COMPLETED else UNSUCCESSFUL
    return WAITING if status is Status.PENDING else IN_FLIGHT


class StatusFilter(admin.SimpleListFilter):
    """Tasks of one status."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, Any]]:
        """Return all statuses, whether or not there are such tasks."""
        return ((status.value, text) for status, (_shape, text) in STATUSES.items())

    @property
    def status(self) -> Status | None:
        """The selected status. Raises IncorrectLookupParameters for an unknown one."""
        value = self.value()
        try:
            return Status(value) if value else None
        except ValueError as error:
            raise IncorrectLookupParameters(str(error)) from None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        """Filter by the status, with the condition of its index."""
        return queryset.filter(rows_of(self.status), status=self.status.value) if self.status else queryset


class QueueFilter(admin.SimpleListFilter):
    """Tasks of one queue."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the queues in the database; the queues of all tasks would need a DISTINCT over the whole table.

        The row of the cluster is left out, because it has no tasks.
        """
        rows = Queue.objects.using(config().database).exclude(name=CLUSTER)
        names = rows.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        """Filter by the queue. Raises IncorrectLookupParameters for a name that PostgreSQL cannot store."""
        name = self.value()
        if name and "\x00" in name:
            raise IncorrectLookupParameters(repr(name))
        return queryset.filter(queue_name=name) if name else queryset


class WorkflowFilter(admin.SimpleListFilter):
    """Tasks of a workflow run, or of one of its nodes: ``<id of the run>`` or ``<id>:<number>``. Shown only when it is set."""

    title = _("workflow run")
    parameter_name = "workflow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the run or node in the address; pages of workflows link here."""
        value = request.GET.get(self.parameter_name)
        return [(value, value)] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        """Filter by the run and the node. Raises IncorrectLookupParameters for an invalid id or number."""
        run, _colon, number = (self.value() or "").partition(":")
        if not run:
            return queryset
        try:
            found = queryset.filter(workflow_id=uuid.UUID(run))
            return found.filter(node=int(number)) if number else found
        except ValueError as error:
            raise IncorrectLookupParameters(str(error)) from None
