"""The builder of workflows, and ``Batch``: tasks that do not depend on one another, and callbacks.

Nothing raises while a graph is built; ``send`` names all problems at once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal
from uuid import UUID

from asgiref.sync import sync_to_async

from horsies_django.core.errors import TaskSendError, WorkflowDefinitionError
from horsies_django.tasks import registry
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.options import SendOptions, prepare
from horsies_django.workflows import checks
from horsies_django.workflows.embed import embed, follow
from horsies_django.workflows.handle import WorkflowHandle
from horsies_django.workflows.nodes import Condition, Join, N, Node, Quorum, T
from horsies_django.workflows.send import handle_of, send_graphs
from horsies_django.workflows.undo import take_undo
from horsies_django.workflows.waits import Waits

MOST_NODES = 1_000_000
TASKS = "add() takes a task, the name of one, or a Workflow"
MAPPED = "map() runs a task per element, which may add a workflow by current_task().workflow.add(): it takes a task or its name"
CALLBACKS = ("succeeded", "failed", "finished")  # their rules


class Workflow(Waits, Generic[T]):
    """A graph of tasks to be sent as one run; ``Workflow[int]`` is one whose value is an int, for type checkers.

    ``on_error`` says what a failed node does to the run, unless a node that depends on it runs nevertheless: "fail" (independent
    nodes still run), "stop" (no other node starts, running ones are cancelled) or "pause". Sending the same name, ``key`` and
    graph again returns the first run. ``good_until``, an aware datetime or a timedelta from sending, is the latest start of its
    tasks. ``max_in_flight`` limits how many tasks of the run are sent and not finished at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        on_error: Literal["fail", "stop", "pause"] = "fail",
        key: str | None = None,
        good_until: dt.datetime | dt.timedelta | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        self.name = name
        self.on_error: str = on_error
        self.key = key
        self.good_until = good_until
        self.max_in_flight = max_in_flight
        self.nodes: list[Node] = []
        self.output: Node[T] | None = None
        self.problems: list[str] = []
        self.outer: set[Workflow] = set()  # those that have this one as a node, or continue as it
        self._names: Counter[str] = Counter()
        self._given: set[str] = set()

    def add(
        self,
        what: Sender[..., N] | Workflow[N] | str,
        /,
        *args: Any,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
        undo: Sender[..., Any] | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Node[N]:
        """Add a node that runs a task, or another workflow as a run of its own, and return it.

        ``what`` is a task, what its ``with_options()`` returns, the name of a task, or a Workflow, whose inputs are the keyword
        arguments. An argument that is a node, or a list of nodes, becomes their results. The node waits for those nodes and for
        ``after``. ``join``: "all" must complete, or "any" or ``quorum(n)`` of those in ``after`` and in lists. ``allow_failed``:
        it runs even if some did not. ``when``: it is skipped unless the condition holds. ``name``, unique in the workflow, is
        that of the function without one. ``undo``: a task that undoes what this one did, if the run fails or is cancelled.
        ``kwargs`` are arguments by name as well, also those that are named like one of these options.
        """
        options = {"after": after, "join": join, "allow_failed": allow_failed, "when": when, "name": name, "undo": undo}
        given = checks.given(self, args, kwargs, others, **options)
        if isinstance(what, Workflow):
            node = self._node(what.name, name, "workflow")
            embed(self, node, what, given)
        else:
            task, how = self._task(what)
            node = self._node(task.name.rpartition(".")[2] if task else str(what), name, "task")
            self._prepare(node, task, how)
            checks.take_arguments(self, node, given)
        return self._join(node, after, join, allow_failed=allow_failed, when=when, undo=undo)

    def map(
        self,
        what: Sender[..., N] | str,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
        undo: Sender[..., Any] | str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Node[list[N]]:
        """Add a node that runs a task once per element of a list, and return it.

        The first keyword argument is the list: a node whose value is one, a map, a list of nodes, or plain values. The others are
        the same for every element; those in ``kwargs`` come before those beside it. The node completes if all its tasks do; its
        value is the list of their values. Its ``undo`` runs once per element.
        """
        task, how = self._task(what, MAPPED)
        node = self._node(task.name.rpartition(".")[2] if task else str(what), name, "map")
        self._prepare(node, task, how)
        options = {"after": after, "join": join, "allow_failed": allow_failed, "when": when, "name": name, "undo": undo}
        given = checks.given(self, (), kwargs, others, **options)
        node.over = next(iter(given.kwargs), None)
        checks.take_arguments(self, node, given)
        return self._join(node, after, join, allow_failed=allow_failed, when=when, undo=undo)

    def continue_as(
        self,
        what: Workflow,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Node[None]:
        """Add a node that ends the run, as COMPLETED, and begins another one in the same transaction, which takes over its key.

        Nodes that have not begun are CANCELLED, running tasks are asked to stop. The keyword arguments are the inputs of
        ``what``; for the others see ``add``. A loop is built by a task: ``current_task().workflow.continue_as(...)``.
        """
        options = {"after": after, "join": join, "allow_failed": allow_failed, "when": when, "name": name}
        node = self._node("continue", name, "continue")
        follow(self, node, what, checks.given(self, (), kwargs, others, **options))
        return self._join(node, after, join, allow_failed=allow_failed, when=when)

    def returns(self, node: Node[T]) -> None:
        """Let the value of a node be the value of the workflow."""
        self.change("a value")
        if self.owns(node, "returns()"):
            checks.judge_kept(self, "returns()", node)
            self.output = node

    def send(self) -> WorkflowHandle[T]:
        """Send the workflow in the caller's transaction and return its handle.

        Raises WorkflowDefinitionError, which names all problems of the graph, and TaskSendError if the database refuses it. If a
        ``key`` is given that another open transaction is sending, it waits for that transaction.
        """
        return send_graphs([self])[0]

    async def asend(self) -> WorkflowHandle[T]:
        """Send from async code, as ``send`` does."""
        return (await sync_to_async(send_graphs)([self], from_async=True))[0]

    @staticmethod
    def send_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send workflows in the caller's transaction, all or none of them, and return their handles in order.

        They are inserted by few statements: for many runs this takes a part of the time that as many sends take. Raises what
        ``send`` does.
        """
        return send_graphs(list(workflows))

    @staticmethod
    async def asend_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send from async code, as ``send_many`` does."""
        return await sync_to_async(send_graphs)(list(workflows), from_async=True)

    def handle(self, workflow_id: UUID | str) -> WorkflowHandle[T]:
        """Return the handle of a run of this workflow that was sent earlier, in any process."""
        return handle_of(self, workflow_id)

    def owns(self, node: object, where: str) -> bool:
        """Return whether this is a node of this workflow; note the problem if it is not."""
        if isinstance(node, Node) and node.flow is self:
            return True
        self.problems.append(f"{where}: {node!r:.80} is not a node of this workflow; use what its add() returned")
        return False

    def note(self, problem: str) -> None:
        """Note a problem, also for the workflows that contain this one."""
        self.problems.append(problem)
        for flow in self.outer:
            flow.note(problem)

    def change(self, what: str) -> None:
        """Note that this workflow gets something new if another one contains it already, with the graph that it had."""
        while self.outer:  # it is told once
            flow = self.outer.pop()
            flow.note(f"{self.name!r} got {what} after it was added to {flow.name!r}: add it when it is complete")

    def finish(self) -> None:
        """Complete the graph before it is sent."""

    def head(self) -> dict[str, Any]:
        """Return the run as the JSON object that ``horsies_send_run`` reads, without its nodes."""
        until: dict[str, Any] = {}
        if isinstance(self.good_until, dt.timedelta):
            until["good_for"] = f"{self.good_until.total_seconds()} s"
        elif self.good_until is not None:
            until["good_until"] = self.good_until.isoformat()
        return {
            "name": self.name,
            "on_error": self.on_error,
            "output": None if self.output is None else self.output.number,
            "max_in_flight": self.max_in_flight,
            **until,
        }

    def json(self) -> str:
        """Return the whole graph as JSON, for a node of another workflow."""
        return f'{json.dumps(self.head())[:-1]},"nodes":[{",".join(node.json() for node in self.nodes)}]}}'

    def hash(self) -> str:
        """Return a hash of the graph. Absolute deadlines and metadata do not count: they differ each time a workflow is built."""
        head = {name: value for name, value in self.head().items() if name != "good_until"}
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        for node in self.nodes:
            digest.update(node.json(hashing=True).encode())
        return digest.hexdigest()

    def _node(self, wanted: str, given: str | None, kind: str) -> Node:
        if len(self.nodes) >= MOST_NODES:
            raise WorkflowDefinitionError(
                self.name, [f"it has more than {MOST_NODES:,} nodes: map() runs a task per element with one node"]
            )
        if given is not None and (not isinstance(given, str) or not 1 <= len(given) <= 200 or not given.isprintable()):
            self.problems.append(f"a node's name must be a str of 1 to 200 printable characters, not {given!r:.80}")
            given = None
        name, wanted = given, wanted[:180]
        while name is None or (given is None and name in self._given):
            self._names[wanted] += 1
            name = wanted if self._names[wanted] == 1 else f"{wanted}-{self._names[wanted]}"
        if given in self._given:
            self.problems.append(f"the name {name!r} is used for two nodes: give one of them another")
        self._given.add(name)
        self.change(f"the node {name!r:.80}")
        node = Node(self, len(self.nodes), name, kind)
        self.nodes.append(node)
        return node

    def _task(self, what: Any, expected: str = TASKS) -> tuple[TaskDefinition | None, SendOptions]:
        """Return a task and its options. One of django.tasks has them as its attributes ``definition`` and ``send_options``."""
        if isinstance(what, Sender):
            return what._task, what._options
        if isinstance(definition := getattr(what, "definition", None), TaskDefinition):
            return definition, getattr(what, "send_options", SendOptions())
        if isinstance(what, str):
            if (task := registry.find_or_import(what)) is not None:
                return task, SendOptions()
            self.problems.append(f"there is no task named {what!r}{checks.close_to(what, registry.names())}")
        else:
            self.problems.append(f"{expected}, not {type(what).__name__}")
        return None, SendOptions()

    def _prepare(self, node: Node, task: TaskDefinition | None, options: SendOptions) -> None:
        if task is None:
            return
        node.task = task
        node.type = checks.produced(task)
        if isinstance(options.delay, dt.datetime):
            self.problems.append(
                f"{node.name}: delay must be seconds or a timedelta, counted from when the node is ready"
            )
            options = options._replace(delay=None)
        try:
            node.new = prepare(task, options, None)
        except TaskSendError as error:
            self.problems.append(f"{node.name}: {error.message}")

    def _join(
        self,
        node: Node,
        after: Node | Iterable[Node],
        join: str | Quorum,
        *,
        allow_failed: bool,
        when: Any,
        undo: Any = None,
    ) -> Node:
        several = isinstance(after, Iterable) and not isinstance(after, str | Node)
        node.after(*(after if several else [after]))
        node.allow_failed = bool(allow_failed)
        if when is not None:
            if not isinstance(when, Condition):
                self.problems.append(f"{node.name}: when= takes node.matches('...'), not {type(when).__name__}")
            elif when.node.kind == "map":
                self.problems.append(f"{node.name}: when= looks at one value; {when.node.name} is a map")
            elif self.owns(when.node, f"{node.name}: when="):
                checks.judge_kept(self, f"{node.name}: when=", when.node)
                node.when = when
                node.wait_for([when.node], counts=False)
        if isinstance(join, Quorum):
            node.rule, node.needs = "quorum", join.needs
        elif join == "any":
            node.rule, node.needs = "quorum", 1
        elif join != "all":
            self.problems.append(f"{node.name}: join must be 'all', 'any' or quorum(n), not {join!r:.80}")
        checks.judge_inputs(self, node)
        take_undo(self, node, undo)
        return node

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.nodes)} nodes>"


class Batch(Workflow[T]):
    """Tasks that do not depend on one another, with callbacks for when they have all finished."""

    def on_success(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished and none failed."""
        return self._callback("succeeded", what, args, kwargs)

    def on_failure(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished and one failed."""
        return self._callback("failed", what, args, kwargs)

    def on_finish(self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any) -> Node[N]:
        """Add a task that runs when all have finished."""
        return self._callback("finished", what, args, kwargs)

    def finish(self) -> None:
        """Let the callbacks wait for all other nodes."""
        others = {node.number for node in self.nodes if node.rule not in CALLBACKS}
        for node in self.nodes:
            if node.rule in CALLBACKS:
                node.upstream = set(others)

    def _callback(self, rule: str, what: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
        node: Node = self.add(what, *args, **kwargs)
        if node.upstream:
            self.problems.append(f"{node.name}: a callback of a batch takes no results")
        node.rule = rule
        return node
