"""The sections on the page of a task: headline, reasons, payload, workflow, steps and attempts.

The payload is for users with ``horsies.view_payload``. It is shown as the stored JSON. No code of
the project is imported, so the page works even if the task's module cannot be imported.
"""

from __future__ import annotations

import datetime as dt
import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from django.contrib import admin
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

import horsies_django
from horsies_django.admin.base.html import (
    LONGEST_VALUE,
    MOST_ENTRIES,
    MOST_ROWS,
    NO_VALUE,
    PATIENCE_MS,
    Line,
    Table,
    absolute,
    badge,
    block,
    duration_text,
    field,
    json_block,
    moment_field,
    node_link,
    reason_line,
    row_field,
    status_badge,
    worker_links,
)
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin, read_bounded
from horsies_django.core.codec.plain import named_arguments
from horsies_django.core.explanations import Reason, ReasonCode
from horsies_django.core.kinds import kind_of
from horsies_django.core.status import Status
from horsies_django.models import Task, TaskAttempt, TaskStep, WorkflowNode, WorkflowRun
from horsies_django.models.fields import aware
from horsies_django.monitoring import overview
from horsies_django.monitoring.explain import explain

FRAME_LINES = re.compile(
    r'^([ |]*)File "([^"\n]*)", line \d+, in [^\n]*\n?(?:\1  [^\n]*\n?)*', re.MULTILINE
)
# The rule is that of worker.child.site, but the file may be from another machine.
LIBRARY = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<", re.IGNORECASE
)
LEFT_OUT_FOLDERS = (sysconfig.get_path("stdlib"), str(Path(horsies_django.__file__).parent))
OUTCOME_SYMBOLS = {
    "COMPLETED": ("completed", "✓"),
    "SNOOZED": ("pending", "○"),
    "CANCELLED": ("cancelled", "⊘"),
}


class Panel(NamedTuple):
    """The panel with the reasons. ``lines`` is None if finding the reasons took too long."""

    title: str | Promise
    lines: list[Line] | None
    reasons: tuple[Reason, ...]


