"""Growth: a running task adds nodes to its own workflow.

Nodes are inserted without the lock of the run, in the transaction of the task's code, and take part once the run is advanced: at
the latest when the task has finished. They belong to the node of the task by name, so a second attempt adds none of them twice.
The tasks of a map share their node: the names of what they add end with the place of the element, as in ``fetch[3]``.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from horsies_django.core.errors import WorkflowDefinitionError, WorkflowError
from horsies_django.store.workflows import Place, WorkflowStore
from horsies_django.tasks import context
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.enqueue import taken
from horsies_django.tasks.handle import async_form
from horsies_django.workflows import checks
from horsies_django.workflows.builder import Workflow
from horsies_django.workflows.database import writing
from horsies_django.workflows.embed import judge_name, level_problems
from horsies_django.workflows.nodes import Node
from horsies_django.workflows.operations import note
from horsies_django.workflows.send import path_problem

logger = logging.getLogger("horsies.worker")

MOST_CHANGED = 20
SAID = ("kind", "task", "kwargs", "inputs", "value", "signal", "signal_key")  # what is compared of two nodes
PASSING = ("good_until", "due_at", "options")  # may differ each time that the same workflow is built


class RunningWorkflow(Workflow):
    """The run of the current task. Each method inserts its node at once; in async code use those that begin with an "a".

    They raise WorkflowDefinitionError for a node that is wrong, and WorkflowError if the task is not part of a workflow, or if a
    later attempt of the task has begun.
    """

    def __init__(self, current: CurrentTask) -> None:
        super().__init__("the workflow of the current task")
        self.current = current
        self.place: Place | None = None  # of the task, once it was looked up
        self.changed = 0  # of nodes that an earlier attempt added otherwise

    def note(self, problem: str) -> None:
        """Raise WorkflowDefinitionError for a problem with a node that is inserted already."""
        raise WorkflowDefinitionError(self.name, [problem])

    def add(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a node, as ``Workflow.add`` does, and insert it."""
        return self._insert(super().add(what, *args, **kwargs))

    def map(self, what: Any, /, **kwargs: Any) -> Node:
        """Add a map, as ``Workflow.map`` does, and insert it."""
        return self._insert(super().map(what, **kwargs))

    def continue_as(self, what: Workflow, /, **kwargs: Any) -> Node:
        """Let the run continue as another one, as ``Workflow.continue_as`` does, once the current task has completed."""
        return self._insert(super().continue_as(what, **kwargs), what)

    def sleep(self, delay: Any, /, **kwargs: Any) -> Node:
        """Add a timer, as ``Workflow.sleep`` does, and insert it."""
        return self._insert(super().sleep(delay, **kwargs))

    def until(self, moment: Any, /, **kwargs: Any) -> Node:
        """Add a timer, as ``Workflow.until`` does, and insert it."""
        return self._insert(super().until(moment, **kwargs))

    def signal(self, signal: str, /, **kwargs: Any) -> Node:
        """Add a wait for a signal, as ``Workflow.signal`` does, and insert it."""
        return self._insert(super().signal(signal, **kwargs))

    def gate(self, name: str, /, *, announce: Any = None, **kwargs: Any) -> Node:
        """Add a gate, as ``Workflow.gate`` does, and insert it."""
        node = self._insert(super().gate(name, **kwargs))  # its name is final now
        self._announce(node, name, announce, **kwargs)
        return node

    aadd = async_form(add)
    amap = async_form(map)
    acontinue_as = async_form(continue_as)
    asleep = async_form(sleep)
    auntil = async_form(until)
    asignal = async_form(signal)
    agate = async_form(gate)

    def send(self) -> Any:
        """Refuse: the run was sent already. Raises WorkflowError."""
        raise WorkflowError("the workflow of the current task is running: add() and map() insert their nodes at once")

    def _insert(self, node: Node, successor: Workflow | None = None) -> Node:
        problems = [*self.problems, *checks.node_problems(node), *level_problems([node])]
        if problems:
            self.problems = []
            raise WorkflowDefinitionError(self.name, problems)
        task, attempt = self.current.task_id, self.current.attempt
        assert task is not None
        with taken(), writing() as store:
            if node.when is not None and (problem := path_problem(store, node.when.path)):
                raise WorkflowDefinitionError(self.name, [f"{node.name}: {problem}"])
            place = self.place = self.place or store.place(task)
            if place is None:
                raise WorkflowError(f"task {task} is not part of a workflow")
            self._refuse_place(node, place, successor)
            if place.element is not None:
                node.name = f"{node.name[:185]}[{place.element}]"
                if node.kind == "gate":
                    node.wait = node.wait._replace(signal=node.name)
            node.number = store.number(place.workflow)
            added = store.grow(task, attempt, f"[{node.json()}]")
            if not added:
                raise WorkflowError(
                    f"attempt {attempt} of task {task} is not the current one any more: it adds no nodes"
                )
            if added[0] is None:
                raise WorkflowDefinitionError(self.name, [f"{node.name}: {checks.both(node.wait.signal)}"])
            if not added[0]:  # an earlier attempt did
                number, earlier = store.named(place.workflow, place.node, node.name)
                if different(earlier, node.json()):
                    self._tell(store, place, node)
                node.number = number
        node.inserted = True
        return node

    def _tell(self, store: WorkflowStore, place: Place, node: Node) -> None:
        """Note on the run, and in the log, that a node stays as an earlier attempt added it; of an attempt, some."""
        self.changed += 1
        if self.changed > MOST_CHANGED:
            return
        said = f"attempt {self.current.attempt} adds {node.name!r} with other arguments: the node of an earlier attempt stays"
        logger.warning("workflow run %s: %s", place.workflow, said)
        task = {"node": node.name, "task": str(self.current.task_id)}
        note(store, place.workflow, "workflow.keep", self.current.name, said, task)

    def _refuse_place(self, node: Node, place: Place, successor: Workflow | None) -> None:
        """Raise an error for a node that cannot be in this run. A successor waits for the current task."""
        if place.kind == "undo":
            raise WorkflowError(f"task {self.current.task_id} undoes a node: an undo adds no nodes")
        if place.nested and node.undo is not None:
            self.problems.append(
                f"{node.name}: its run is a node of another one, where nothing can be undone: remove undo="
            )
        if successor is not None:
            node.upstream.add(place.node)
            judge_name(self, node, place.keyed_name, successor.name)
            if place.nested:
                self.problems.append(f"{node.name}: its run is a node of another one, and cannot continue as another")
        if self.problems:
            problems, self.problems = self.problems, []
            raise WorkflowDefinitionError(self.name, problems)


def different(earlier: str, later: str) -> bool:
    """Return whether two nodes, as JSON, run or wait for something else, or with other arguments."""
    one, other = json.loads(earlier), json.loads(later)
    return any(one.get(name) != other.get(name) for name in SAID) or lasting(one.get("graph")) != lasting(
        other.get("graph")
    )


def lasting(graph: Any) -> Any:
    """Return a graph without absolute times and metadata."""
    if isinstance(graph, dict):
        return {
            name: each if name == "kwargs" else lasting(each) for name, each in graph.items() if name not in PASSING
        }
    return [lasting(each) for each in graph] if isinstance(graph, list) else graph


def workflow_of(current: CurrentTask) -> RunningWorkflow:
    """Return the workflow of a running task."""
    found: RunningWorkflow | None = current.workflow_cache
    if found is None:
        found = current.workflow_cache = RunningWorkflow(current)
    return found


context.workflow_of = workflow_of
