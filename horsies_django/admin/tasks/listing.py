"""The task list: its order, how many rows are searched, its filters, and the actions on tasks.

Each order is that of an index, so a page is read from the newest row until it is full:

- tasks in flight, or a few pending tasks: all are read through their small index and sorted;
- many pending tasks, or any status: by the primary key, whose ids (UUIDv7) grow with time;
- finished tasks: by horsies_tasks_finished;
- tasks of a workflow run: by horsies_tasks_node.

A condition that is not in the index, such as a name, filters rows afterwards and could read the whole table. Such a list is
limited to the newest 100,000 rows of its order, and says so.

No index contains the status, because every start of a task would have to update it. The filters use the conditions of the
partial indexes instead: unowned and unfinished tasks are PENDING, owned and unfinished ones CLAIMED or RUNNING, and finished
tasks are indexed by the time when they finished.

The actions, cancel, terminate and run again, need ``horsies.operate_task`` and are audited.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.db import DatabaseError
from django.db.models import DateTimeField, Q, QuerySet, Subquery, Value
from django.db.models.functions import Cast, Coalesce
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.utils.translation import gettext_lazy as _

from horsies_django.admin.base.html import STATUSES, parse_id, with_workers
from horsies_django.admin.base.readonly import DEEPEST, NextPageMixin
from horsies_django.admin.base.refusals import patiently, refusal
from horsies_django.conf import config
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Queue, Task
from horsies_django.models.tasks import FINISHED, IN_FLIGHT, PENDING, UNSUCCESSFUL
from horsies_django.tasks import operations

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Task]
else:
    Base = object

# Each operand is the condition of an index: horsies_tasks_claim and horsies_tasks_parked.
WAITING = (PENDING & Q(parked=False)) | (PENDING & Q(parked=True))
COLUMNS = ("task_name", "queue_name", "status", "error_code", "sent_at", "started_at", "finished_at", "claimed_by")
FEW = 10_000
OLDEST_ID = uuid.UUID(int=0)

# The number is DEEPEST; it is part of the text so that translators can format it.
LOOKED_AT_NEWEST: str | Promise = _("Only the newest 100,000 tasks were searched.")
LOOKED_AT_FINISHED: str | Promise = _("Only the 100,000 tasks that finished last were searched.")


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


class OperateMixin(Base):
    """Adds the actions on selected tasks."""

    actions = ("cancel_tasks", "terminate_tasks", "retry_tasks", "copy_tasks")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel, retry and copy tasks."""
        return request.user.has_perm("horsies.operate_task")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return only these actions, without Django's delete. Django 6.1 and newer pass ``action_location``."""
        where = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **where)
        return {name: action for name, action in offered.items() if name in OperateMixin.actions}

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel"))
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel waiting tasks, and ask running tasks to stop."""
        self._cancel(request, queryset, terminate=False)

    @admin.action(
        permissions=["operate"], description=gettext_lazy("Cancel, and kill the processes of tasks that do not stop")
    )
    def terminate_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel waiting tasks, and terminate running tasks."""
        self._cancel(request, queryset, terminate=True)

    @admin.action(permissions=["operate"], description=gettext_lazy("Retry"))
    def retry_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Let failed, expired and cancelled tasks run again, and make waiting retries due now."""
        done = self._each(request, queryset, operations.retry)
        self._tell(request, done, ngettext("%(count)d task will run again.", "%(count)d tasks will run again.", done))

    @admin.action(permissions=["operate"], description=gettext_lazy("Send a copy"))
    def copy_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Send finished tasks once more, under new ids."""
        done = self._each(request, queryset, operations.copy)
        self._tell(request, done, ngettext("%(count)d copy was sent.", "%(count)d copies were sent.", done))

    def _each(self, request: HttpRequest, queryset: QuerySet[Task], operate: Callable[..., object]) -> int:
        """Do something with each task, say what was refused, and return for how many it was done."""
        done = 0
        try:
            for id_ in list(queryset.values_list("pk", flat=True)):
                try:
                    with patiently():
                        operate(id_, actor=request.user.get_username())
                    done += 1
                except (TaskNotRetryable, LookupError) as error:
                    self.message_user(request, str(error), messages.WARNING)
        except DatabaseError as error:  # the other tasks would fail in the same way
            self.message_user(request, refusal(error), messages.ERROR)
        return done

    def _tell(self, request: HttpRequest, done: int, text: str) -> None:
        if done:
            self.message_user(request, text % {"count": done}, messages.SUCCESS)

    def _cancel(self, request: HttpRequest, queryset: QuerySet[Task], *, terminate: bool) -> None:
        actor = request.user.get_username()
        try:
            ids = list(queryset.values_list("pk", flat=True))
            with patiently():
                verdicts = Counter(operations.cancel(ids, terminate=terminate, actor=actor).values())
        except DatabaseError as error:
            self.message_user(request, refusal(error), messages.ERROR)
            return
        text = gettext(
            "%(cancelled)d cancelled, %(requested)d running and asked to stop, %(finished)d already finished."
        )
        counts = {name.lower(): verdicts[name] for name in ("CANCELLED", "REQUESTED", "FINISHED")}
        self.message_user(request, text % counts, messages.SUCCESS)
