"""Shared parts of the pages of a run: forms about its nodes, and tables.

The tables show nodes, some at a time, gates, and signals.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_WORKFLOWS
from horsies_django.admin.base.change_forms import ADMIN_VERBS, ChangeForm, ChangeMixin
from horsies_django.admin.base.html import (
    LONGEST_FIELD,
    MOST_ROWS,
    NO_VALUE,
    SHAPES,
    Table,
    badge,
    block,
    breakable,
    json_block,
    node_link,
    rows_or_none,
    status_badge,
    time_and_age,
)
from horsies_django.admin.base.readonly import patiently, read_bounded
from horsies_django.core.kinds import kind_of
from horsies_django.core.status import NODE_STATUSES, UNFINISHED_NODES
from horsies_django.models import Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.monitoring import workflows
from horsies_django.monitoring.explain import find_node
from horsies_django.store.workflows import Progress

CURRENT = SafeString(' aria-current="true"')
PAGE = 500
LARGEST = 2**63 - 1
LONGEST_ERROR = 500
LISTED_NODE_COLUMNS = (
    "workflow_id",
    "number",
    "name",
    "kind",
    "status",
    "task_name",
    "open",
    "ok",
    "bad",
    "total",
    "in_flight",
    "items_ok",
    "items_bad",
    "task_id",
    "finished_at",
    "error_code",
)
GATE_FIELDS = ("number", "name", "status", "permission", "due_at", "decided_by", "finished_at")


def progress_of(run: Any) -> Progress | None:
    """Return the progress of a run, or None if it has no nodes or counting took too long."""
    counted = read_bounded(run._state.db, lambda: workflows.progress([run.pk])) or {}
    return counted.get(run.pk)


def progress_bar(progress: Progress | None) -> SafeString | str:
    """Return a bar, the percentage and the counts.

    The text contains everything that the bar shows, so screen readers skip the bar.
    """
    if progress is None:
        return NO_VALUE

    done = int(progress.share * 100)
    counts = [
        _("%(done)s of %(total)s")
        % {"done": f"{progress.total - progress.open:,}", "total": f"{progress.total:,}"}
    ]
    counts += [_("%(n)s failed") % {"n": f"{progress.failed:,}"}] if progress.failed else []
    counts += [_("%(n)s skipped") % {"n": f"{progress.skipped:,}"}] if progress.skipped else []

    return format_html(
        '<progress class="horsies-progress{}" max="100" value="{}" aria-hidden="true"></progress> '
        "{} %"
        ' <span class="horsies-quiet">{}</span>',
        " horsies-progress-failed" if progress.failed else "",
        done,
        done,
        ", ".join(counts),
    )


def node_table(page: Any, request: HttpRequest, run: Any) -> Table:
    """Return a table of the nodes that the address selects.

    Error messages are shown only to users who may see payload.
    """
    visible = page.has_view_payload_permission(request)
    alias = run._state.db
    columns = (*LISTED_NODE_COLUMNS, "error") if visible else LISTED_NODE_COLUMNS

    status = request.GET.get("nodes", "")
    start = request.GET.get("from", "")
    status = status if status in NODE_STATUSES else ""
    first = min(int(start), LARGEST) if re.fullmatch(r"[0-9]{1,19}", start) else 0

    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk)
    counted = read_bounded(
        alias, lambda: dict(nodes.values_list("status").annotate(Count("number")))
    )

    of_status: dict[str, Any] = {"status": status} if status else {}
    # Unfinished nodes have an index.
    of_status |= {"finished_at__isnull": True} if status in UNFINISHED_NODES else {}
    chosen = nodes.filter(**of_status, number__gte=first).only(*columns).order_by("number")

    found = read_bounded(alias, lambda: list(chosen[: PAGE + 1]))
    rows = (
        None if found is None else [node_row(page, request, node, visible) for node in found[:PAGE]]
    )

    note: SafeString | str = ""
    if found and len(found) > PAGE:
        left = ""
        if counted is not None:
            many = counted.get(status, 0) if status else sum(counted.values())
            left = _("%(shown)s of %(all)s nodes are shown.") % {"shown": PAGE, "all": f"{many:,}"}

        query = urlencode({"nodes": status, "from": found[PAGE].number})
        note = format_html(
            '{} <a rel="next" href="?{}#horsies-nodes">{} ›</a>', left, query, _("Next")
        )

    heads = (
        _("Number"),
        _("Name"),
        _("Kind"),
        _("Task"),
        _("Status"),
        _("Task or run"),
        _("Upstream nodes"),
        _("Elements"),
        _("Error"),
    )
    return Table("nodes", _("Nodes"), heads, rows, note, above=choices(counted, status))


def node_row(page: Any, request: HttpRequest, node: WorkflowNode, visible: bool) -> list[Any]:
    link = partial(node_link, page, request, node.workflow_id, node.number)
    error = Truncator(node.error or "").chars(LONGEST_ERROR) if visible else ""
    return [
        node.number,
        link(node.name),
        _(node.kind),
        breakable(node.task_name) if node.task_name else NO_VALUE,
        format_html(
            "{} {}", status_badge(node.status), "" if node.finished_at else link(_("Why?"))
        ),
        leads_to(page, request, node),
        upstream_counts(node),
        elements_text(node),
        format_html("{}{}", node.error_code or NO_VALUE, block(error) if error else ""),
    ]


def choices(counted: dict[str, int] | None, chosen: str) -> SafeString:
    """Return links for the statuses that the nodes of the run have, and for all nodes."""
    every = "" if counted is None else f"{sum(counted.values()):,}"
    found: list[tuple[Any, ...]] = [("?", "" if chosen else CURRENT, _("All"), every)]

    for status in NODE_STATUSES:
        if counted is None or counted.get(status):
            mark = CURRENT if status == chosen else ""
            count = "" if counted is None else f"{counted[status]:,}"
            found.append((f"?{urlencode({'nodes': status})}", mark, SHAPES[status][1], count))

    item = '<li><a href="{}#horsies-nodes"{}>{}</a> <span class="horsies-quiet">{}</span></li>'
    return format_html('<ul class="horsies-choices">{}</ul>', format_html_join("", item, found))


def leads_to(page: Any, request: HttpRequest, node: WorkflowNode) -> SafeString | str:
    """Return a link to the task of a node, the tasks of a map, or the run of a workflow.

    Return "" if the user may view none of them.
    """
    kind = kind_of(node.kind)
    if node.task_id is None:
        mapped = bool(node.total) and not kind.waits
        return (
            tasks_link(page, request, node.workflow_id, node.number, _("Tasks")) if mapped else ""
        )

    model, text = (WorkflowRun, _("Run")) if kind.runs else (Task, _("Task"))
    shown = page.link(request, model, node.task_id, text)
    return shown if isinstance(shown, SafeString) else ""


def tasks_link(
    page: Any, request: HttpRequest, run: uuid.UUID, number: int | None, text: str
) -> SafeString | str:
    """Return a link to the tasks of a run, or of one node of it.

    Return "" if the site does not have the page, or if the user may not view it.
    """
    if not page.admin_site.is_registered(Task) or not request.user.has_perm("horsies.view_task"):
        return ""
    address = reverse("admin:horsies_task_changelist", current_app=page.admin_site.name)
    query = urlencode({"workflow": f"{run}" if number is None else f"{run}:{number}"})
    return format_html('<a href="{}?{}">{}</a>', address, query, text)


def upstream_counts(node: WorkflowNode) -> str:
    """Return how many upstream nodes of a node completed, are open, and ended otherwise."""
    counts = {_("completed"): node.ok, _("open"): node.open, _("not completed"): node.bad}
    return ", ".join(f"{count:,} {text}" for text, count in counts.items() if count) or NO_VALUE


def elements_text(node: WorkflowNode) -> str:
    """Return how many elements of a node completed, did not complete, and are in flight.

    The elements of a map are its tasks.
    """
    if node.total is None:
        return NO_VALUE

    text = _("%(ok)s of %(total)s completed") % {
        "ok": f"{node.items_ok:,}",
        "total": f"{node.total:,}",
    }
    text += _(", %(n)s not completed") % {"n": f"{node.items_bad:,}"} if node.items_bad else ""
    return text + (_(", %(n)s in flight") % {"n": f"{node.in_flight:,}"} if node.in_flight else "")


def wait_tables(page: Any, request: HttpRequest, run: Any) -> list[Table]:
    """Return tables of the gates of a run and of the signals to it, which are read together."""
    alias = run._state.db
    visible = page.has_view_payload_permission(request)

    waits = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk, signal__isnull=False)
    # Waiting gates come first, because no status comes after WAITING in the alphabet.
    gates = waits.filter(kind="gate").only("pk", *GATE_FIELDS).order_by("-status", "number")
    signals = (
        WorkflowSignal.objects.using(alias).filter(workflow_id=run.pk).order_by("-sent_at", "-pk")
    )
    if not visible:
        signals = signals.defer("data")

    def read() -> tuple[list[WorkflowNode], list[WorkflowSignal]]:
        return (
            (list(gates[: MOST_ROWS + 1]), list(signals[: MOST_ROWS + 1]))
            if waits.exists()
            else ([], [])
        )

    opened, sent = read_bounded(alias, read) or (None, None)
    tables = (
        gate_table(page, request, run, opened),
        signal_table(page, request, run, sent, visible),
    )
    return [table for table in tables if table.rows != []]


def gate_table(
    page: Any, request: HttpRequest, run: Any, found: list[WorkflowNode] | None
) -> Table:
    def row(gate: WorkflowNode) -> list[Any]:
        name = node_link(page, request, run.pk, gate.number, gate.name)
        until = time_and_age(gate.due_at, run.read_at)
        finished = time_and_age(gate.finished_at, run.read_at)
        return [
            name,
            status_badge(gate.status),
            gate.permission or NO_VALUE,
            until,
            gate.decided_by or NO_VALUE,
            finished,
        ]

    heads = (
        _("Name"),
        _("Status"),
        _("Permission"),
        _("Waits until"),
        _("Decided by"),
        _("Finished"),
    )
    return Table("gates", _("Gates"), heads, *first_rows(found, row))


def signal_table(page: Any, request: HttpRequest, run: Any, found: Any, visible: bool) -> Table:
    takers = node_links(page, request, run, (signal.node for signal in found or ()))
    # An unused signal is highlighted only if the run has finished, when no node will take it any
    # more.
    untaken = badge("full", "■", _("Unused")) if run.finished_at else _("not yet")

    def row(signal: WorkflowSignal) -> list[Any]:
        taken = takers.get(signal.node, untaken)
        cells = [
            signal.name,
            signal.key or NO_VALUE,
            time_and_age(signal.sent_at, run.read_at),
            signal.actor,
            taken,
        ]
        return [*cells, json_block(signal.data)] if visible else cells

    heads = (
        _("Name"),
        _("Key"),
        _("Sent"),
        _("By"),
        _("Taken by"),
        *([_("Data")] if visible else []),
    )
    return Table("signals", _("Signals"), heads, *first_rows(found, row))


def first_rows(
    found: Sequence[Any] | None, row: Callable[[Any], list[Any]]
) -> tuple[list[Any] | None, str]:
    """Return the cells of the first rows that were found, and a note if there are more.

    The cells are None if reading the rows took too long.
    """
    note = _("There are more.") if found and len(found) > MOST_ROWS else ""
    return rows_or_none(found and found[:MOST_ROWS], row), note


def node_links(
    page: Any, request: HttpRequest, run: Any, numbers: Iterable[int | None]
) -> dict[int | None, SafeString | str]:
    """Return links to nodes of a run by their numbers, whose names are read with one statement."""
    present = {number for number in numbers if number is not None}
    nodes = WorkflowNode.objects.using(run._state.db).filter(workflow_id=run.pk, number__in=present)
    names = dict(nodes.values_list("number", "name")) if present else {}
    return {
        number: node_link(page, request, run.pk, number, names.get(number, str(number)))
        for number in present
    }


class SkipForm(ChangeForm):
    """A form that takes the name or the number of the node to skip."""

    node = forms.CharField(
        label=gettext_lazy("Name of the node"),
        max_length=LONGEST_FIELD,
        required=False,
        strip=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    number = forms.IntegerField(
        label=gettext_lazy("Number"),
        min_value=0,
        max_value=LARGEST,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text=gettext_lazy("Instead of the name."),
    )
    field_order = ("node", "number", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["number"].initial = self.request.GET.get("number")

    def clean(self) -> dict[str, Any]:
        """Raise ValidationError unless either the name or the number is given."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors and bool(cleaned["node"]) == (cleaned["number"] is not None):
            raise ValidationError(_("Enter the name of the node or its number."))
        return cleaned

    def apply(self) -> Any:
        number = find_node(self.row.pk, self.cleaned_data["node"] or self.cleaned_data["number"])
        return super().apply(number, user=self.request.user)


