"""The task list: the form that describes which tasks are shown, and the actions on ticked tasks.

How far a list reads, and in which order, is documented in ``horsies_django.tasks.selection``. Two
kinds of lists are read in other ways: tasks of a workflow run through the index horsies_tasks_node,
and one task, searched by its id, by the primary key.
"""

from __future__ import annotations

import uuid
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_TASKS
from horsies_django.admin.base.change_forms import ADMIN_VERBS
from horsies_django.admin.base.html import STATUSES, parse_id, with_workers
from horsies_django.admin.base.readonly import NextPageMixin, database_refusal, patiently
from horsies_django.conf import config
from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import name_of_user
from horsies_django.management.shared import ago
from horsies_django.models import Queue, Task
from horsies_django.tasks import registry, selection

LISTED_TASK_COLUMNS = (
    "task_name",
    "queue_name",
    "status",
    "error_code",
    "sent_at",
    "enqueued_at",
    "started_at",
    "finished_at",
    "claimed_by",
    "retry_count",
    "max_retries",
    "attempts_before",
)
# The verdicts of tasks that changed. Any other verdict is the reason why nothing was done.
DONE = {"RETRIED", "HASTENED", "CANCELLED", "REQUESTED", "COPIED"}


class MomentField(forms.CharField):
    """A field for a duration before now, or for a datetime.

    A datetime without a time zone is in the current time zone.
    """

    def clean(self, value: Any) -> Any:
        """Return the datetime with a time zone, or None for an empty text."""
        text = super().clean(value)
        try:
            return ago(text) if text else None
        except ArgumentTypeError:
            try:
                return timezone.make_aware(datetime.fromisoformat(text))
            except (ValueError, OverflowError):
                raise forms.ValidationError(_("Enter 30m, 2h, 7d or 2030-01-31 18:00.")) from None