def panel(page: Any, request: HttpRequest, task: Task, visible: bool) -> Panel | None:
    """Return the reasons for the state of an unfinished task, or None for a finished task.

    ``visible`` is true if the user may see payload.
    """
    if task.finished_at is not None:
        return None

    title = (
        _("Where is it running?") if task.status == Status.RUNNING else _("Why is it not running?")
    )

    try:
        found = read_bounded(task._state.db or "", lambda: explain(task.pk), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return None

    reasons = found.reasons if found else ()
    return Panel(
        title,
        [reason_line(page, request, one, visible) for one in reasons] if found else None,
        reasons,
    )


def step_table(task: Task) -> Table:
    """Return a table of the newest steps of a task, the newest first.

    The results of steps are not read, because those of a long task could be a gigabyte.
    """
    steps = (
        TaskStep.objects.using(task._state.db)
        .filter(task_id=task.pk)
        .order_by("-created_at", "name")
    )
    rows = [
        [name, absolute(at)] for name, at in steps.values_list("name", "created_at")[:MOST_ROWS]
    ]
    return Table("steps", _("Steps"), (_("Step"), _("Recorded")), rows)


class SectionsMixin(ReadOnlyAdminMixin):
    """Mixin that adds to the page of a task its payload and its place in a workflow.

    Users without the permission for payload see a note about it.
    """

    def payload_fieldsets(self, request: HttpRequest, obj: Task | None) -> tuple[Any, ...]:
        """Return the fields of payload that the task has and the user may see."""
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
            return NO_VALUE
        if isinstance(envelope, dict) and envelope.get("kept") is False:
            return _("not kept")

        return json_block(
            envelope["ok"] if isinstance(envelope, dict) and "ok" in envelope else envelope
        )

    @admin.display(description=gettext_lazy("error"))
    def shown_error(self, obj: Task) -> SafeString:
        """Return the message of the error, or else its exception or code."""
        error = _error(obj)
        exception = _exception(obj)
        return block(
            str(
                error.get("message") or exception.get("repr") or error.get("error_code") or NO_VALUE
            )
        )

    shown_error_data = row_field(
        gettext_lazy("error data"), lambda task: json_block(_error(task).get("data"))
    )
    shown_traceback = row_field(
        gettext_lazy("traceback"), lambda task: frames(str(_exception(task).get("traceback")))
    )
    shown_options = row_field(
        gettext_lazy("options"), lambda task: json_block(_other_options(task))
    )
    shown_metadata = row_field(gettext_lazy("metadata"), lambda task: json_block(_metadata(task)))

    def place_fieldsets(self, obj: Task | None) -> tuple[Any, ...]:
        """Return the fields of the workflow, or none for a task without a workflow."""
        if obj is None or obj.workflow_id is None:
            return ()
        element = ("shown_element",) if getattr(obj, "in_map", False) else ()
        return ((gettext_lazy("Workflow"), {"fields": (("linked_run", "linked_node", *element),)}),)

    def with_place(self, request: HttpRequest, task: Any) -> None:
        """Set ``linked_run``, ``linked_node`` and ``in_map`` of a task."""
        if task.workflow_id is None:
            return

        alias = task._state.db
        run = task.workflow_id
        name = (
            WorkflowRun.objects.using(alias).filter(pk=run).values_list("name", flat=True).first()
        )
        task.linked_run = (
            str(run) if name is None else self.link(request, WorkflowRun, run, f"{name} {run}")
        )

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
    shown_element = field("node_index", gettext_lazy("element of the map"), str)  # from 0


def _error(obj: Task) -> dict[str, Any]:
    """Return the error in the stored result, or {} if there is none.

    The stored JSON may have any shape.
    """
    error = obj.result.get("err") if isinstance(obj.result, dict) else None
    return error if isinstance(error, dict) else {}


def _metadata(obj: Task) -> Any:
    return obj.options.get("metadata") if isinstance(obj.options, dict) else None


def _other_options(obj: Task) -> Any:
    """Return the options without the metadata, or None if there are no others."""
    if _metadata(obj) is None:
        return obj.options
    return {name: value for name, value in obj.options.items() if name != "metadata"} or None


def _exception(obj: Task) -> dict[str, Any]:
    exception = _error(obj).get("exception")
    return exception if isinstance(exception, dict) else {}


def with_copies(page: Any, request: HttpRequest, task: Any) -> None:
    """Set ``linked_original`` and ``linked_copies`` of a task, each of them "" if there is none.

    ``linked_original`` is the task that this task is a copy of.
    """
    task.linked_original = ""
    if task.copy_of is not None:
        there = Task.objects.using(task._state.db).filter(pk=task.copy_of).exists()
        shown = str(task.copy_of)
        task.linked_original = (
            page.link(request, Task, task.copy_of, shown)
            if there
            else _("%(id)s (deleted)") % {"id": shown}
        )

    found = overview.copies([task.pk]).get(task.pk, [])
    links: list[tuple[SafeString | str, SafeString | str]] = [
        (page.link(request, Task, copy.pk, str(copy.pk)), status_badge(copy.status))
        for copy in found[:MOST_ENTRIES]
    ]
    if found[MOST_ENTRIES:]:
        links.append((_("and %(count)d earlier") % {"count": len(found) - MOST_ENTRIES}, ""))

    task.linked_copies = format_html_join(SafeString("<br>"), "{} {}", links)


def headline(
    page: Any, request: Any, task: Any, panel: Panel | None, site: str | None
) -> SafeString:
    """Return the sentence at the top of the page of a task.

    ``site`` is where the last attempt failed. The sentence contains only texts that this user may
    see.
    """
    if task.merged_into is not None:
        other = page.link(request, type(task), task.merged_into, str(task.merged_into))
        return format_html(
            _("Merged {} ago into task {}, which replaces it."), past(task, task.finished_at), other
        )

    if task.finished_at is not None:
        return format_html("{}{}.", ended(task, site), removed_text(task))

    reasons, lines = (panel.reasons, panel.lines or []) if panel else ((), [])
    found = {reason.code: reason for reason in reasons}
    reason_text = REASON_TEXTS.get(reasons[0].code) if reasons else None
    if reason_text is not None:
        return format_html("{}", reason_text(task, reasons[0].details))

    ahead = found.get(ReasonCode.BEHIND_OTHERS)
    waits = held_back(reasons[0], lines[0].text) if reasons else ""
    if ahead is not None and ahead is not reasons[0]:
        waits += _(", %(count)s tasks ahead") % {
            "count": f"{ahead.details['count']:,}" + "+" * ahead.details["more"]
        }

    since = {"span": past(task, task.enqueued_at)}
    return format_html("{}{}.", _("Waiting for %(span)s") % since, f": {waits}" if waits else "")


def past(task: Any, at: dt.datetime | None) -> str:
    """Return how long ago a time was, or a dash for None.

    A row that was not written by this package may have no time.
    """
    return NO_VALUE if at is None else duration_text(task.read_at - at)


def which_attempt(task: Any) -> str:
    """Return the words for the number of the attempt, or "" if there can be only one."""
    numbers = attempt_numbers(task)
    return _("attempt %(number)d of %(most)d") % numbers if numbers["most"] > 1 else ""


def attempt_numbers(task: Any) -> dict[str, int]:
    """Return the number of the attempt, and the last number that its retry policy allows."""
    before = task.attempts_before or 0
    return {"number": before + task.retry_count + 1, "most": before + task.max_retries + 1}


def ended(task: Any, site: str | None) -> str:
    ago = {"ago": past(task, task.finished_at), "code": task.error_code}
    if task.status == Status.COMPLETED:
        ran = duration_text(task.finished_at - task.started_at) if task.started_at else NO_VALUE
        return _("Completed %(ago)s ago after %(ran)s") % {**ago, "ran": ran}

    if task.status == Status.EXPIRED:
        return _("Expired %(ago)s ago, because it did not start in time") % ago
    if task.status == Status.CANCELLED:
        return _("Cancelled %(ago)s ago with %(code)s") % ago

    tried = _(" at %(attempt)s") % {"attempt": attempt} if (attempt := which_attempt(task)) else ""
    place = _(" in %(site)s") % {"site": site} if site else ""
    return _("Failed %(ago)s ago%(tried)s%(place)s with %(code)s") % {
        **ago,
        "tried": tried,
        "place": place,
    }


def removed_text(task: Any) -> str:
    if task.redacted_at is None:
        return ""
    return _("; its arguments and messages were removed %(ago)s ago") % {
        "ago": past(task, task.redacted_at)
    }


def held_back(reason: Reason, text: str) -> str:
    """Return a reason in a few words. The text of a cap is replaced, because it is long."""
    if reason.code not in (ReasonCode.QUEUE_AT_CAP, ReasonCode.CLUSTER_AT_CAP):
        return text.removesuffix(".")
    queue = (
        _("the whole cluster")
        if reason.code == ReasonCode.CLUSTER_AT_CAP
        else reason.details["queue"]
    )
    return _("%(queue)s is at its cap (%(taken)s of %(cap)s)") % {**reason.details, "queue": queue}


def running_text(task: Any, details: dict[str, Any]) -> str:
    host = (
        f"{details['hostname']}:{details['pid']}"
        if details["hostname"]
        else str(details["worker_id"])
    )
    values = {"span": past(task, task.started_at), "host": host, "child": details["child_pid"]}
    text = (
        _("Running for %(span)s on %(host)s, child %(child)s")
        if values["child"]
        else _("Running for %(span)s on %(host)s")
    )
    return (
        ", ".join(
            part for part in (text % values, which_attempt(task), stop_request_text(task)) if part
        )
        + "."
    )


def stop_request_text(task: Any) -> str:
    """Return since when a task has been requested to stop, or "" if it was not.

    The text also contains whether the process is killed if the task does not stop.
    """
    if task.cancel_requested_at is None:
        return ""
    text = _("asked to stop %(ago)s ago") % {"ago": past(task, task.cancel_requested_at)}
    return _("%(asked)s, killed if it does not") % {"asked": text} if task.terminate else text


def time_until_due(task: Any, details: dict[str, Any]) -> str:
    """Return how long it is until the task is due."""
    return duration_text(dt.datetime.fromisoformat(details["due_at"]) - aware(task.read_at))


REASON_TEXTS: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    ReasonCode.RUNNING: running_text,
    ReasonCode.NOT_DUE: lambda task, details: (
        _("Due in %(span)s.") % {"span": time_until_due(task, details)}
    ),
    ReasonCode.SNOOZED: lambda task, details: (
        _("Snoozed by its code, due in %(span)s.") % {"span": time_until_due(task, details)}
    ),
    ReasonCode.RETRY_WAITING: lambda task, details: (
        _("Retries in %(span)s: %(attempt)s.")
        % {"span": time_until_due(task, details), "attempt": which_attempt(task)}
    ),
}


