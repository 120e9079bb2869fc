"""The picture of a run: its nodes and edges, the texts of the boxes, and the page.

Each box also has a text for users of screen readers.

SVG does not wrap text, and the server has no access to the browser's font, so widths of text are
estimated. While the run is unfinished, the script of the page fetches the picture again every few
seconds.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
import uuid
from collections import Counter
from itertools import accumulate
from typing import Any, NamedTuple

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import (
    MOST_ENTRIES,
    badge_shape,
    duration_text,
    node_link,
    node_url,
    status_badge,
)
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.workflows.geometry import BOX_WIDTH, HEIGHT, Box, Edge, drawn
from horsies_django.admin.workflows.nodes import (
    RunPagesMixin,
    lacked,
    node_table,
    progress_bar,
    progress_of,
)
from horsies_django.core.kinds import KINDS, TASK, kind_of
from horsies_django.core.status import NODE_STATUSES, UNFINISHED_NODES
from horsies_django.models import Task, WorkflowEdge, WorkflowNode, WorkflowRun

# A graph with more nodes or edges is not drawn.
MOST_NODES_DRAWN = 2_000
MOST_EDGES_DRAWN = 10_000
DRAWN_NODE_COLUMNS = (
    "workflow_id",
    "number",
    "name",
    "kind",
    "status",
    "task_name",
    "added_by",
    "task_id",
    "total",
    "items_ok",
    "items_bad",
    "in_flight",
    "signal",
    "due_at",
    "permission",
    "undoes",
    "finished_at",
    "error_code",
)
# The widths of characters in hundredths of the font's size.
WIDTHS = {
    **dict.fromkeys("ijl.,:;'|!()[] ", 32),
    **dict.fromkeys('ftr-I/\\"', 40),
    **dict.fromkeys("mwMW@%&…", 94),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ_", 70),
}
USUAL_WIDTH = 60
WIDE_WIDTH = 100
ELLIPSIS = "…"
TEXT_X = 42
BAR = BOX_WIDTH - TEXT_X - 12  # width of the progress of a map
# The room for texts, in hundredths of the font's size. The name is bold, and so it is wider.
NAME_ROOM = 100 * BAR / 14.5
STATE_ROOM = 100 * BAR / 11.5

PICTURE_PAGE = "horsies_workflowrun_picture"
# Statuses of the task or the child run of a node that is ENQUEUED.
STARTED_STATUSES = ("CLAIMED", "RUNNING", "PAUSED", "COMPENSATING")
# The order of the statuses in the legend.
ORDER = tuple(dict.fromkeys((*UNFINISHED_NODES, *STARTED_STATUSES, *NODE_STATUSES)))


class Work(NamedTuple):
    """The task or the child run of a node.

    The times of a child run are those when it was sent and when it finished.
    """

    status: str
    started_at: dt.datetime | None
    finished_at: dt.datetime | None


class DrawnGraph(NamedTuple):
    """The parts of a run that are drawn. ``work`` is by the id in ``task_id`` of a node."""

    nodes: list[WorkflowNode]
    edges: list[tuple[int, int]]
    work: dict[uuid.UUID, Work]

    @property
    def too_large(self) -> bool:
        """True if there are more nodes or edges than are drawn."""
        return len(self.nodes) > MOST_NODES_DRAWN or len(self.edges) > MOST_EDGES_DRAWN

    def work_of(self, node: WorkflowNode) -> Work | None:
        """Return the task or the child run of a node, or None if it has none."""
        return None if node.task_id is None else self.work.get(node.task_id)


def read_graph(run: Any) -> DrawnGraph | None:
    """Return the graph of a run, or None if reading it took too long."""
    return read_bounded(run._state.db, lambda: _read(run._state.db, run.pk))


def _read(alias: str, run: uuid.UUID) -> DrawnGraph:
    nodes = (
        WorkflowNode.objects.using(alias)
        .filter(workflow_id=run)
        .order_by("number")
        .only(*DRAWN_NODE_COLUMNS)
    )
    edges = (
        WorkflowEdge.objects.using(alias).filter(workflow_id=run).order_by("upstream", "downstream")
    )
    ends = edges.values_list("upstream", "downstream")

    graph = DrawnGraph(list(nodes[: MOST_NODES_DRAWN + 1]), list(ends[: MOST_EDGES_DRAWN + 1]), {})
    if graph.too_large:
        return graph

    for model, begun, runs in ((Task, "started_at", False), (WorkflowRun, "sent_at", True)):
        ids = [
            node.task_id for node in graph.nodes if node.task_id and kind_of(node.kind).runs is runs
        ]
        rows: Any = model._default_manager.using(alias).filter(pk__in=ids)
        found = rows.values_list("pk", "status", begun, "finished_at") if ids else ()
        graph.work.update((pk, Work(*rest)) for pk, *rest in found)

    return graph


def styled_edges(graph: DrawnGraph) -> list[Edge]:
    """Return the edges of a graph with their styles.

    There are also edges to nodes that were added, from the nodes that added them, and to undos,
    from the nodes that they undo.
    """
    nodes = {node.number: node for node in graph.nodes}
    # The style "" means that the statuses decide it.
    found: dict[tuple[int, int], str] = dict.fromkeys(graph.edges, "")

    for node in graph.nodes:
        if node.added_by in nodes:
            found.setdefault((node.added_by, node.number), "grown")
        if node.undoes in nodes:
            found[node.undoes, node.number] = ""

    return [
        Edge(upstream, downstream, style or _style(nodes[upstream], nodes[downstream]))
        for (upstream, downstream), style in found.items()
        if upstream in nodes and downstream in nodes
    ]


def _style(upstream: WorkflowNode, downstream: WorkflowNode) -> str:
    if downstream.kind == "undo":
        return "undo"
    if upstream.status == "COMPLETED":
        return "done"
    return "open" if upstream.finished_at is None else "off"


def text_width(text: str) -> int:
    """Return the estimated width of a text, in hundredths of the size of its font.

    The estimate is rather too large than too small.
    """
    return sum(map(_width, text))


def cut(text: str, most: float) -> str:
    """Return a text, or its beginning and an ellipsis if it is wider than ``most``."""
    return (
        text
        if text_width(text) <= most
        else _beginning(text, most - text_width(ELLIPSIS)).rstrip() + ELLIPSIS
    )


def lines(text: str, most: float) -> list[str]:
    """Return a name in one line or two.

    It is broken after a space, a dot, a slash, a colon, a hyphen or an underscore if there is one.
    """
    text = " ".join(text.split())
    if text_width(text) <= most:
        return [text]

    first = ""
    for part in re.findall(r"[^\s._/:-]*[\s._/:-]?", text):
        if text_width((first + part).rstrip()) > most:
            break
        first += part

    first = first or _beginning(text, most)
    return [first.rstrip(), cut(text[len(first) :].lstrip(), most)]


def _beginning(text: str, most: float) -> str:
    return text[: sum(wide <= most for wide in accumulate(map(_width, text)))]


def _width(each: str) -> int:
    if unicodedata.combining(each):
        return 0
    return (
        WIDE_WIDTH if unicodedata.east_asian_width(each) in "WF" else WIDTHS.get(each, USUAL_WIDTH)
    )


def card(
    node: WorkflowNode, box: Box, work: Work | None, now: dt.datetime, url: str, child: str
) -> dict[str, Any]:
    """Return the values of a box for the template.

    ``child`` is the address of the picture of a child run, or "".
    """
    status = shown_status(node, work)
    lines_of_name = lines(node.name, NAME_ROOM)
    tall = len(lines_of_name) > 1
    total = has_several_elements(node) and node.total  # of a map with a bar
    failed = BAR * node.items_bad // total if total else 0

    return {
        "number": node.number,
        "x": box.x,
        "y": box.y,
        "url": url,
        "child": child,
        "outline": kind_of(node.kind).outline,
        "status": badge_shape(status)[0],  # of the icon and of the colour
        "name": list(zip((22, 37) if tall else (29,), lines_of_name, strict=True)),
        "state": cut(state(node, status, work, now), STATE_ROOM),
        "state_y": 54 if tall else 48,
        "label": node_label(node, status, work, now),
        "child_label": _("Picture of %(run)s") % {"run": node.name} if child else "",
        "done": BAR * node.items_ok // total if total else None,
        "failed": failed,
        "failed_x": TEXT_X + BAR - failed,
    }


def shown_status(node: WorkflowNode, work: Work | None) -> str:
    """Return the status of a node, or that of its task or run while this is not final."""
    if node.status == "ENQUEUED" and work and work.status != "PENDING":
        return work.status if work.finished_at is None else node.status
    if has_several_elements(node) and node.in_flight and node.finished_at is None:
        return "RUNNING"
    return node.status


def state(node: Any, status: str, work: Work | None, now: dt.datetime) -> str:
    """Return the line below the name of a node.

    It contains the kind unless that is a task, the status or the counts, and the wait and the
    duration if there are any.
    """
    kind = "" if node.kind == TASK.name else capfirst(_(node.kind))
    if has_several_elements(node):
        failed = _(", %(n)s failed") % {"n": f"{node.items_bad:,}"} if node.items_bad else ""
        return f"{kind} · {node.items_ok:,} / {node.total:,}{failed}"

    text = " · ".join(
        filter(
            None, (wait_text(node, now) or str(badge_shape(status)[2]), work_duration(work, now))
        )
    )
    whole = f"{kind} · {text}" if kind else text
    return whole if text_width(whole) <= STATE_ROOM or not kind_of(node.kind).outlined else text


def node_label(node: WorkflowNode, status: str, work: Work | None, now: dt.datetime) -> str:
    """Return a description of a node in words: ``charge, task, completed, took 1.2 s``."""
    parts = [node.name, _(node.kind), str(badge_shape(status)[2]).lower()]

    if has_several_elements(node):
        parts.append(
            _("%(done)s of %(total)s completed")
            % {"done": f"{node.items_ok:,}", "total": f"{node.total:,}"}
        )
        parts += [_("%(n)s failed") % {"n": f"{node.items_bad:,}"}] if node.items_bad else []

    parts.append(wait_text(node, now))
    if time := work_duration(work, now):
        parts.append(
            (_("took %(span)s") if work and work.finished_at else _("for %(span)s"))
            % {"span": time}
        )

    parts += [node.error_code] if node.error_code else []
    return ", ".join(part for part in parts if part)


def has_several_elements(node: WorkflowNode) -> bool:
    """Return whether a node has several elements.

    These are the tasks of a map whose elements are known, the undos of a map, or several things
    that a node waits for.
    """
    return node.total is not None and (kind_of(node.kind).many or node.total > 1)


def wait_text(node: WorkflowNode, now: dt.datetime) -> str:
    if node.status != "WAITING":
        return ""
    if node.kind == "gate":
        return _("needs a decision")
    if node.kind == "timer" and node.due_at is not None:
        return _("until %(time)s") % {"time": short_time(node.due_at, now)}
    return _("waits for “%(signal)s”") % {"signal": node.signal} if node.signal else ""


def work_duration(work: Work | None, now: dt.datetime) -> str:
    """Return how long a task or a child run took, or has been running so far.

    Return "" if it has not started or never ran.
    """
    if work is None or work.started_at is None:
        return ""
    if work.finished_at is None and work.status not in ("RUNNING", "PAUSED", "COMPENSATING"):
        return ""
    return duration_text((work.finished_at or now) - work.started_at)


def short_time(value: dt.datetime, now: dt.datetime) -> str:
    """Return the time of day, with the date unless it is today's."""
    local, today = (
        timezone.localtime(each) if timezone.is_aware(each) else each for each in (value, now)
    )
    return f"{local:%H:%M}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}"


