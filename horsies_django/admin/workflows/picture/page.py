"""The page with the picture of a run. While the run is unfinished, its script fetches the picture anew every few seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import LAST, node_link, node_url
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.base.refusals import answered
from horsies_django.admin.workflows.nodes import badge_of, node_table, progress_bar
from horsies_django.admin.workflows.picture.cards import (
    MOST_EDGES,
    MOST_NODES,
    SIZE,
    Card,
    Graph,
    card,
    icon,
    name,
    read,
    shown_status,
    styled_edges,
)
from horsies_django.admin.workflows.picture.geometry import drawn
from horsies_django.admin.workflows.run_forms import RunPagesMixin, lacked
from horsies_django.core.kinds import KINDS, kind_of
from horsies_django.core.status import NODE_STATUSES, UNFINISHED_NODES
from horsies_django.models import WorkflowNode
from horsies_django.monitoring import workflows

PICTURE_PAGE = "horsies_workflowrun_picture"
STARTED = ("CLAIMED", "RUNNING", "PAUSED", "COMPENSATING")  # of the task or the child run of a node that is ENQUEUED
ORDER = tuple(dict.fromkeys((*UNFINISHED_NODES, *STARTED, *NODE_STATUSES)))  # in the legend


class Entry(NamedTuple):
    """A line of the legend: a status, or a kind of nodes, with how many nodes are of it."""

    icon: str
    text: str | Promise
    many: str


class Gate(NamedTuple):
    """A gate that waits for a decision: its page, and the permission that the user lacks to decide, "" if none."""

    link: SafeString | str
    url: str
    lacked: str


class PicturePageMixin(RunPagesMixin):
    """Adds the page with the picture of a run."""

    def get_urls(self) -> list[Any]:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            return answered(self, request, lambda: self.picture_view(request, object_id))

        wrapped: Any = self.admin_site.admin_view(view)
        return [path("<path:object_id>/picture/", wrapped, name=PICTURE_PAGE), *super().get_urls()]

    def picture_view(self, request: Any, object_id: str) -> HttpResponse:
        """Show the picture; with ``?live`` only what changes while the run goes on. Raises PermissionDenied."""
        run = self.find_run(request, object_id)
        if run is None:
            return self.no_run(request, object_id)
        request.current_app = self.admin_site.name
        if "live" in request.GET:
            return TemplateResponse(request, "admin/horsies/workflowrun/picture_live.html", self.picture(request, run))
        page: Any = self
        context = {
            **self.admin_site.each_context(request),
            "title": _("Picture of %(run)s") % {"run": run.name},
            "opts": self.opts,
            "media": self.media,
            "run": run,
            "run_url": self.url_of(run),
            "tools": page.tools(request, run),
            **self.picture(request, run),
        }
        return TemplateResponse(request, "admin/horsies/workflowrun/picture.html", context)

    def picture(self, request: HttpRequest, run: Any) -> dict[str, Any]:
        """Return what the templates need to draw a run."""
        counted = read_bounded(run._state.db, lambda: workflows.progress([run.pk]))
        graph = read(run)
        found = {
            "run": run,
            "live": run.finished_at is None,
            "status": badge_of(run.status),
            "progress": progress_bar((counted or {}).get(run.pk)),
            "gates": [] if graph is None else self._gates(request, graph),
            "graph": graph,
        }
        if graph is None:
            return found
        if graph.too_large:
            visible = request.user.has_perm("horsies.view_payload")
            return {
                **found,
                "nodes": node_table(self, request, run, visible),
                "most": (f"{MOST_NODES:,}", f"{MOST_EDGES:,}"),
            }
        drawing = drawn((node.number for node in graph.nodes), styled_edges(graph))
        cards = self._cards(run, graph, drawing.boxes)
        return {
            **found,
            "drawing": drawing,
            "cards": cards,
            "many": f"{len(cards):,}",
            "size": SIZE,
            "legend": legend(graph),
            "shapes": shapes(graph),
        }

    def _cards(self, run: Any, graph: Graph, boxes: list[Any]) -> list[Card]:
        nodes = {node.number: node for node in graph.nodes}
        cards = []
        for box in boxes:
            node = nodes[box.number]
            work = graph.work_of(node)
            child = quote(str(node.task_id)) if kind_of(node.kind).runs and work else ""
            child_url = (
                reverse(f"admin:{PICTURE_PAGE}", args=(child,), current_app=self.admin_site.name) if child else ""
            )
            cards.append(card(node, box, work, run.read_at, node_url(self, run.pk, box.number), child_url))
        return cards

    def _gates(self, request: HttpRequest, graph: Graph) -> list[Gate]:
        """Return the gates that wait for a decision, the first ones."""
        waiting = [node for node in graph.nodes if node.kind == "gate" and node.status == "WAITING"]
        return [self._gate(request, node) for node in waiting[:LAST]]

    def _gate(self, request: HttpRequest, node: WorkflowNode) -> Gate:
        link = node_link(self, request, node.workflow_id, node.number, node.name)
        address = node_url(self, node.workflow_id, node.number)
        return Gate(link, f"{address}#horsies-decision", lacked(self, request, node))


def legend(graph: Graph) -> list[Entry]:
    """Return the statuses of the nodes, in the order of a node's life."""
    found = Counter(shown_status(node, graph.work_of(node)) for node in graph.nodes)
    statuses = [*(status for status in ORDER if found[status]), *sorted(found.keys() - set(ORDER))]
    return [Entry(icon(status), name(status), f"{found[status]:,}") for status in statuses]


def shapes(graph: Graph) -> list[Entry]:
    """Return the kinds of nodes that have another outline than tasks."""
    found = Counter(node.kind for node in graph.nodes)
    shown = [kind for kind in KINDS.values() if kind.outlined and found[kind.name]]
    return [Entry(kind.outline, _(kind.name), f"{found[kind.name]:,}") for kind in shown]
