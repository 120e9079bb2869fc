"""The admin pages for tasks: the list, and the page of a task.

The page of a task contains its arguments, its result and its attempts.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_TASKS, entries_of, last_changes, shown_action
from horsies_django.admin.base.change_forms import ChangeForm, ChangeMixin, OvertakenError
from horsies_django.admin.base.html import (
    MOST_ROWS,
    NO_VALUE,
    age,
    badge,
    breakable,
    duration_text,
    field,
    moment_field,
    parse_id,
    row_field,
    status_badge,
    with_workers,
)
from horsies_django.admin.base.readonly import ModelAdmin, patiently
from horsies_django.admin.tasks.bulk import BulkMixin
from horsies_django.admin.tasks.listing import TASK_ACTIONS, TaskListMixin
from horsies_django.admin.tasks.sections import (
    SectionsMixin,
    attempt_numbers,
    attempt_table,
    headline,
    panel,
    step_table,
    with_copies,
)
from horsies_django.conf import config
from horsies_django.core.queues import shown_priority
from horsies_django.core.status import Status
from horsies_django.models import Queue, Task, TaskAttempt

LANE_LABELS = {"async": gettext_lazy("async function"), "sync": gettext_lazy("sync function")}


class TaskForm(ChangeForm):
    """A form that changes one task, unless the task has changed since the form was opened.

    A task has changed if the audit has a new entry about it, or if it has ended or begun again.
    """

    state = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_bound:
            self.fields["state"].initial = self.state_of(self.row)

    def state_of(self, task: Any) -> str:
        self.last = entries_of(task._state.db, task.pk, OF_TASKS).first()
        return f"{self.last and self.last.pk} {task.finished_at and task.finished_at.isoformat()}"

    def apply(self, *given: Any, **arguments: Any) -> Any:
        """Make the change in the open transaction.

        The lock makes the second of two clicks wait until the change of the first one is visible.
        """
        rows = (
            Task.objects.using(self.row._state.db)
            .select_for_update(no_key=True)
            .filter(pk=self.row.pk)
        )
        task = rows.only("status", "finished_at").first()

        if task is not None and self.state_of(task) != self.cleaned_data["state"]:
            text = _(
                "Nothing was done, because the task has changed since the form was opened: its "
                "status is %(status)s now."
            )
            last = f" {self.last.actor}: {shown_action(self.last)}." if self.last else ""
            raise OvertakenError(text % {"status": task.status} + last)

        return super().apply(*given, **arguments)


class TaskAdminMixin(BulkMixin, SectionsMixin, ChangeMixin):
    """The logic of the task pages, for any ModelAdmin."""

    subjects = OF_TASKS
    change_form = TaskForm
    guard = staticmethod(patiently)
    change_list_mixin = TaskListMixin
    actions = TASK_ACTIONS
    list_display = (
        "shown_status",
        "shown_name",
        "shown_queue",
        "shown_error_code",
        "shown_when",
        "shown_wait",
        "shown_duration",
        "shown_attempt",
        "listed_worker",
    )
    list_display_links = ("shown_name",)
    search_fields = ("task_name",)  # shows the box; searched() and the change list do the search
    search_help_text = gettext_lazy(
        "Enter a full task id, a task name, or a part of it (case-sensitive)."
    )
    # The payload of fifty tasks could be a gigabyte.
    payload_columns = ("kwargs", "options", "result", "partition_key")

    def searched(self, rows: QuerySet[Task], term: str) -> QuerySet[Task]:
        """Search by id. The change list searches by name. No search reads the payload."""
        id_ = parse_id(term)
        return rows.filter(pk=id_) if id_ else rows

    def complete(self, request: HttpRequest, task: Any) -> None:
        """Set the links of a task to its worker, its queue, its copies and its run."""
        with_workers(self, request, [task], "claimed_by")
        task.linked_queue = self.link(request, Queue, task.queue_name, task.queue_name)
        with_copies(self, request, task)
        self.with_place(request, task)

    def get_fieldsets(self, request: HttpRequest, obj: Task | None = None) -> Any:
        """Return the fields of the page for this user."""
        state = ("shown_status", "shown_error_code")
        queue = ("linked_queue", "priority_", "runs_as")
        copies = (
            field for field in ("linked_original", "linked_copies") if getattr(obj, field, "")
        )
        times = (("sent", "eligible", "good_until_"), ("started", "finished", "shown_duration"))
        claim = (("listed_worker", "claimed", "cancel_requested"), ("shown_retries", "next_retry"))
        internals = (
            ("lease_ends", "claim_generation", "codec"),
            ("waits_for_permit", "partition_version"),
        )

        return (
            (None, {"fields": ("shown_id", "task_name", state, queue, *copies)}),
            *self.place_fieldsets(obj),
            (gettext_lazy("Times"), {"fields": times}),
            *self.payload_fieldsets(request, obj),
            (gettext_lazy("Claim and retries"), {"fields": claim}),
            (gettext_lazy("Internals"), {"classes": ("collapse",), "fields": internals}),
        )

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the headline, the reasons, the tables and the buttons of a task.

        The tables are its attempts, its steps and the last changes.
        """
        visible = self.has_view_payload_permission(request)
        kept = (
            TaskAttempt.objects.using(obj._state.db)
            .filter(task_id=obj.pk)
            .order_by("-attempt", "-claim_generation")
        )
        attempts = list((kept if visible else kept.defer("error_message", "traceback"))[:MOST_ROWS])

        reasons = panel(self, request, obj, visible)
        tables = [
            attempt_table(self, request, obj, attempts, visible),
            step_table(obj),
            last_changes(self, request, obj, str(obj.pk), OF_TASKS),
        ]

        return {
            "headline": headline(
                self, request, obj, reasons, attempts[0].site if attempts else None
            ),
            "panel": reasons,
            "tables": [table for table in tables if table.id == "attempts" or table.rows != []],
            "tools": self.tools(request, obj),
        }

    @admin.display(description=gettext_lazy("wait"))
    def shown_wait(self, obj: Any) -> str:
        """Return how long the last attempt was due before it started.

        If it has not started, this is how long it has been due.
        """
        waited = (obj.started_at or obj.finished_at or obj.read_at) - obj.enqueued_at
        return duration_text(waited) if waited >= dt.timedelta(0) else NO_VALUE

    @admin.display(description=gettext_lazy("attempt"))
    def shown_attempt(self, obj: Task) -> str:
        """Return the number of the attempt, or a dash if there can be only one."""
        numbers = attempt_numbers(obj)
        return _("%(number)d of %(most)d") % numbers if numbers["most"] > 1 else NO_VALUE

    @admin.display(description=gettext_lazy("duration"))
    def shown_duration(self, obj: Any) -> SafeString | str:
        """Return the duration of the last attempt.

        A very long attempt that is still running is highlighted.
        """
        if obj.started_at is None:
            return NO_VALUE
        if obj.finished_at:
            return duration_text(obj.finished_at - obj.started_at)

        if obj.status == Status.RUNNING:
            taken = obj.read_at - obj.started_at
            text = _("%(span)s so far") % {"span": duration_text(taken)}
            longest = config().report_running_after_ms
            return (
                text
                if longest is None or taken < dt.timedelta(milliseconds=longest)
                else badge("full", "■", text)
            )

        return NO_VALUE

    @admin.display(description=gettext_lazy("retries"))
    def shown_retries(self, obj: Task) -> str:
        """Return the number of retries that were made, and that are allowed."""
        return _("%(made)d of %(allowed)d") % {"made": obj.retry_count, "allowed": obj.max_retries}

    @admin.display(description=gettext_lazy("waiting for a permit of its partition"), boolean=True)
    def waits_for_permit(self, obj: Task) -> bool:
        """Return whether the task is parked until its partition is below its limit."""
        return obj.parked

    shown_status = field("status", gettext_lazy("status"), status_badge)
    shown_name = field("task_name", gettext_lazy("name"), breakable)
    shown_queue = field("queue_name", gettext_lazy("queue"))
    shown_when = row_field(
        gettext_lazy("when"), lambda task: age(task.finished_at or task.sent_at, task.read_at)
    )
    shown_error_code = field("error_code", gettext_lazy("error code"))  # contains no payload
    runs_as = field("lane", gettext_lazy("runs as"), LANE_LABELS.get)
    priority_ = row_field(
        gettext_lazy("priority"), lambda task: shown_priority(task.priority, task.codec)
    )
    linked_queue = field("linked_queue", gettext_lazy("queue"))
    linked_original = field("linked_original", gettext_lazy("copy of"))
    linked_copies = field("linked_copies", gettext_lazy("run again as"))
    listed_worker = field("shown_worker", gettext_lazy("worker"))
    sent = moment_field(Task, "sent_at")
    eligible = moment_field(Task, "enqueued_at")
    good_until_ = moment_field(Task, "good_until")
    claimed = moment_field(Task, "claimed_at")
    lease_ends = moment_field(Task, "claim_expires_at")
    started = moment_field(Task, "started_at")
    finished = moment_field(Task, "finished_at")
    next_retry = moment_field(Task, "next_retry_at")
    cancel_requested = moment_field(Task, "cancel_requested_at")


class TaskAdmin(TaskAdminMixin, ModelAdmin):
    """The task pages for Django's own admin."""
