"""Growth: a running task adds nodes to its own workflow.

Nodes are inserted without the lock of the run, in the transaction of the task's code, and take part once the run is advanced: at
the latest when the task has finished. They belong to the node of the task by name, so a second attempt adds none of them twice.
The tasks of a map share their node: the names of what they add end with the place of the element, as in ``fetch[3]``.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db import connections, transaction

from horsies_django.conf import config
from horsies_django.core.errors import WorkflowDefinitionError, WorkflowError
from horsies_django.store.notify import channel_prefix
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks import context
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.enqueue import taken
from horsies_django.workflows import checks
from horsies_django.workflows.builder import Workflow
from horsies_django.workflows.nodes import Node


class RunningWorkflow(Workflow):
    """The run of the current task. ``add`` and ``map`` insert their node at once.

    They raise WorkflowDefinitionError for a node that is wrong, and WorkflowError if the attempt that calls them is no longer the
    current one of its task.
    """

    def __init__(self, current: CurrentTask, run: uuid.UUID, node: int, element: int | None) -> None:
        super().__init__(f"run {run}")
        self.workflow_id = run
        self.current = current
        self.by = node
        self.element = element

    def add(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a node, as ``Workflow.add`` does, and insert it."""
        return self._insert(super().add(what, *args, **kwargs))

    def map(self, what: Any, /, **kwargs: Any) -> Node:
        """Add a map, as ``Workflow.map`` does, and insert it."""
        return self._insert(super().map(what, **kwargs))

    def send(self) -> Any:
        """Refuse: the run was sent already. Raises WorkflowError."""
        raise WorkflowError("the workflow of the current task is running: add() and map() insert their nodes at once")

    def _node(self, wanted: str, given: str | None, kind: str) -> Node:
        node = super()._node(wanted, given, kind)
        if self.element is not None:
            node.name = f"{node.name[:185]}[{self.element}]"
        return node

    def _insert(self, node: Node) -> Node:
        problems = [*self.problems, *checks.node_problems(node)]
        if problems:
            self.problems = []
            raise WorkflowDefinitionError(self.name, problems)
        conf = config()
        connection = connections[conf.database]
        with taken(), transaction.atomic(using=conf.database):
            store = WorkflowStore(connection, channel_prefix(connection), conf.max_payload_bytes)
            if node.when is not None:
                store.check_path(node.when.path)
            node.number = store.numbers(1)[0]
            task = self.current.task_id
            assert task is not None
            added = store.grow(task, self.current.attempt, f"[{node.json()}]")
            if added is None:
                raise WorkflowError(
                    f"attempt {self.current.attempt} of task {task} is not the current one any more: it adds no nodes"
                )
            if not added:
                number = store.named(self.workflow_id, self.by, node.name)
                assert number is not None
                node.number = number
        return node


def workflow_of(current: CurrentTask) -> RunningWorkflow:
    """Return the workflow of a running task. Raises WorkflowError if it is not part of one."""
    found: RunningWorkflow | None = current.workflow_cache
    if found is None:
        conf = config()
        assert current.task_id is not None
        place = WorkflowStore(connections[conf.database], "", conf.max_payload_bytes).place(current.task_id)
        if place is None:
            raise WorkflowError(f"task {current.task_id} is not part of a workflow")
        found = current.workflow_cache = RunningWorkflow(current, *place)
    return found


context.workflow_of = workflow_of