class DecisionForm(ChangeForm):
    """A form that decides about one opening of a gate.

    It is the opening that the page of the gate showed. A later opening needs another decision.
    """

    node = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=LARGEST)
    opening = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**31 - 1)

    def apply(self) -> Any:
        """Approve or reject the gate, with the permission of the user."""
        return super().apply(
            self.cleaned_data["node"], self.cleaned_data["opening"], user=self.request.user
        )


def lacked(request: HttpRequest, gate: WorkflowNode) -> str:
    """Return a permission that the user lacks to decide about a gate, or "" if none is missing."""
    needed = ADMIN_VERBS[OF_WORKFLOWS]["approve"].permissions + (
        (gate.permission,) if gate.permission else ()
    )
    return next((one for one in needed if not request.user.has_perm(one)), "")


class RunPagesMixin(ChangeMixin):
    """Mixin with the change forms of a run, and with methods for pages below that of a run."""

    subjects = OF_WORKFLOWS
    change_forms: ClassVar = {"skip": SkipForm, "approve": DecisionForm, "reject": DecisionForm}
    guard = staticmethod(patiently)

    def page_of_run(
        self, request: Any, run: Any, template: str, title: str, context: dict[str, Any]
    ) -> HttpResponse:
        """Return a page below the page of a run."""
        url = self.url_of(run)
        crumbs = self.crumbs((url, str(run)), ("", title))
        context = {"run": run, "run_url": url, "crumbs": crumbs, **context}
        return self.shown(request, f"workflowrun/{template}", title, context)

    def find_run(self, request: HttpRequest, object_id: str) -> Any:
        """Return the run with the id in an address, or None if there is none.

        Raises PermissionDenied if the user may not view runs.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.find(request, unquote(object_id))
