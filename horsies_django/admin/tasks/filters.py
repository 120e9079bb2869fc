"""The filters of the task list, and where each of them lets the database read.

An index of status would make every start of a task rewrite it, so none has it; yet every filter must find a rare status
among a million rows. The partial indexes say the same in other words: unowned and unfinished is PENDING, owned and
unfinished is CLAIMED or RUNNING, and what has finished is indexed by when.
"""

from __future__ import annotations

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

# Each arm is the predicate of an index: horsies_tasks_claim and horsies_tasks_parked.
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
        """Offer every status, whether or not there is such a task: to know would mean to look."""
        return ((status.value, text) for status, (_shape, text) in STATUSES.items())

    @property
    def status(self) -> Status | None:
        """The chosen status. Raises IncorrectLookupParameters for one that does not exist."""
        value = self.value()
        try:
            return Status(value) if value else None
        except ValueError as error:
            raise IncorrectLookupParameters(str(error)) from None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        """Narrow to the status, in the words of its index."""
        return queryset.filter(rows_of(self.status), status=self.status.value) if self.status else queryset


class QueueFilter(admin.SimpleListFilter):
    """Tasks of one queue."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the queues that are declared; the queues of all tasks would be a DISTINCT over the whole table.

        The row of the cluster holds a limit and no task: filtering by it would show an empty list.
        """
        rows = Queue.objects.using(config().database).exclude(name=CLUSTER)
        names = rows.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        """Narrow to the queue. Raises IncorrectLookupParameters for a name that PostgreSQL cannot hold."""
        name = self.value()
        if name and "\x00" in name:
            raise IncorrectLookupParameters(repr(name))
        return queryset.filter(queue_name=name) if name else queryset