def frames(trace: str) -> SafeString:
    """Return a traceback with the project's frames, and below it the whole traceback, folded."""

    def shortened(found: re.Match[str]) -> str:
        foreign = LIBRARY.search(found[2]) or any(
            Path(found[2]).is_relative_to(folder) for folder in LEFT_OUT_FOLDERS
        )
        return "\0" if foreign else found[0]

    short = FRAME_LINES.sub(shortened, trace[:LONGEST_VALUE])
    if "\0" not in short:
        return block(trace)

    def left_out(found: re.Match[str]) -> str:
        text = ngettext("  … %(n)d library frame\n", "  … %(n)d library frames\n", len(found[0]))
        return text % {"n": len(found[0])}

    folded = format_html(
        "<details><summary>{}</summary>{}</details>", _("All frames"), block(trace)
    )
    return format_html("{}{}", block(re.sub("\0+", left_out, short)), folded)


def attempt_table(
    page: Any, request: HttpRequest, task: Task, attempts: Sequence[TaskAttempt], visible: bool
) -> Table:
    """Return a table of attempts, the newest first.

    ``visible`` is true if the user may see messages and tracebacks.
    """
    workers = worker_links(page, request, {attempt.worker_id for attempt in attempts})
    begun = [attempt.finished_at for attempt in attempts[1:]] + [task.sent_at]
    whole = attempts[0].finished_at - task.sent_at if attempts else dt.timedelta()

    def row(attempt: TaskAttempt, since: dt.datetime) -> list[Any]:
        wait = attempt.started_at - since
        ran = attempt.finished_at - attempt.started_at
        durations = {"wait": duration_text(wait), "ran": duration_text(ran)}
        kind, shape = OUTCOME_SYMBOLS.get(attempt.outcome, ("failed", "✕"))
        retried = (
            format_html(' <span class="horsies-quiet">{}</span>', _("then retried"))
            if attempt.will_retry
            else ""
        )

        return [
            attempt.attempt,
            format_html("{}{}", badge(kind, shape, attempt.outcome.capitalize()), retried),
            absolute(attempt.started_at),
            format_html(
                "{}<br>{}",
                _("waited %(wait)s, ran %(ran)s") % durations,
                timeline(kind, since - task.sent_at, wait, ran, whole),
            ),
            error_cell(
                attempt, visible, unfolded=attempt is attempts[0] and task.finished_at is None
            ),
            workers[attempt.worker_id],
            attempt.child_pid or NO_VALUE,
        ]

    rows = [row(*pair) for pair in zip(attempts, begun, strict=False)]
    heads = (
        _("Attempt"),
        _("Outcome"),
        _("Started"),
        _("Duration"),
        _("Error"),
        _("Worker"),
        _("Process"),
    )
    return Table("attempts", _("Attempts"), heads, rows, empty=_("No attempt has finished yet."))


