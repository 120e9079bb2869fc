"""Reads what the picture of a run shows: its nodes, its edges, and the times of its tasks and child runs. Reads are bounded."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, NamedTuple

from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.workflows.picture.layers import Edge
from horsies_django.models import Task, WorkflowEdge, WorkflowNode, WorkflowRun

MOST_NODES, MOST_EDGES = 2_000, 10_000  # more are not drawn
OF_RUNS = ("workflow", "continue")  # kinds of nodes whose ``task_id`` is that of a run
COLUMNS = (
    "workflow_id", "number", "name", "kind", "status", "task_name", "added_by", "task_id", "total", "items_ok", "items_bad",
    "in_flight", "signal", "due_at", "permission", "undoes", "finished_at", "error_code",
)  # fmt: skip


class Work(NamedTuple):
    """The task or the child run of a node; the times of a run are when it was sent and finished."""

    status: str
    started_at: dt.datetime | None
    finished_at: dt.datetime | None


class Graph(NamedTuple):
    """What is drawn of a run. ``work`` is by the id in ``task_id`` of a node."""

    nodes: list[WorkflowNode]
    edges: list[tuple[int, int]]
    work: dict[uuid.UUID, Work]

    @property
    def too_large(self) -> bool:
        """Whether there is more than is drawn."""
        return len(self.nodes) > MOST_NODES or len(self.edges) > MOST_EDGES

    def work_of(self, node: WorkflowNode) -> Work | None:
        """Return the task or the child run of a node."""
        return None if node.task_id is None else self.work.get(node.task_id)


def read(run: Any) -> Graph | None:
    """Return what is drawn of a run, None if reading timed out."""
    return read_bounded(run._state.db, lambda: _read(run._state.db, run.pk))


def _read(alias: str, run: uuid.UUID) -> Graph:
    nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run).order_by("number").only(*COLUMNS)
    edges = WorkflowEdge.objects.using(alias).filter(workflow_id=run).order_by("upstream", "downstream")
    graph = Graph(
        list(nodes[: MOST_NODES + 1]),
        list(edges.values_list("upstream", "downstream")[: MOST_EDGES + 1]),
        {},
    )
    if graph.too_large:
        return graph
    runs = [node.task_id for node in graph.nodes if node.task_id and node.kind in OF_RUNS]
    tasks = [node.task_id for node in graph.nodes if node.task_id and node.kind not in OF_RUNS]
    if tasks:
        found = Task.objects.using(alias).filter(pk__in=tasks)
        columns = ("pk", "status", "started_at", "finished_at")
        graph.work.update((pk, Work(*rest)) for pk, *rest in found.values_list(*columns))
    if runs:
        children = WorkflowRun.objects.using(alias).filter(pk__in=runs)
        columns = ("pk", "status", "sent_at", "finished_at")
        graph.work.update((pk, Work(*rest)) for pk, *rest in children.values_list(*columns))
    return graph


def styled_edges(graph: Graph) -> list[Edge]:
    """Return the edges with their styles, and edges to nodes from what added them and from what they undo."""
    nodes = {node.number: node for node in graph.nodes}
    found = dict.fromkeys(graph.edges, "open")
    for node in graph.nodes:
        if node.added_by in nodes:
            found.setdefault((node.added_by, node.number), "grown")
        if node.undoes in nodes:
            found[node.undoes, node.number] = "undo"
    return [
        Edge(upstream, downstream, _style(nodes[upstream], nodes[downstream], style))
        for (upstream, downstream), style in found.items()
        if upstream in nodes and downstream in nodes
    ]


def _style(upstream: WorkflowNode, downstream: WorkflowNode, style: str) -> str:
    if style == "grown":
        return style
    if downstream.kind == "undo":
        return "undo"
    if upstream.status == "COMPLETED":
        return "done"
    return "open" if upstream.finished_at is None else "off"
