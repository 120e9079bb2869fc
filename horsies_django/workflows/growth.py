"""Growth of workflows: a running task adds nodes to its own workflow.

The nodes are inserted in the transaction of the task's code, without the lock of the run. They take
part in the run when it is next advanced, at the latest when the task has finished. They belong to
the node of the task by name, so a second attempt adds none of them twice. The tasks of a map share
one node, so the names of the nodes that they add end with the place of the element, as in
``fetch[3]``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from horsies_django.core.errors import WorkflowDefinitionError, WorkflowError
from horsies_django.core.kinds import CONTINUE, GATE, UNDO
from horsies_django.store.workflows import PlaceInRun, WorkflowStore
from horsies_django.tasks import context
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.enqueue import taken
from horsies_django.tasks.handle import async_form
from horsies_django.workflows.builder import Workflow
from horsies_django.workflows.nodes import ABSOLUTE, Node, Problems, both, impossible, outermost
from horsies_django.workflows.operations import note, writing
from horsies_django.workflows.rules import misnamed
from horsies_django.workflows.send import path_problem

logger = logging.getLogger("horsies.worker")

ARGUMENT_MEMBERS = ("kwargs", "inputs", "value")
# The members that are compared of two nodes
COMPARED_MEMBERS = ("kind", "task", *ARGUMENT_MEMBERS, "signal", "signal_key", "graph")
PASSING = (*ABSOLUTE, "options")  # members that may differ each time a workflow is built


class RunningWorkflow(Workflow):
    """The run of the current task. Each method inserts its node at once.

    Async code uses the methods that begin with an "a". The methods raise WorkflowDefinitionError if
    a node is wrong, and WorkflowError if the task is not part of a workflow, or if a later attempt
    of the task has begun.
    """

    def __init__(self, current: CurrentTask) -> None:
        super().__init__("the workflow of the current task")
        self.current = current
        self.place: PlaceInRun | None = None  # the place of the task, once it was read
        self.changed = 0  # how many nodes an earlier attempt has added with other arguments

    def note(self, problem: str) -> None:
        """Raise WorkflowDefinitionError for a problem of a node that is inserted already."""
        raise WorkflowDefinitionError(self.name, [problem])

    aadd = async_form(Workflow.add)
    amap = async_form(Workflow.map)
    acontinue_as = async_form(Workflow.continue_as)
    asleep = async_form(Workflow.sleep)
    auntil = async_form(Workflow.until)
    asignal = async_form(Workflow.signal)
    agate = async_form(Workflow.gate)

    def send(self) -> Any:
        """Raise WorkflowError, because the run was sent already."""
        raise WorkflowError(
            "send() cannot be called, because the workflow of the current task is running. add() "
            "and map() insert their nodes at once"
        )

    def _record(self, *recorded: Any) -> Node:
        node = super()._record(*recorded)
        self._refuse([*outermost([node]), *impossible(node)])
        task = self.current.task_id
        assert task is not None

        with taken(), writing() as store:
            if node.when is not None and (problem := path_problem(store, node.when.path)):
                self._refuse([f"{node.name}: {problem}"])

            place = self.place = self.place or store.place(task)
            if place is None:
                raise WorkflowError(f"task {task} is not part of a workflow")
            if place.kind == UNDO.name:
                raise WorkflowError(f"task {task} is an undo: an undo cannot add nodes")

            self._refuse(f"{node.name}: {problem}" for problem in misplaced(node, place))
            self._insert(store, task, node, place)

        node.inserted = True
        return node

    def _refuse(self, problems: Iterable[str]) -> None:
        """Raise WorkflowDefinitionError if there are problems with the node that is being added."""
        found, self.problems = [*self.problems, *problems], []
        if found:
            raise WorkflowDefinitionError(self.name, found)

    def _insert(self, store: WorkflowStore, task: UUID, node: Node, place: PlaceInRun) -> None:
        """Insert a node, unless an earlier attempt has inserted it."""
        if node.kind is CONTINUE:
            node.upstream.add(place.node)  # the run ends once the current task has completed
        if place.element is not None:
            node.name = f"{node.name[:185]}[{place.element}]"
            node.columns |= {"signal": node.name} if node.kind is GATE else {}

        node.number = store.number(place.workflow)
        attempt = self.current.attempt
        added = store.grow(task, attempt, f"[{node.json()}]")
        if not added:
            raise WorkflowError(
                f"attempt {attempt} of task {task} is no longer the current one, and cannot add "
                "nodes"
            )

        if added[0] is None:
            self._refuse([f"{node.name}: {both(node.columns['signal'])}"])

        if not added[0]:
            number, earlier = store.named(place.workflow, place.node, node.name)
            if different(earlier, node.json()):
                self._note_kept(store, place, node)
            node.number = number

    def _note_kept(self, store: WorkflowStore, place: PlaceInRun, node: Node) -> None:
        """Log, and note in the audit of the run, that the node of an earlier attempt is kept.

        Only the first 20 such nodes of an attempt are noted.
        """
        self.changed += 1
        if self.changed > 20:
            return

        text = (
            f"attempt {self.current.attempt} added {node.name!r} with other arguments, so the "
            "node of an earlier attempt is kept"
        )

        logger.warning("workflow run %s: %s", place.workflow, text)
        task = {"node": node.name, "task": str(self.current.task_id)}
        note(store, place.workflow, "workflow.keep", self.current.name, text, task)


def misplaced(node: Node, place: PlaceInRun) -> Problems:
    """Yield a problem if a node cannot be in the run of the task that adds it."""
    if place.nested and "undo" in node.texts:
        yield "the run is a node of another one, and its nodes cannot be undone. Remove undo="
    if node.kind is CONTINUE and node.child is not None:
        yield from misnamed(node.child, place.keyed_name)
        if place.nested:
            yield "the run is a node of another one, and cannot continue as another run"


def different(earlier: str, later: str) -> bool:
    """Return whether two nodes, given as JSON, run or wait for different things.

    Different arguments count as well.
    """
    one, other = (
        {name: node.get(name) for name in COMPARED_MEMBERS}
        for node in (json.loads(earlier), json.loads(later))
    )
    return bool(lasting(one) != lasting(other))


def lasting(graph: Any) -> Any:
    """Return a node or a graph without absolute times and options, which may differ each time."""
    if isinstance(graph, list):
        return [lasting(each) for each in graph]
    if not isinstance(graph, dict):
        return graph
    kept = {name: each for name, each in graph.items() if name not in PASSING}
    return {
        name: each if name in ARGUMENT_MEMBERS else lasting(each) for name, each in kept.items()
    }


def workflow_of(current: CurrentTask) -> RunningWorkflow:
    """Return the workflow of a running task."""
    found: RunningWorkflow | None = current.workflow_cache
    if found is None:
        found = current.workflow_cache = RunningWorkflow(current)
    return found


context.workflow_getter = workflow_of