def error_cell(attempt: TaskAttempt, visible: bool, *, unfolded: bool) -> SafeString:
    """Return the error code and the place of an attempt.

    If ``visible`` is true, the cell also contains the message and the traceback, which is
    ``unfolded`` or not.
    """
    place = (
        _("%(site)s, line %(line)s") % {"site": attempt.site, "line": attempt.site_line}
        if attempt.site
        else ""
    )

    message = trace = SafeString("")
    if visible and attempt.error_message:
        message = block(attempt.error_message)
    if visible and attempt.traceback:
        form = "<details{}><summary>{}</summary>{}</details>"
        trace = format_html(
            form, SafeString(" open") if unfolded else "", _("Traceback"), frames(attempt.traceback)
        )

    shown = '{} <span class="horsies-quiet">{}</span>{}{}'
    return format_html(shown, attempt.error_code or NO_VALUE, place, message, trace)


def timeline(
    kind: str, before: dt.timedelta, wait: dt.timedelta, ran: dt.timedelta, whole: dt.timedelta
) -> SafeString | str:
    """Return a picture of when an attempt waited and ran.

    The picture is as wide as the time between the send of the task and the end of its last attempt.
    The text beside it contains the same durations.
    """
    if whole <= dt.timedelta():
        return ""
    start, middle, end = (
        round(min(max(part / whole, 0), 1) * 200)
        for part in (before, before + wait, before + wait + ran)
    )
    return format_html(
        '<svg class="horsies-timeline horsies-timeline-{}" width="200" height="8" viewBox="0 0 200 '
        '8" preserveAspectRatio="none"'
        ' aria-hidden="true">'
        '<path d="M{} 4H{}"/><rect x="{}" y="0" width="{}" height="8"/></svg>',
        kind,
        start,
        middle,
        min(middle, 198),
        max(end - middle, 2),
    )