SIZE = {"width": BOX_WIDTH, "height": HEIGHT, "text_x": TEXT_X, "bar": BAR}


class PicturePageMixin(RunPagesMixin):
    """Mixin that adds the page with the picture of a run."""

    def get_urls(self) -> list[Any]:
        view = self.view_of(self.picture_view)
        return [path("<path:object_id>/picture/", view, name=PICTURE_PAGE), *super().get_urls()]

    def picture_view(self, request: Any, object_id: str) -> HttpResponse:
        """Show the picture of a run.

        With ``?live``, the response contains only the parts that change while the run is
        unfinished. Raises PermissionDenied if the user may not view runs.
        """
        run = self.find_run(request, object_id)
        if run is None:
            text = _("There is no workflow run “%(name)s”.")
            return self.home(request, text % {"name": unquote(object_id)})

        context = self.picture(request, run)
        if "live" in request.GET:
            request.current_app = self.admin_site.name
            return TemplateResponse(request, "admin/horsies/workflowrun/picture_live.html", context)

        title = _("Picture of %(run)s") % {"run": run.name}
        return self.page_of_run(
            request, run, "picture", title, {"tools": self.tools(request, run), **context}
        )

    def picture(self, request: HttpRequest, run: Any) -> dict[str, Any]:
        """Return the context that the templates need to draw a run."""
        graph = read_graph(run)
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
            context["most"] = (f"{MOST_NODES_DRAWN:,}", f"{MOST_EDGES_DRAWN:,}")
        elif graph is not None:
            drawing = drawn((node.number for node in graph.nodes), styled_edges(graph))
            nodes = {node.number: node for node in graph.nodes}

            cards = []
            for box in drawing.boxes:
                node = nodes[box.number]
                child = ""
                work = graph.work_of(node)
                if work and kind_of(node.kind).runs:
                    child = self.url_of(WorkflowRun(pk=node.task_id), "picture")

                cards.append(
                    card(node, box, work, run.read_at, node_url(self, run.pk, box.number), child)
                )

            context |= {"drawing": drawing, "cards": cards, "many": f"{len(cards):,}", "size": SIZE}
            context |= {"legend": legend(graph), "shapes": shapes(graph)}

        return context

    def _gates(self, request: HttpRequest, graph: DrawnGraph) -> list[dict[str, Any]]:
        """Return the first gates that wait for a decision.

        Each has its page, and the permission that the user lacks to decide.
        """
        waiting = [node for node in graph.nodes if node.kind == "gate" and node.status == "WAITING"]
        return [
            {
                "link": node_link(self, request, node.workflow_id, node.number, node.name),
                "url": f"{node_url(self, node.workflow_id, node.number)}#horsies-decision",
                "lacked": lacked(request, node),
            }
            for node in waiting[:MOST_ENTRIES]
        ]


def legend(graph: DrawnGraph) -> list[dict[str, Any]]:
    """Return the statuses of the nodes, in the order of a node's life."""
    found = Counter(shown_status(node, graph.work_of(node)) for node in graph.nodes)
    statuses = [*(status for status in ORDER if found[status]), *sorted(found.keys() - set(ORDER))]
    shown = ((badge_shape(status), f"{found[status]:,}") for status in statuses)
    return [{"icon": kind, "text": text, "many": many} for (kind, _shape, text), many in shown]


def shapes(graph: DrawnGraph) -> list[dict[str, Any]]:
    """Return the kinds of nodes whose outline differs from that of a task."""
    found = {node.kind for node in graph.nodes}
    shown = [kind for kind in KINDS.values() if kind.outlined and kind.name in found]
    return [{"icon": kind.outline, "text": _(kind.name)} for kind in shown]
