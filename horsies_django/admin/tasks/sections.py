"""What the page of a task shows: its payload, its place in a workflow, its copies, its steps, and why it does not run.

The payload is for users with ``horsies.view_payload``. It is shown as the stored JSON: no code of the project is imported, so
the page works even if the task's module does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib import admin
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import (
    LAST,
    MANY,
    NOTHING,
    PATIENCE_MS,
    Line,
    Table,
    absolute,
    block,
    field,
    json_block,
    moment_field,
    node_link,
    reason_line,
    row_field,
    status_badge,
)
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin, read_bounded
from horsies_django.admin.tasks.attempts import frames
from horsies_django.core.codec.plain import named_arguments
from horsies_django.core.explanations import Reason
from horsies_django.core.kinds import kind_of
from horsies_django.core.status import Status
from horsies_django.models import Task, TaskStep, WorkflowNode, WorkflowRun
from horsies_django.monitoring import overview
from horsies_django.monitoring.explain import explain


class Panel(NamedTuple):
    """The panel with the reasons; ``lines`` is None if finding them timed out."""

    title: str | Promise
    lines: list[Line] | None
    reasons: tuple[Reason, ...]


def panel(page: Any, request: HttpRequest, task: Task, visible: bool) -> Panel | None:
    """Return the reasons for an unfinished task, None for a finished one; ``visible``: the user may see its payload."""
    if task.finished_at is not None:
        return None
    title = _("Where is it running?") if task.status == Status.RUNNING else _("Why is it not running?")
    try:
        found = read_bounded(task._state.db or "", lambda: explain(task.pk), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return None
    reasons = found.reasons if found else ()
    return Panel(title, [reason_line(page, request, one, visible) for one in reasons] if found else None, reasons)


def step_table(task: Task) -> Table:
    """Return the newest steps of a task, the newest first. Results are not read: those of a long task could be a gigabyte."""
    steps = TaskStep.objects.using(task._state.db).filter(task_id=task.pk).order_by("-created_at", "name")
    rows = [[name, absolute(at)] for name, at in steps.values_list("name", "created_at")[:MANY]]
    return Table("steps", _("Steps"), (_("Step"), _("Recorded")), rows)


class PayloadMixin(ReadOnlyAdminMixin):
    """Adds the payload of a task to its page, or a note about the required permission."""

    def payload_fieldsets(self, request: HttpRequest, obj: Task | None) -> tuple[Any, ...]:
        """Return the fields that the task has and the user may see."""
        title = gettext_lazy("Arguments and result")
        fields = ["redacted"] if obj is not None and obj.redacted_at is not None else []
        if obj is None or not self.has_view_payload_permission(request):
            return ((title, {"fields": (*fields, "hidden_payload")}),)
        fields += ["shown_arguments"]
        if error := _error(obj):
            fields += ["shown_error"]
            fields += ["shown_error_data"] if error.get("data") is not None else []
            fields += ["shown_traceback"] if _exception(obj).get("traceback") else []
        else:
            fields += ["shown_result"]
        fields += ["shown_metadata"] if _metadata(obj) is not None else []
        fields += ["shown_options"] if _other_options(obj) is not None else []
        fields += ["partition_key"] if obj.partition_key is not None else []
        return ((title, {"fields": tuple(fields)}),)

    redacted = moment_field(Task, "redacted_at")

    @admin.display(description=gettext_lazy("arguments"))
    def shown_arguments(self, obj: Task) -> SafeString:
        return json_block(obj.kwargs if obj.codec is None else named_arguments(obj.kwargs))

    @admin.display(description=gettext_lazy("result"))
    def shown_result(self, obj: Task) -> SafeString | str:
        envelope: Any = obj.result
        if envelope is None:
            return NOTHING
        if isinstance(envelope, dict) and envelope.get("kept") is False:
            return gettext("not kept")
        return json_block(envelope["ok"] if isinstance(envelope, dict) and "ok" in envelope else envelope)

    @admin.display(description=gettext_lazy("error"))
    def shown_error(self, obj: Task) -> SafeString:
        """Return the message of the error, or else its exception or code."""
        error, exception = _error(obj), _exception(obj)
        return block(str(error.get("message") or exception.get("repr") or error.get("error_code") or NOTHING))

    shown_error_data = row_field(gettext_lazy("error data"), lambda task: json_block(_error(task).get("data")))
    shown_traceback = row_field(gettext_lazy("traceback"), lambda task: frames(str(_exception(task).get("traceback"))))
    shown_options = row_field(gettext_lazy("options"), lambda task: json_block(_other_options(task)))
    shown_metadata = row_field(gettext_lazy("metadata"), lambda task: json_block(_metadata(task)))


def _error(obj: Task) -> dict[str, Any]:
    """Return the error in the stored result, {} if there is none. The stored JSON may have any shape."""
    error = obj.result.get("err") if isinstance(obj.result, dict) else None
    return error if isinstance(error, dict) else {}


def _metadata(obj: Task) -> Any:
    return obj.options.get("metadata") if isinstance(obj.options, dict) else None


def _other_options(obj: Task) -> Any:
    """Return the options without the metadata, None if there are no others."""
    if _metadata(obj) is None:
        return obj.options
    return {name: value for name, value in obj.options.items() if name != "metadata"} or None


def _exception(obj: Task) -> dict[str, Any]:
    exception = _error(obj).get("exception")
    return exception if isinstance(exception, dict) else {}


class PlaceMixin(ReadOnlyAdminMixin):
    """Adds the workflow run and the node to the page of a task that belongs to one."""

    def place_fieldsets(self, obj: Task | None) -> tuple[Any, ...]:
        """Return the fields, none for a task without a workflow."""
        if obj is None or obj.workflow_id is None:
            return ()
        element = ("shown_element",) if getattr(obj, "in_map", False) else ()
        return ((gettext_lazy("Workflow"), {"fields": (("linked_run", "linked_node", *element),)}),)

    def with_place(self, request: HttpRequest, task: Any) -> None:
        """Set ``linked_run``, ``linked_node`` and ``in_map`` of a task."""
        if task.workflow_id is None:
            return
        alias, run = task._state.db, task.workflow_id
        name = WorkflowRun.objects.using(alias).filter(pk=run).values_list("name", flat=True).first()
        task.linked_run = str(run) if name is None else self.link(request, WorkflowRun, run, f"{name} {run}")
        nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run, number=task.node)
        node = None if task.node is None else nodes.only("name", "kind").first()
        task.in_map = node is not None and kind_of(node.kind).many
        task.linked_node = (
            _("None: a retry of the run replaced this task.")
            if node is None
            else node_link(self, request, run, task.node, node.name)
        )

    linked_run = field("linked_run", gettext_lazy("run"))
    linked_node = field("linked_node", gettext_lazy("node"))
    shown_element = field("node_index", gettext_lazy("element of the map"))  # from 0


def with_copies(page: Any, request: HttpRequest, task: Any) -> None:
    """Set ``linked_original`` (the task that it is a copy of) and ``linked_copies`` of a task; "" if there are none."""
    task.linked_original = ""
    if task.copy_of is not None:
        there = Task.objects.using(task._state.db).filter(pk=task.copy_of).exists()
        shown = str(task.copy_of)
        task.linked_original = (
            page.link(request, Task, task.copy_of, shown) if there else _("%(id)s (deleted)") % {"id": shown}
        )
    found = overview.copies([task.pk]).get(task.pk, [])
    links: list[tuple[SafeString | str, SafeString | str]] = [
        (page.link(request, Task, copy.pk, str(copy.pk)), status_badge(copy.status)) for copy in found[:LAST]
    ]
    if found[LAST:]:
        links.append((_("and %(count)d earlier") % {"count": len(found) - LAST}, ""))
    task.linked_copies = format_html_join(SafeString("<br>"), "{} {}", links)
