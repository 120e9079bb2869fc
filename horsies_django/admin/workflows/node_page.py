"""The page of one node: what it is, why it does not run, its neighbours and its payload.

``WorkflowNode`` has a composite primary key, which the admin cannot register, so this is a view of the run's page.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import (
    MANY,
    NODE_PAGE,
    NOTHING,
    PATIENCE_MS,
    Line,
    Table,
    block,
    breakable,
    json_block,
    moment,
    node_link,
    payload_note,
    reason_line,
    span,
    status_badge,
)
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.workflows.nodes import LARGEST, elements, first_rows, leads_to, upstream
from horsies_django.admin.workflows.run_forms import RunPagesMixin, lacked
from horsies_django.core.texts import LONGEST_REASON
from horsies_django.models import WorkflowEdge, WorkflowNode
from horsies_django.monitoring.explain import explain_node

AFTER_TIMEOUT: dict[str, str | Promise] = {
    "fail": gettext_lazy("the node fails"),
    "skip": gettext_lazy("the node is skipped"),
    "complete": gettext_lazy("the node completes"),
}
PAYLOAD = ("kwargs", "inputs", "value", "error")
NOT_SHOWN = ("options", "graph")
PAYLOAD_TABLE = Table("payload", gettext_lazy("Arguments and value"), (), [])


class NodePageMixin(RunPagesMixin):
    """Adds the page of a node."""

    def get_urls(self) -> list[Any]:
        view = self.view_of(self.node_view)
        return [path("<path:object_id>/nodes/<int:number>/", view, name=NODE_PAGE), *super().get_urls()]

    def node_view(self, request: HttpRequest, object_id: str, number: int) -> HttpResponse:
        """Show a node. Raises PermissionDenied."""
        run = self.find_run(request, object_id)
        visible = self.has_view_payload_permission(request)
        hidden = NOT_SHOWN if visible else (*PAYLOAD, *NOT_SHOWN)
        nodes = None if run is None else WorkflowNode.objects.using(run._state.db).filter(workflow_id=run.pk)
        node = None if nodes is None or number > LARGEST else nodes.filter(number=number).defer(*hidden).first()
        if node is None:
            text = _("There is no node %(number)s in the run “%(run)s”.")
            return self.home(request, text % {"number": number, "run": unquote(object_id)})
        return self._node_page(request, run, node, visible)

    def _node_page(self, request: HttpRequest, run: Any, node: WorkflowNode, visible: bool) -> HttpResponse:
        skippable = node.finished_at is None and run.finished_at is None and self.may(request, "skip")
        context = {
            "picture_url": f"{self.url_of(run, 'picture')}#horsies-node-{node.number}",
            "skip_url": f"{self.url_of(run, 'skip')}?node={node.number}" if skippable else "",
            "gate": self._gate_of(request, run, node),
            "reasons": reasons(self, request, run, node, visible),
            "tables": [
                Table("facts", _("Node"), (), facts(self, request, run, node)),
                payload_table(node) if visible else PAYLOAD_TABLE._replace(empty=payload_note()),
                neighbours(self, request, run, ("upstream", _("Upstream nodes")), downstream=node.number),
                neighbours(self, request, run, ("downstream", _("Downstream nodes")), upstream=node.number),
            ],
        }
        return self.page_of_run(request, run, "node", _("Node %(name)s") % {"name": node.name}, context)

    def _gate_of(self, request: HttpRequest, run: Any, node: WorkflowNode) -> dict[str, Any] | None:
        """Return what the form of a gate that waits for a decision needs, None for other nodes."""
        if node.kind != "gate" or node.status != "WAITING":
            return None
        urls = {verb: self.url_of(run, verb) for verb in ("approve", "reject")}
        return {**urls, "node": node, "lacked": lacked(request, node), "longest": LONGEST_REASON}


def facts(page: Any, request: HttpRequest, run: Any, node: WorkflowNode) -> list[tuple[str, Any]]:
    """Return the lines about a node, without those that do not apply to it."""

    def linked(number: int | None, text: str) -> SafeString | str:
        """Return a link to another node of the run, "" if there is none."""
        return "" if number is None or number < 0 else node_link(page, request, run.pk, number, text)

    on = linked(node.when_node, _("on node %(n)s") % {"n": node.when_node})
    found: list[tuple[str, Any]] = [
        (_("Status"), status_badge(node.status)),
        (_("Number"), node.number),
        (_("Kind"), _(node.kind)),
        (_("Task"), node.task_name and breakable(node.task_name)),
        (_("Queue"), node.queue_name),
        (_("Leads to"), leads_to(page, request, node)),
        (_("Elements"), elements(node)),
        (_("Upstream"), upstream(node)),
        (_("Join"), join(node)),
        (_("Condition"), on and format_html("<code>{}</code> {}", node.when_path, on)),
        (_("Delay"), span(node.delay) if node.delay else ""),
        (_("Waits for the signal"), node.signal if node.kind != "gate" else ""),
        (_("Key of the signal"), node.signal_key),
        (_("Waits until"), moment(node.due_at, run.read_at)),
        (_("After the timeout"), AFTER_TIMEOUT.get(node.on_timeout or "") if node.due_at and node.signal else ""),
        (_("Permission to decide"), node.permission),
        (_("Decided by"), node.decided_by),
        (_("Good until"), moment(node.good_until, run.read_at)),
        (_("Undo"), breakable(str(node.undo.get("task"))) if isinstance(node.undo, dict) else ""),
        (_("Undoes"), linked(node.undoes, node.name.removeprefix("undo "))),
        (_("Added by"), linked(node.added_by, _("node %(n)s") % {"n": node.added_by})),
        (_("Finished"), moment(node.finished_at, run.read_at)),
        (_("Error code"), node.error_code),
    ]
    return [(label, value) for label, value in found if value not in (None, "", NOTHING)]


def join(node: WorkflowNode) -> str:
    """Return what has to become of the upstream nodes, "" if all have to complete."""
    if node.kind == "undo":
        return ""
    if node.rule == "quorum":
        form = _("%(n)s have to finish") if node.allow_failed else _("%(n)s have to complete")
        return form % {"n": node.needs}
    texts = {
        "succeeded": _("runs when all have finished and none failed"),
        "failed": _("runs when all have finished and one failed"),
        "finished": _("runs when all have finished"),
    }
    return texts.get(node.rule, _("runs even if some did not complete") if node.allow_failed else "")


def payload_table(node: WorkflowNode) -> Table:
    """Return arguments, value and error message of a node."""
    found = [(_("Arguments"), json_block(node.kwargs))] if node.kwargs else []
    found += [(_("Arguments from results"), json_block(node.inputs))] if node.inputs else []
    found += [(_("Value"), json_block(node.value))] if node.value is not None else []
    found += [(_("Error"), block(node.error))] if node.error else []
    return PAYLOAD_TABLE._replace(rows=found)


def reasons(page: Any, request: HttpRequest, run: Any, node: WorkflowNode, visible: bool) -> list[Line] | None:
    """Return why a node does not run, or how it ended; None if finding out timed out."""
    try:
        found = read_bounded(run._state.db, lambda: explain_node(run.pk, node.number), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return []
    return None if found is None else [reason_line(page, request, reason, visible) for reason in found.reasons]


def neighbours(page: Any, request: HttpRequest, run: Any, titled: tuple[str, str], **of: int) -> Table:
    """Return the first nodes at the other end of the edges of a node, which ``titled`` names, with the title."""
    alias, end = run._state.db, titled[0]
    edges = WorkflowEdge.objects.using(alias).filter(workflow_id=run.pk, **of).order_by(end)
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run.pk).order_by("number")

    def read() -> list[Any]:
        numbers = list(edges.values_list(end, flat=True)[: MANY + 1])
        return list(nodes.filter(number__in=numbers).values_list("number", "name", "status"))

    def row(one: Any) -> list[Any]:
        return [one[0], node_link(page, request, run.pk, *one[:2]), status_badge(one[2])]

    heads = (_("Number"), _("Name"), _("Status"))
    return Table(*titled, heads, *first_rows(read_bounded(alias, read), row))
