"""Forms that change one row: the table of verbs, and the buttons and views made from it.

A form whose only field is the reason needs no code of its own: a row of ``ADMIN_VERBS`` is enough.
The verbs call the same functions as the management commands. If two users change a row at the same
time, the last change applies, and the user is shown the entries that the audit got while the form
was open.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from horsies_django import queues, schedules
from horsies_django.admin.base.audit import (
    ACTIONS,
    OF_QUEUES,
    OF_SCHEDULES,
    OF_TASKS,
    OF_WORKFLOWS,
    changes,
    entries_of,
    shown_action,
)
from horsies_django.admin.base.html import MOST_ENTRIES, parse_id
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin, database_refusal
from horsies_django.conf import config
from horsies_django.core.errors import HorsiesError
from horsies_django.core.status import Status
from horsies_django.core.texts import LONGEST_REASON, name_of_user
from horsies_django.models import AuditEntry, Schedule, Task, WorkflowRun
from horsies_django.monitoring.overview import as_object, changed_keys
from horsies_django.tasks import operations as tasks
from horsies_django.tasks.redaction import redact
from horsies_django.workflows import operations as runs

ADD = "add"  # the verb that creates a row; all others change an existing row


class Verb(NamedTuple):
    """Something that can be done to a row.

    ``run`` is called with the key of the row, ``actor`` and ``reason``. It returns a value that is
    falsy, but not None, if it changed nothing. ``when`` returns whether the state of a row allows a
    button for it, but only ``run`` decides whether the change is made. ``button`` is the text that
    submits the form, if it differs from the label.
    """

    action: str  # its name in the audit
    label: Any  # a lazy text
    run: Callable[..., Any]
    when: Callable[[Any], bool]
    explanation: Any = ""
    permissions: tuple[str, ...] = ("horsies.configure_queue",)
    button: Any = ""
    needs_reason: bool = False
    deletes: bool = False  # the row is gone afterwards, so the user returns to the list


def always(_row: Any) -> bool:
    return True


def has_no_button(_row: Any) -> bool:
    """Return False, for verbs without a button on the page of a row.

    Their forms are reached from another form, or by a link with more in its address.
    """
    return False


def is_off(schedule: Schedule) -> bool:
    return as_object(schedule.definition).get("enabled") is False


def is_open(run: WorkflowRun) -> bool:
    return run.finished_at is None and run.status != "COMPENSATING"


def has_failed(run: WorkflowRun) -> bool:
    """Return whether nodes of a run can be retried.

    A finished child run is retried with its parent. A run whose nodes were all undone cannot be
    retried.
    """
    if run.finished_at is None:
        return is_open(run) and run.error_node is not None

    error = as_object(as_object(run.result).get("err")).get("data")
    undone = isinstance(error, dict) and "undone" in error and "not_undone" not in error
    return run.status in ("FAILED", "CANCELLED") and run.parent_id is None and not undone


def can_retry(task: Any) -> bool:
    """Return whether a task can run again under its id, or has a retry that can be made due now."""
    if task.finished_at is None:
        return (
            task.status == Status.PENDING
            and task.next_retry_at is not None
            and task.next_retry_at > task.read_at
        )
    kept = task.redacted_at is None and task.merged_into is None and task.workflow_id is None
    return kept and task.status != Status.COMPLETED


def is_kept(task: Task) -> bool:
    return task.finished_at is not None and task.redacted_at is None


def cancel_task(task: uuid.UUID, **options: Any) -> list[str]:
    """Cancel a task and return its verdict in a list, which is empty if the task had finished."""
    return [
        verdict for verdict in tasks.cancel([task], **options).values() if verdict != "FINISHED"
    ]


OPERATE = "horsies.operate_task"
VIEW_PAYLOAD = "horsies.view_payload"
of_run = partial(Verb, permissions=("horsies.operate_workflow",))
of_task = partial(Verb, permissions=(OPERATE,))
CONTROL_FUNCTIONS = {
    verb: partial(runs.control, verb=verb) for verb in ("pause", "resume", "cancel")
}

# The keys are the prefix of the actions, then the last part of the address of the form. The buttons
# appear in this order.
ADMIN_VERBS: dict[str, dict[str, Verb]] = {
    OF_QUEUES: {
        "override": Verb(
            "queue.override",
            _("Override"),
            queues.override,
            always,
            _(
                "Leave a limit empty to keep the declared value. Enter “none” for no limit. "
                "Running tasks continue: after a limit"
                " is lowered, no task starts until enough of them have "
                "finished."
            ),
            needs_reason=True,
        ),
        "clear": Verb(
            "queue.clear",
            _("Clear the override"),
            queues.clear,
            lambda row: row.override is not None,
            _("The declared limits apply again. Running tasks continue."),
        ),
        "resume": Verb(
            "queue.resume",
            _("Resume"),
            queues.resume,
            lambda row: row.paused_at is not None,
            _("Waiting tasks start again, within the limits."),
        ),
        "pause": Verb(
            "queue.pause",
            _("Pause"),
            queues.pause,
            lambda row: row.paused_at is None,
            _(
                "No more tasks start until the queue is resumed. Running tasks continue, and tasks "
                "can still be sent."
            ),
        ),
    },
    OF_SCHEDULES: {
        "run_now": Verb(
            "schedule.run_now",
            _("Run now"),
            schedules.run_now,
            always,
            _("Sends the task once, now. The fire times of the schedule do not change."),
        ),
        "enable": Verb(
            "schedule.enable",
            _("Enable"),
            schedules.enable,
            lambda row: row.gone_at is None and is_off(row),
            _("The schedule fires from now on. No tasks are sent for past fire times."),
        ),
        "disable": Verb(
            "schedule.disable",
            _("Disable"),
            schedules.disable,
            lambda row: row.gone_at is None and not is_off(row),
            _("The schedule does not fire until it is enabled. Sent tasks are not affected."),
        ),
        "edit": Verb(
            "schedule.change",
            _("Edit"),
            schedules.change,
            always,
            _(
                "Your changes override the definition in the code until they are reverted. A new "
                "pattern or time zone, or enabling"
                " the schedule, takes effect from now on."
            ),
            button=_("Save"),
            needs_reason=True,
        ),
        "revert": Verb(
            "schedule.revert",
            _("Revert to the code"),
            schedules.revert,
            lambda row: bool(changed_keys(row)),
            _("Removes all changes. The definition in the code is in force again."),
        ),
        "delete": Verb(
            "schedule.delete",
            _("Delete"),
            schedules.delete,
            lambda row: row.declared_in is None or row.gone_at is not None,
            _(
                "Deletes the schedule, which no code declares. Sent tasks are not affected. "
                "The audit keeps the definition."
            ),
            deletes=True,
        ),
        ADD: Verb(
            "schedule.create",
            _("Add a schedule"),
            schedules.create,
            has_no_button,
            _("The task must exist in the code. The schedule itself is only in the database."),
            button=_("Add"),
        ),
    },
    OF_WORKFLOWS: {
        "resume": of_run(
            "workflow.resume",
            _("Resume"),
            CONTROL_FUNCTIONS["resume"],
            lambda row: row.status == "PAUSED",
            _("Nodes that are ready start again."),
        ),
        "pause": of_run(
            "workflow.pause",
            _("Pause"),
            CONTROL_FUNCTIONS["pause"],
            lambda row: is_open(row) and row.status != "PAUSED",
            _(
                "No more nodes start until the run is resumed. Running tasks continue; tasks "
                "without an attempt are withdrawn."
            ),
        ),
        "retry": of_run(
            "workflow.retry",
            _("Retry"),
            runs.retry,
            has_failed,
            _(
                "Nodes that failed, expired or were cancelled run again, and so do those that were "
                "skipped because of them. "
                "Completed nodes are kept. If nodes were undone, only failed undos run again."
            ),
        ),
        "skip": of_run(
            "workflow.skip",
            _("Skip a node"),
            runs.skip,
            lambda row: row.finished_at is None,
            _(
                "Only a node that has not begun can be skipped. Nodes that depend on it may be "
                "skipped, too."
            ),
        ),
        "cancel": of_run(
            "workflow.cancel",
            _("Cancel"),
            CONTROL_FUNCTIONS["cancel"],
            is_open,
            _(
                "Nodes that have not started are cancelled. Running tasks are asked to stop. Nodes "
                "that have begun are undone if"
                " they have an undo."
            ),
            button=_("Cancel the run"),
        ),
        "approve": of_run(
            "workflow.approve",
            _("Approve"),
            partial(runs.decide_opening, approved=True),
            has_no_button,
            _("The gate completes, and the nodes that depend on it run."),
        ),
        "reject": of_run(
            "workflow.reject",
            _("Reject"),
            partial(runs.decide_opening, approved=False),
            has_no_button,
            _("The gate fails, and so do the nodes that depend on it."),
        ),
    },
    OF_TASKS: {
        "retry": of_task(
            "task.retry",
            _("Retry"),
            tasks.retry,
            can_retry,
            _(
                "The task runs again now, under the same id. Its attempts are kept, and its "
                "retries are counted from zero."
            ),
        ),
        "skip": of_task(
            "task.skip",
            _("Skip"),
            tasks.skip,
            lambda row: row.order_stop == "stop",
            _("The task stays failed, and the next task of its key starts."),
            needs_reason=True,
        ),
        "copy": of_task(
            "task.copy",
            _("Send a copy"),
            tasks.copy,
            is_kept,
            _("Sends the task again under a new id, with the same arguments and options, due now."),
        ),
        "cancel": of_task(
            "task.cancel",
            _("Cancel"),
            cancel_task,
            lambda row: row.finished_at is None and row.cancel_requested_at is None,
            _("A waiting task never runs. A running task is asked to stop."),
            button=_("Cancel the task"),
        ),
        "kill": of_task(
            "task.terminate",
            _("Kill"),
            partial(cancel_task, terminate=True),
            lambda row: (
                row.finished_at is None and row.claimed_by is not None and not row.terminate
            ),
            _("The task is asked to stop. If it does not stop, its process is killed."),
        ),
        "redact": of_task(
            "task.redact",
            _("Redact"),
            redact,
            is_kept,
            _(
                "Removes the arguments, the result, the steps and the messages of the task "
                "permanently. The reason must not contain personal data."
            ),
            permissions=(OPERATE, VIEW_PAYLOAD),
            needs_reason=True,
        ),
    },
}


class Tool(NamedTuple):
    """A link from the page of a row to one of its forms."""

    url: str
    text: str | Promise


class OvertakenError(Exception):
    """Raised if nothing was done because the row has changed since the form was opened.

    The message contains the change.
    """


class ChangeForm(forms.Form):
    """A form that changes one row.

    Forms with fields of their own override ``apply`` and pass the values to it.
    """

    reason = forms.CharField(
        label=_("Reason"),
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=_("Recorded in the audit."),
    )

    def __init__(
        self, *args: Any, row: Any, request: HttpRequest, verb: Verb, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.row = row
        self.request = request
        self.verb = verb
        self.fields["reason"].required = verb.needs_reason

    @property
    def fieldsets(self) -> list[tuple[Any, dict[str, Any]]]:
        """The fieldsets of the form, in the form that ``AdminForm`` expects."""
        return [(None, {"fields": list(self.fields)})]

    def apply(self, *given: Any, **arguments: Any) -> Any:
        """Make the change, and return the result of the verb's function.

        Raises HorsiesError or LookupError if the function does, and OvertakenError if the row has
        changed since the form was opened.
        """
        actor = {} if "user" in arguments else {"actor": name_of_user(self.request.user)}
        return self.verb.run(
            self.row.pk, *given, **actor, **arguments, reason=self.cleaned_data["reason"] or None
        )


class ChangeMixin(ReadOnlyAdminMixin):
    """Mixin that adds the change forms of a row to its page."""

    subjects: ClassVar[str]  # the prefix of the audit actions on these rows, the key in VERBS
    # The form classes of verbs that take more than a reason, by the name of the verb.
    change_forms: ClassVar[Mapping[str, type[ChangeForm]]] = {}
    change_form: ClassVar[type[ChangeForm]] = ChangeForm
    guard: Callable[[], AbstractContextManager[Any]] = nullcontext  # around each change

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Return whether the user may view these rows and use this verb on them."""
        return self.has_view_permission(request) and request.user.has_perms(
            ADMIN_VERBS[self.subjects][verb].permissions
        )

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may run the actions of the list.

        An action changes several rows at once.
        """
        return self.may(request, "cancel")

    def get_urls(self) -> list[Any]:
        """Return the URLs of the page, with those of the forms first.

        A change blocks all passes until it commits, so it must not run in the transaction of the
        request. Each change runs in a transaction of its own.
        """
        own = []
        for verb in ADMIN_VERBS[self.subjects]:
            view = self.view_of(partial(self.configure_view, name=verb), atomic=False)
            own.append(
                path(
                    f"{'' if verb == ADD else '<path:object_id>/'}{verb}/",
                    view,
                    name=self._page(verb),
                )
            )

        return [*own, *super().get_urls()]

    def _page(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    def tools(self, request: HttpRequest, row: Any) -> list[Tool]:
        """Return links to the forms that the state of a row allows and that this user may open."""
        verbs = ADMIN_VERBS[self.subjects].items()
        return [
            Tool(self.url_of(row, name), verb.label)
            for name, verb in verbs
            if self.may(request, name) and verb.when(row)
        ]

    def url_of(self, row: Any, page: str = "change") -> str:
        return reverse(
            f"admin:{self._page(page)}", args=(quote(row.pk),), current_app=self.admin_site.name
        )

    def list_url(self) -> str:
        return reverse(f"admin:{self._page('changelist')}", current_app=self.admin_site.name)

    def configure_view(
        self, request: HttpRequest, object_id: str | None = None, *, name: str
    ) -> HttpResponse:
        """Show a form, or make its change if it was submitted.

        Without ``object_id``, the form creates a row. Raises PermissionDenied if the user lacks a
        permission.
        """
        if not self.may(request, name):
            raise PermissionDenied

        row: Any = self.model()
        if object_id is not None:
            row = self.find(request, unquote(object_id))
            if row is None:
                text = gettext("There is no %(kind)s “%(name)s”.")
                return self.home(
                    request, text % {"kind": self.opts.verbose_name, "name": unquote(object_id)}
                )

        posted = request.method == "POST"
        last_entry = parse_id(request.POST.get("seen", "")) if posted else None
        if last_entry is None:
            newest = self._entries(row).values_list("pk", flat=True).first()  # ids ascend with time
            last_entry = newest or uuid.UUID(int=0)

        made = self.change_forms.get(name, self.change_form)
        form = made(
            request.POST if posted else None,
            row=row,
            request=request,
            verb=ADMIN_VERBS[self.subjects][name],
        )

        if posted and form.is_valid() and self._made(request, form, last_entry):
            return HttpResponseRedirect(
                self.list_url() if form.verb.deletes else self.url_of(form.row)
            )

        return self._form_page(request, form, last_entry, adds=object_id is None)

    def _made(self, request: HttpRequest, form: ChangeForm, last_entry: uuid.UUID) -> bool:
        """Make the change and show its result, or add the error to the form.

        Return True if the form is finished, False if it is shown again.
        """
        try:
            with self.guard():
                found = form.apply()
        except (HorsiesError, LookupError, ValueError) as error:
            form.add_error(None, str(error))
        except OvertakenError as error:
            self.message_user(request, str(error), messages.WARNING)
            return True
        except DatabaseError as error:
            # For example, a privilege is missing, the database is read-only, or the connection was
            # lost.
            form.add_error(None, database_refusal(error))
        else:
            self.show_result(request, form, found, last_entry)
            return True

        return False

    def show_result(
        self, request: HttpRequest, form: ChangeForm, found: Any, last_entry: uuid.UUID
    ) -> None:
        """Show a message about the task that was sent, or about each change.

        The changes are read from the audit, and include changes that others made while the form was
        open.
        """
        name = {
            "name": str(form.row),
            "kind": self.opts.verbose_name,
            "Kind": capfirst(self.opts.verbose_name),
        }

        if found is not None and not found:
            text = gettext(
                "%(Kind)s %(name)s: nothing was changed, because its state did not need or allow "
                "the change."
            )
            self.message_user(request, text % name, messages.INFO)
            return

        if isinstance(found, uuid.UUID):
            task = self.link(request, Task, found, str(found))
            text = format_html(gettext("{} {}: a task was sent, {}."), name["Kind"], form.row, task)
            self.message_user(request, text, messages.SUCCESS)
            return

        since = list(
            self._entries(form.row).filter(pk__gt=last_entry).order_by("-pk")[:MOST_ENTRIES]
        )
        me = name_of_user(request.user)
        action = form.verb.action
        own = next((entry for entry in since if (entry.actor, entry.action) == (me, action)), None)

        done = gettext("%(Kind)s %(name)s: %(did)s.")
        meanwhile = gettext(
            "While the form was open, %(actor)s also changed %(kind)s %(name)s: %(did)s. The last "
            "change applies."
        )

        for entry in reversed(since):
            values = {
                **name,
                "actor": entry.actor,
                "did": "; ".join([shown_action(entry), *changes(entry)]),
            }
            text, level = (
                (done, messages.SUCCESS) if entry is own else (meanwhile, messages.WARNING)
            )
            self.message_user(request, text % values, level)

        if own is None:
            did = gettext("%(action)s, but the audit has no entry for it") % {
                "action": ACTIONS.get(action, action)
            }
            self.message_user(request, done % {**name, "did": did}, messages.WARNING)

    def _form_page(
        self, request: Any, form: ChangeForm, last_entry: uuid.UUID, adds: bool
    ) -> HttpResponse:
        """Return the page of a form.

        Its context has all that the change form of Django, or of a theme, expects.
        """
        context = {
            **self.admin_site.each_context(request),
            "title": form.verb.label if adds else f"{form.verb.label}: {form.row}",
            "original": None if adds else form.row,
            "media": self.media + form.media,
            "form": form,
            "adminform": AdminForm(form, form.fieldsets, {}, model_admin=self),  # type: ignore[arg-type]
            "errors": form.errors,
            "inline_admin_formsets": [],
            "is_popup": False,
            "to_field": None,
            "seen": last_entry,
            "back_url": self.list_url() if adds else self.url_of(form.row),
        }

        page: Any = self.render_change_form(request, context, add=adds, change=not adds)
        page.template_name = "admin/horsies/configure.html"
        return page  # type: ignore[no-any-return]

    def _entries(self, row: Model) -> QuerySet[AuditEntry]:
        return entries_of(config().database, row.pk, self.subjects)