class SelectionForm(forms.Form):
    """A form that describes tasks, in lists and for acts on all of them.

    After validation, ``selected`` is the selection of these tasks.
    """

    status = forms.ChoiceField(
        label=gettext_lazy("Status"),
        required=False,
        choices=[
            ("", gettext_lazy("Any")),
            *((status.value, text) for status, (_shape, text) in STATUSES.items()),
            (selection.UNSUCCESSFUL, gettext_lazy("Failed, cancelled or expired")),
            (selection.FINISHED, gettext_lazy("Finished")),
        ],
    )
    queue = forms.CharField(label=gettext_lazy("Queue"), required=False, max_length=100)
    name = forms.CharField(
        label=gettext_lazy("Name, or a part of it"), required=False, max_length=255
    )
    code = forms.CharField(label=gettext_lazy("Error code"), required=False, max_length=100)
    site = forms.CharField(label=gettext_lazy("Failed in"), required=False, max_length=1_000)
    exception = forms.CharField(label=gettext_lazy("Exception"), required=False, max_length=1_000)
    since = MomentField(label=gettext_lazy("Finished or sent since"), required=False, max_length=40)
    until = MomentField(label=gettext_lazy("Until"), required=False, max_length=40)
    worker = forms.UUIDField(label=gettext_lazy("Worker"), required=False)
    partition = forms.CharField(label=gettext_lazy("Partition"), required=False, strip=False)
    hints = {
        "name": "shop.tasks",
        "site": "shop/tasks.py in charge",
        "since": "12h",
        "until": "2030-01-31 18:00",
    }

    def __init__(self, request: HttpRequest, acting: bool = False) -> None:
        """Read the fields from the address. If ``acting`` is true, a status is required."""
        self.visible = request.user.has_perm("horsies.view_payload")
        initial = {"status": "FAILED", **request.GET.dict()} if acting else None
        super().__init__(
            request.GET if not acting or "status" in request.GET else None, initial=initial
        )
        self.fields["status"].required = acting

        for name, hint in self.hints.items():
            self.fields[name].widget.attrs["placeholder"] = hint

        queues = Queue.objects.using(config().database).exclude(name=CLUSTER).order_by("name")
        self.offered = {
            "queue": list(queues.values_list("name", flat=True)),
            "name": sorted(registry.names()),
        }
        for name in self.offered:
            self.fields[name].widget.attrs["list"] = f"horsies-{name}s"

    def clean(self) -> dict[str, Any]:
        """Select the tasks. Attributes that cannot be combined are an error of the form."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if given.get("partition") and not self.visible:
            self.add_error(
                "partition", _("The permission horsies.view_payload is required to see partitions.")
            )

        if not self.errors:
            try:
                if given.get("partition"):
                    given["partition"] = selection.stored_key(given["partition"])
                self.selected = selection.described(
                    **{name: value or None for name, value in given.items()}
                )
            except ValueError as error:
                raise forms.ValidationError(str(error)) from None

        return given


def address(page: Any, name: str, /, **fields: Any) -> str:
    """Return the URL of one of the pages of tasks, with the fields that have a value."""
    given = urlencode({key: value for key, value in fields.items() if value})
    url = reverse(f"admin:horsies_task_{name}", current_app=page.admin_site.name)
    return f"{url}{given and '?'}{given}"


class TaskListMixin(NextPageMixin):
    """The change list of tasks. It loads only the columns that it shows, and no payload."""

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Return the parameters of filters, without the fields of the form."""
        found = super().get_filters_params(params)
        return {
            name: value
            for name, value in found.items()
            if name not in (*SelectionForm.base_fields, "workflow")
        }

    def get_results(self, request: HttpRequest) -> None:
        """Read the form, then the page."""
        self.form = SelectionForm(request)
        self.run = request.GET.get("workflow", "")
        super().get_results(request)

    def source(self) -> QuerySet[Task]:
        """Return the described tasks in the order of an index.

        They are limited to the newest tasks if the index also contains other rows.
        """
        tasks: QuerySet[Task] = self.queryset.only(*LISTED_TASK_COLUMNS)
        if not self.form.is_valid():
            return tasks.none()

        chosen = self.form.selected
        if parse_id(self.query):
            return selection.fitting(chosen, tasks)
        if self.query:
            chosen = chosen._replace(names=selection.names_with(self.query.strip()))

        if self.run:
            run, _colon, number = self.run.partition(":")
            try:
                found = selection.fitting(chosen, tasks).filter(workflow_id=uuid.UUID(run))
                return (found.filter(node=int(number)) if number else found).order_by(
                    "node", "node_index", "pk"
                )
            except ValueError as error:
                self.form.add_error(None, str(error))
                return tasks.none()

        found, bounded = selection.newest_tasks(chosen, tasks)
        # The number is that of ``selection.MOST_SCANNED``. It is part of the text, so that
        # translators can format it.
        self.note = _("Only the newest 30,000 tasks were searched.") if bounded else ""

        return found

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Set the workers of the tasks, which are found with one query for the page."""
        return with_workers(self.model_admin, request, rows, "claimed_by")


def action(verb: str, label: Any) -> Callable[..., None]:
    """Return an admin action that changes the ticked tasks in one transaction.

    The verbs are those of ``selection.act_on``.
    """

    def act(self: Any, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        ids = list(queryset.order_by("pk").values_list("pk", flat=True))

        try:
            with patiently():
                verdicts = selection.act_on(ids, verb, actor=name_of_user(request.user))
        except DatabaseError as error:
            self.message_user(request, database_refusal(error), messages.ERROR)
        else:
            level = messages.SUCCESS if DONE & verdicts.keys() else messages.WARNING
            counted = ", ".join(f"{verdict}: {many}" for verdict, many in verdicts.items())
            self.message_user(request, f"{label}: {counted or _('Nothing changed.')}", level)

    act.__name__ = f"{verb}_tasks"
    return admin.action(act, permissions=["operate"], description=label)


TASK_ACTIONS = (
    action("cancel", ADMIN_VERBS[OF_TASKS]["cancel"].label),
    action("terminate", gettext_lazy("Cancel, and kill the processes of tasks that do not stop")),
    action("retry", ADMIN_VERBS[OF_TASKS]["retry"].label),
    action("copy", ADMIN_VERBS[OF_TASKS]["copy"].label),
)
