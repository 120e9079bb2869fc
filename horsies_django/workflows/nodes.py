"""Nodes of a workflow that is being built, and how they are written as JSON for the database.

``inputs`` says how results become arguments: ``{"node": 3, "as": "value"}`` or ``{"nodes": [3, 4], "as": "list"}`` by parameter.
``as`` is "value", "result" (a TaskResult), "list" (the values of many), "results" (the same, read when they are needed), or
"elements" (what a map maps over).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Generic, Literal, NamedTuple

from horsies_django.core.metadata import without_metadata
from horsies_django.core.records import NewTasks
from horsies_django.tasks.definition import TaskDefinition

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # psycopg brings it below 3.13

T = TypeVar("T", default=Any)  # of the value of a workflow
N = TypeVar("N", default=Any)  # of the value of one of its nodes
V = TypeVar("V", default=Any, covariant=True)


class Condition(NamedTuple):
    """A JSON path that the value of a node must match; see ``Node.matches``."""

    node: Node
    path: str


class Quorum(NamedTuple):
    """A join that needs ``needs`` of its branches."""

    needs: int


Join = Literal["all", "any"] | Quorum


def quorum(needs: int) -> Quorum:
    """Return a join that runs a node once ``needs`` of its branches completed; ``quorum(1)`` is any of them.

    Branches are the nodes in ``after=`` and in lists of nodes that are arguments.
    """
    return Quorum(needs)


class Node(Generic[V]):
    """A node of a workflow, whose value has the type ``V``. Given as an argument to another node, it stands for its result."""

    def __init__(self, flow: Any, number: int, name: str, kind: str) -> None:
        self.flow = flow
        self.number = number
        self.name = name
        self.kind = kind
        self.task: TaskDefinition | None = None
        self.new: NewTasks | None = None
        self.kwargs = "{}"
        self.inputs: dict[str, dict[str, Any]] = {}
        self.over: str | None = None
        self.value: str | None = None
        self.graph: str | None = None
        self.graph_hash = ""
        self.inserted = False  # by a running task
        self.levels = 1  # of the workflows in one another that it runs, with its own
        self.output: Node | None = None  # of a workflow: the node of that workflow whose value is this one's
        self.undo: str | None = None  # JSON, of the task that undoes it, without its options
        self.undo_options: str | None = None
        self.wait: Any = None  # a Wait, of a timer, a signal or a gate
        self.rule = "all"
        self.needs: int | None = None
        self.allow_failed = False
        self.when: Condition | None = None
        self.upstream: set[int] = set()
        self.branches: set[int] = set()  # those among them that a quorum counts
        self.type: Any = Any  # of its value; of a map, the type of each element's

    def matches(self, path: str) -> Condition:
        """Return the condition that this node's value matches a JSON path predicate of PostgreSQL, as in ``'$.pages > 10'``.

        A value that does not fit the path does not match, and neither does a node that did not complete.
        """
        return Condition(self, path)

    def after(self, *nodes: Node) -> Node[V]:
        """Let this node wait for others, whose results it does not take. Return this node."""
        if nodes and self.inserted:
            self.flow.note(f"{self.name}: after() comes too late, the node is inserted already: give add() after=...")
        if nodes:
            self.flow.change(f"an edge to {self.name!r}")
        for node in nodes:
            if self.flow.owns(node, f"{self.name}: after()"):
                self.wait_for([node], counts=True)
        return self

    def wait_for(self, nodes: Iterable[Node], *, counts: bool) -> None:
        """Let this node wait for others of its workflow. An input is there from the start, so it never counts."""
        for node in nodes:
            self.upstream.add(node.number)
            if counts and node.kind != "input":
                self.branches.add(node.number)

    def __repr__(self) -> str:
        return f"<Node {self.name!r} of {self.flow.name!r}>"

    def __bool__(self) -> bool:
        raise TypeError("a Node has no value while the workflow is built: use when=node.matches(...) for a condition")

    def __getitem__(self, part: object) -> Any:
        raise TypeError("a Node has no value while the workflow is built: let the next task take all of it")

    def __iter__(self) -> Any:
        raise TypeError("a Node has no value while the workflow is built: use flow.map(...) for a task per element")

    def json(self, *, hashing: bool = False) -> str:
        """Return this node as the JSON object that ``horsies_add_nodes`` reads.

        ``hashing`` leaves out what differs each time the same workflow is built: absolute deadlines and metadata.
        """
        stored: dict[str, Any] = {"number": self.number, "name": self.name, "kind": self.kind}
        if self.new is not None:
            new = self.new
            stored.update(task=new.task_name, queue=new.queue_name, lane=new.lane, priority=new.priority)
            stored.update(max_retries=new.max_retries)
            stored.update({"codec": new.codec} if new.codec else {})
            for name in ("good_for", "delay") if hashing else ("good_until", "good_for", "delay"):
                if (value := getattr(new, name)) is not None:
                    stored[name] = value.isoformat() if name == "good_until" else f"{value.total_seconds()} s"
        if self.wait is not None:
            stored.update(self.wait.json(deadline=not hashing))
        stored.update({"after": sorted(self.upstream)} if self.upstream else {})
        stored.update({"inputs": self.inputs} if self.inputs else {})
        stored.update({"over": self.over} if self.over else {})
        if self.rule != "all" or self.allow_failed:
            stored.update(rule=self.rule, needs=self.needs, allow_failed=self.allow_failed)
        if self.rule == "quorum" and (uncounted := self.upstream - self.branches):
            stored.update(uncounted=sorted(uncounted))
        if self.when is not None:
            stored.update(when_node=self.when.node.number, when_path=self.when.path)
        text = json.dumps(stored)[:-1]
        if self.new is not None:
            text += options_member(self.new.options, hashing=hashing)
        if self.value is not None:
            text += f',"value":{self.value}'
        if self.undo is not None:
            text += f',"undo":{self.undo[:-1]}{options_member(self.undo_options, hashing=hashing)}}}'
        if self.graph is not None:
            text += f',"graph":{json.dumps(self.graph_hash) if hashing else self.graph}'
        return f'{text},"kwargs":{self.kwargs}}}'


def options_member(options: str | None, *, hashing: bool) -> str:
    """Return the options of a task as a further member of a JSON object, "" without any."""
    kept = without_metadata(options) if hashing else options
    return "" if kept is None else f',"options":{kept}'
