"""The page with the picture of a run. While the run is unfinished, its script fetches the picture anew every few seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import LAST, node_link, node_url, shape_of, status_badge
from horsies_django.admin.workflows.nodes import node_table, progress_bar, progress_of
from horsies_django.admin.workflows.picture.cards import (
    MOST_EDGES,
    MOST_NODES,
    SIZE,
    Graph,
    card,
    read,
    shown_status,
    styled_edges,
)
from horsies_django.admin.workflows.picture.geometry import drawn
from horsies_django.admin.workflows.run_forms import RunPagesMixin, lacked
from horsies_django.core.kinds import KINDS, kind_of
from horsies_django.core.status import NODE_STATUSES, UNFINISHED_NODES
from horsies_django.models import WorkflowRun

PICTURE_PAGE = "horsies_workflowrun_picture"
STARTED = ("CLAIMED", "RUNNING", "PAUSED", "COMPENSATING")  # of the task or the child run of a node that is ENQUEUED
ORDER = tuple(dict.fromkeys((*UNFINISHED_NODES, *STARTED, *NODE_STATUSES)))  # in the legend


class PicturePageMixin(RunPagesMixin):
    """Adds the page with the picture of a run."""

    def get_urls(self) -> list[Any]:
        view = self.view_of(self.picture_view)
        return [path("<path:object_id>/picture/", view, name=PICTURE_PAGE), *super().get_urls()]

    def picture_view(self, request: Any, object_id: str) -> HttpResponse:
        """Show the picture; with ``?live`` only what changes while the run goes on. Raises PermissionDenied."""
        run = self.find_run(request, object_id)
        if run is None:
            text = _("There is no workflow run “%(name)s”.")
            return self.home(request, text % {"name": unquote(object_id)})
        context = self.picture(request, run)
        if "live" in request.GET:
            request.current_app = self.admin_site.name
            return TemplateResponse(request, "admin/horsies/workflowrun/picture_live.html", context)
        title = _("Picture of %(run)s") % {"run": run.name}
        return self.page_of_run(request, run, "picture", title, {"tools": self.tools(request, run), **context})

    def picture(self, request: HttpRequest, run: Any) -> dict[str, Any]:
        """Return what the templates need to draw a run."""
        graph = read(run)
        context: dict[str, Any] = {
            "run": run,
            "live": run.finished_at is None,
            "status": status_badge(run.status),
            "progress": progress_bar(progress_of(run)),
            "gates": [] if graph is None else self._gates(request, graph),
            "graph": graph,
        }
        if graph is not None and graph.too_large:
            context["nodes"] = node_table(self, request, run)
            context["most"] = (f"{MOST_NODES:,}", f"{MOST_EDGES:,}")
        elif graph is not None:
            drawing = drawn((node.number for node in graph.nodes), styled_edges(graph))
            cards = self._cards(run, graph, drawing.boxes)
            context |= {"drawing": drawing, "cards": cards, "many": f"{len(cards):,}", "size": SIZE}
            context |= {"legend": legend(graph), "shapes": shapes(graph)}
        return context

    def _cards(self, run: Any, graph: Graph, boxes: list[Any]) -> list[dict[str, Any]]:
        nodes = {node.number: node for node in graph.nodes}
        cards = []
        for box in boxes:
            node, child = nodes[box.number], ""
            work = graph.work_of(node)
            if work and kind_of(node.kind).runs:
                child = self.url_of(WorkflowRun(pk=node.task_id), "picture")
            cards.append(card(node, box, work, run.read_at, node_url(self, run.pk, box.number), child))
        return cards

    def _gates(self, request: HttpRequest, graph: Graph) -> list[dict[str, Any]]:
        """Return the gates that wait for a decision, the first ones: their pages, and what the user lacks to decide."""
        waiting = [node for node in graph.nodes if node.kind == "gate" and node.status == "WAITING"]
        return [
            {
                "link": node_link(self, request, node.workflow_id, node.number, node.name),
                "url": f"{node_url(self, node.workflow_id, node.number)}#horsies-decision",
                "lacked": lacked(request, node),
            }
            for node in waiting[:LAST]
        ]


def legend(graph: Graph) -> list[dict[str, Any]]:
    """Return the statuses of the nodes, in the order of a node's life."""
    found = Counter(shown_status(node, graph.work_of(node)) for node in graph.nodes)
    statuses = [*(status for status in ORDER if found[status]), *sorted(found.keys() - set(ORDER))]
    shown = ((shape_of(status), f"{found[status]:,}") for status in statuses)
    return [{"icon": kind, "text": text, "many": many} for (kind, _shape, text), many in shown]


def shapes(graph: Graph) -> list[dict[str, Any]]:
    """Return the kinds of nodes that have another outline than tasks."""
    found = {node.kind for node in graph.nodes}
    shown = [kind for kind in KINDS.values() if kind.outlined and kind.name in found]
    return [{"icon": kind.outline, "text": _(kind.name)} for kind in shown]
