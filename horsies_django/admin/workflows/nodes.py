"""Tables on the page of a run: its nodes, some at a time, its gates, and the signals to it; statuses as badges and bars."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db.models import Count
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import MANY, NOTHING, STATUSES, badge, breakable, json_block, moment, node_link
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.core.kinds import kind_of
from horsies_django.core.status import NODE_STATUSES, UNFINISHED_NODES
from horsies_django.models import Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.store.workflows import Progress

# status -> a symbol and its name; a run and a node have some in common with a task
SHAPES: dict[str, tuple[str, str | Promise]] = {
    **{status.value: shape for status, shape in STATUSES.items()},
    "PAUSED": ("‖", gettext_lazy("Paused")),
    "COMPENSATING": ("↶", gettext_lazy("Compensating")),
    "ADDED": ("+", gettext_lazy("Added")),
    "READY": ("◔", gettext_lazy("Ready")),
    "WAITING": ("◌", gettext_lazy("Waiting")),
    "ENQUEUED": ("◐", gettext_lazy("Sent")),
    "SKIPPED": ("↷", gettext_lazy("Skipped")),
}
PAGE = 500
LARGEST = 2**63 - 1
LONGEST_ERROR = 500
COLUMNS = (
    "workflow_id", "number", "name", "kind", "status", "task_name", "open", "ok", "bad", "total", "in_flight", "items_ok",
    "items_bad", "task_id", "finished_at", "error_code",
)  # fmt: skip
SHOWN = ("number", "name", "status", "permission", "due_at", "decided_by", "finished_at")


def badge_of(status: str) -> SafeString:
    """Return a badge for the status of a run or node, including one that only a newer version knows."""
    shape, text = SHAPES.get(status, ("?", status))
    return badge(status if status in SHAPES else "unknown", shape, text)


def progress_bar(progress: Progress | None) -> SafeString | str:
    """Return a bar, the percentage and the counts. The text says all that the bar shows, so readers of screens skip the bar."""
    if progress is None:
        return NOTHING
    done = int(progress.share * 100)
    counts = [
        _("%(done)s of %(total)s") % {"done": f"{progress.total - progress.open:,}", "total": f"{progress.total:,}"}
    ]
    counts += [_("%(n)s failed") % {"n": f"{progress.failed:,}"}] if progress.failed else []
    counts += [_("%(n)s skipped") % {"n": f"{progress.skipped:,}"}] if progress.skipped else []
    return format_html(
        '<progress class="horsies-progress{}" max="100" value="{}" aria-hidden="true"></progress> {} %'
        ' <span class="horsies-quiet">{}</span>',
        " horsies-progress-failed" if progress.failed else "",
        done,
        done,
        ", ".join(counts),
    )


class Choice(NamedTuple):
    """A status to filter nodes by; ``many`` is "" if counting timed out."""

    text: str | Promise
    many: str
    url: str
    chosen: bool


class NodeTable(NamedTuple):
    """The table of nodes; ``rows`` is None if reading timed out, ``next_url`` "" if there are no more nodes."""

    rows: list[NodeRow] | None
    choices: list[Choice]
    next_url: str
    left: str


class NodeRow:
    """A row of the table of nodes."""

    def __init__(self, page: Any, request: HttpRequest, node: WorkflowNode, visible: bool) -> None:
        run = node.workflow_id
        self.number = node.number
        self.name = node_link(page, request, run, node.number, node.name)
        self.kind = _(node.kind)
        self.task = breakable(node.task_name) if node.task_name else NOTHING
        self.status = badge_of(node.status)
        self.why = "" if node.finished_at else node_link(page, request, run, node.number, _("Why?"))
        self.leads_to = leads_to(page, request, node)
        self.upstream = upstream(node)
        self.elements = elements(node)
        self.error_code = node.error_code or NOTHING
        self.error = str(Truncator(node.error or "").chars(LONGEST_ERROR)) if visible else ""


def node_table(page: Any, request: HttpRequest, run: Any, visible: bool) -> NodeTable:
    """Return the nodes of a run that the address asks for; ``visible``: the user may see messages of errors."""
    alias, columns = run._state.db, (*COLUMNS, "error") if visible else COLUMNS
    status, start = request.GET.get("nodes", ""), request.GET.get("from", "")
    status = status if status in NODE_STATUSES else ""
    first = min(int(start), LARGEST) if re.fullmatch(r"[0-9]{1,19}", start) else 0
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk)
    counted = read_bounded(alias, lambda: dict(nodes.values_list("status").annotate(Count("number"))))
    chosen = filtered(nodes, status).filter(number__gte=first).only(*columns).order_by("number")
    found = read_bounded(alias, lambda: list(chosen[: PAGE + 1]))
    rows = None if found is None else [NodeRow(page, request, node, visible) for node in found[:PAGE]]
    next_url = "?" + urlencode({"nodes": status, "from": found[PAGE].number}) if found and len(found) > PAGE else ""
    of_status = None if counted is None else counted.get(status, 0) if status else sum(counted.values())
    left = "" if of_status is None else f"{of_status:,}"
    return NodeTable(rows, choices(counted, status), next_url, left)


def filtered(nodes: Any, status: str) -> Any:
    """Return the nodes of a status, all for ""; unfinished ones have an index."""
    if not status:
        return nodes
    return (
        nodes.filter(status=status, finished_at__isnull=True)
        if status in UNFINISHED_NODES
        else nodes.filter(status=status)
    )


def choices(counted: dict[str, int] | None, chosen: str) -> list[Choice]:
    """Return the statuses that nodes of the run have, and "all"."""
    statuses: Iterable[str] = NODE_STATUSES if counted is None else [one for one in NODE_STATUSES if counted.get(one)]
    every = "" if counted is None else f"{sum(counted.values()):,}"
    found = [Choice(_("All"), every, "?", not chosen)]
    for status in statuses:
        count = "" if counted is None else f"{counted[status]:,}"
        found.append(Choice(SHAPES[status][1], count, f"?{urlencode({'nodes': status})}", status == chosen))
    return found


def leads_to(page: Any, request: HttpRequest, node: WorkflowNode) -> SafeString | str:
    """Return a link to the task of a node, to the tasks of a map, or to the run of a workflow."""
    shown: SafeString | str = ""
    if node.total and not node.task_id and not kind_of(node.kind).waits:
        shown = tasks_link(page, request, node.workflow_id, node.number, _("Tasks"))
    elif kind_of(node.kind).runs and node.task_id:
        shown = page.link(request, WorkflowRun, node.task_id, _("Run"))
    elif node.task_id:
        shown = page.link(request, Task, node.task_id, _("Task"))
    return shown if isinstance(shown, SafeString) else ""  # else the user has no such page


def tasks_link(page: Any, request: HttpRequest, run: uuid.UUID, number: int | None, text: str) -> SafeString | str:
    if not page.admin_site.is_registered(Task) or not request.user.has_perm("horsies.view_task"):
        return text
    address = reverse("admin:horsies_task_changelist", current_app=page.admin_site.name)
    query = urlencode({"workflow": f"{run}" if number is None else f"{run}:{number}"})
    return format_html('<a href="{}?{}">{}</a>', address, query, text)


def upstream(node: WorkflowNode) -> str:
    """Return how many of its upstream nodes completed, are open, and ended otherwise."""
    counts = {_("completed"): node.ok, _("open"): node.open, _("not completed"): node.bad}
    return ", ".join(f"{count:,} {text}" for text, count in counts.items() if count) or NOTHING


def elements(node: WorkflowNode) -> str:
    """Return how many of what is counted, such as the tasks of a map, completed, did not, and are in flight, of all."""
    if node.total is None:
        return NOTHING
    text = _("%(ok)s of %(total)s completed") % {"ok": f"{node.items_ok:,}", "total": f"{node.total:,}"}
    text += _(", %(n)s did not") % {"n": f"{node.items_bad:,}"} if node.items_bad else ""
    return text + (_(", %(n)s in flight") % {"n": f"{node.in_flight:,}"} if node.in_flight else "")


class GateRow(NamedTuple):
    """A row of the table of gates."""

    name: SafeString | str
    status: SafeString
    permission: str
    until: SafeString | str
    decided_by: str
    finished: SafeString | str


class GateTable(NamedTuple):
    """Gates of a run, and whether there are more; ``rows`` is None if reading timed out."""

    rows: list[GateRow] | None
    more: bool


def read_gates(run: Any) -> list[WorkflowNode]:
    """Return the gates of a run, first those that wait: no status comes after WAITING in the alphabet."""
    gates = WorkflowNode.objects.using(run._state.db).filter(workflow_id=run.pk, kind="gate", signal__isnull=False)
    return list(gates.only("pk", *SHOWN).order_by("-status", "number")[: MANY + 1])


def gate_table(page: Any, request: HttpRequest, run: Any, found: list[WorkflowNode] | None) -> GateTable:
    """Return gates of a run as a table; None: reading them timed out."""
    if found is None:
        return GateTable(None, False)
    rows = [
        GateRow(
            name=node_link(page, request, run.pk, gate.number, gate.name),
            status=badge_of(gate.status),
            permission=gate.permission or NOTHING,
            until=moment(gate.due_at, run.read_at) if gate.due_at else NOTHING,
            decided_by=gate.decided_by or NOTHING,
            finished=moment(gate.finished_at, run.read_at) if gate.finished_at else NOTHING,
        )
        for gate in found[:MANY]
    ]
    return GateTable(rows, len(found) > MANY)


class SignalRow(NamedTuple):
    """A row of the table of signals. ``data`` is "" unless the user may see payloads."""

    name: str
    key: str
    sent: SafeString | str
    actor: str
    taken: SafeString | str
    data: SafeString | str


class SignalTable(NamedTuple):
    """The newest signals of a run, and whether there are more; ``rows`` is None if reading timed out."""

    rows: list[SignalRow] | None
    more: bool


def wait_tables(page: Any, request: HttpRequest, run: Any, visible: bool) -> dict[str, Any]:
    """Return the gates of a run and the signals to it, which are read together; ``visible``: the user may see payloads."""
    alias = run._state.db
    waits = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk, signal__isnull=False)
    signals = WorkflowSignal.objects.using(alias).filter(workflow_id=run.pk).order_by("-sent_at", "-pk")
    if not visible:
        signals = signals.defer("data")

    def read() -> tuple[list[WorkflowNode], list[WorkflowSignal]]:
        return (read_gates(run), list(signals[: MANY + 1])) if waits.exists() else ([], [])

    gates, sent = read_bounded(alias, read) or (None, None)
    return {"gates": gate_table(page, request, run, gates), "signals": signal_table(page, request, run, sent, visible)}


def signal_table(page: Any, request: HttpRequest, run: Any, found: Any, visible: bool) -> SignalTable:
    """Return signals to a run as a table; None: reading them timed out."""
    if found is None:
        return SignalTable(None, False)
    alias = run._state.db
    numbers = {signal.node for signal in found if signal.node is not None}
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk, number__in=numbers)
    names = dict(nodes.values_list("number", "name")) if numbers else {}
    rows = [
        SignalRow(
            name=signal.name,
            key=signal.key or NOTHING,
            sent=moment(signal.sent_at, run.read_at),
            actor=signal.actor,
            taken=_taken(page, request, run, signal, names),
            data=json_block(signal.data) if visible else "",
        )
        for signal in found[:MANY]
    ]
    return SignalTable(rows, len(found) > MANY)


def _taken(
    page: Any, request: HttpRequest, run: Any, signal: WorkflowSignal, names: dict[int, str]
) -> SafeString | str:
    """Return the node that took a signal, or that none has; that matters once none will."""
    if signal.node is not None:
        return node_link(page, request, run.pk, signal.node, names.get(signal.node, str(signal.node)))
    return badge("full", "■", _("Unused")) if run.finished_at else _("not yet")
