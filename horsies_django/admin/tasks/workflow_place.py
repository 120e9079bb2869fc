"""The place of a task in a workflow: links to its run and its node."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import linked_field
from horsies_django.admin.base.links import node_link
from horsies_django.admin.tasks.payload import Base
from horsies_django.models import Task, WorkflowNode, WorkflowRun


class PlaceMixin(Base):
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
        page: Any = self
        alias, run = task._state.db, task.workflow_id
        name = WorkflowRun.objects.using(alias).filter(pk=run).values_list("name", flat=True).first()
        task.linked_run = str(run) if name is None else page.link(request, WorkflowRun, run, f"{name} {run}")
        nodes = WorkflowNode.objects.using(alias).filter(workflow_id=run, number=task.node)
        node = None if task.node is None else nodes.only("name", "kind").first()
        task.in_map = node is not None and node.kind == "map"
        task.linked_node = (
            _("None: a retry of the run replaced this task.")
            if node is None
            else node_link(page, request, run, task.node, node.name)
        )

    linked_run = linked_field("linked_run", gettext_lazy("run"))
    linked_node = linked_field("linked_node", gettext_lazy("node"))
    shown_element = linked_field("node_index", gettext_lazy("element of the map"))  # from 0
