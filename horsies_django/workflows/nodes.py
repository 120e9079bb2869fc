"""The graph of a workflow that is being built: its nodes, their JSON, and checks of the whole.

The ``inputs`` of a node describe how results become arguments. They map each parameter to
``{"node": 3, "as": "value"}`` or ``{"nodes": [3, 4], "as": "list"}``. The values of ``as`` are
"value", "result" (a TaskResult), "list" (the values of several nodes), "results" (the same, but
read when they are needed), and "elements" (the list that a map maps over).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Generic, Literal, NamedTuple

from horsies_django.core.kinds import CONTINUE, GATE, INPUT, NodeKind
from horsies_django.core.texts import name_problem, text_problem
from horsies_django.tasks.definition import TaskDefinition

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # psycopg brings it below 3.13

T = TypeVar("T", default=Any)  # the type of the value of a workflow
N = TypeVar("N", default=Any)  # the type of the value of one of its nodes
R = TypeVar("R", default=None)
V = TypeVar("V", default=Any, covariant=True)


class Condition(NamedTuple):
    """A JSON path that the value of a node must match. It is returned by ``Node.matches``."""

    node: Node
    path: str


class Quorum(NamedTuple):
    """A join that needs ``needs`` of its branches."""

    needs: int


Join = Literal["all", "any"] | Quorum
ABSOLUTE = ("good_until", "due_at")  # columns that differ each time a workflow is built
ON_ERROR = ("fail", "stop", "pause")
# PostgreSQL begins nested workflows on one stack, which overflows at 165 to 190 levels.
MOST_LEVELS = 100


def quorum(needs: int) -> Quorum:
    """Return a join that runs a node once ``needs`` of its branches have completed.

    ``quorum(1)`` needs any one of them. Branches are the nodes in ``after=`` and in lists of nodes
    that are arguments.
    """
    return Quorum(needs)


class NodeOptions(NamedTuple):
    """The options that most kinds of nodes take, as they were given."""

    after: Any = ()
    join: Any = "all"
    allow_failed: Any = False
    when: Any = None
    name: Any = None
    undo: Any = None


class Node(Generic[V]):
    """A node of a workflow, whose value has the type ``V``.

    If a node is given as an argument to another node, its result becomes the argument.
    """

    def __init__(self, flow: Graph, number: int, name: str, kind: NodeKind) -> None:
        self.flow = flow
        self.number = number
        self.name = name
        # The name without the place of an element, which is appended to nodes that a map adds
        self.title = name
        self.kind = kind

        self.inserted = False  # true if a running task has inserted it
        self.type: Any = Any  # the type of its value, or of the value of each element of a map
        self.task: TaskDefinition | None = None
        self.over: str | None = None  # the parameter that a map maps over

        self.inputs: dict[str, dict[str, Any]] = {}
        self.kwargs = "{}"
        self.columns: dict[str, Any] = {}  # further columns; None is not stored
        self.texts: dict[str, str | None] = {}  # further columns that are JSON already
        # Texts that replace those for the hash of the graph
        self.hashed: dict[str, str | None] = {}

        # The workflow that it runs, or as which the run continues
        self.child: Graph | None = None
        self.output: Node | None = None  # the output of the child when it became a node
        self.levels = 1  # how deep the workflows are nested that it runs, including its own

        self.rule = "all"
        self.needs: int | None = None
        self.allow_failed = False
        self.when: Condition | None = None
        self.upstream: set[int] = set()
        self.branches: set[int] = set()  # the upstream nodes that a quorum counts

    def matches(self, path: str) -> Condition:
        """Return the condition that this node's value matches a JSON path predicate of PostgreSQL.

        An example is ``'$.pages > 10'``. A value that does not fit the path does not match. Neither
        does the value of a node that did not complete.
        """
        return Condition(self, path)

    def after(self, *nodes: Node) -> Node[V]:
        """Make this node wait for others, without taking their results, and return this node."""
        if nodes and self.inserted:
            self.flow.note(
                f"{self.name}: after() cannot be called any more, because the node is already "
                "inserted. Pass after=... to add()"
            )
        if nodes:
            self.flow.change(f"an edge to {self.name!r}")
        for problem in self.wait_after(nodes):
            self.flow.note(f"{self.name}: {problem}")
        return self

    def wait_after(self, nodes: Iterable[Any]) -> Problems:
        """Make this node wait for others, and yield a problem if one is not in its workflow."""
        for node in nodes:
            if problem := self.flow.foreign(node):
                yield f"after(): {problem}"
            else:
                self.wait_for([node], counts=True)

    def wait_for(self, nodes: Iterable[Node], *, counts: bool) -> None:
        """Make this node wait for others of its workflow.

        They become branches if ``counts`` is true. An input is never a branch, because its value is
        there from the start.
        """
        for node in nodes:
            self.upstream.add(node.number)
            if counts and node.kind is not INPUT:
                self.branches.add(node.number)

    def __repr__(self) -> str:
        return f"<Node {self.name!r} of {self.flow.name!r}>"

    def __bool__(self) -> bool:
        raise TypeError(
            "a Node has no value while the workflow is built: for a condition, use "
            "when=node.matches(...)"
        )

    def __getitem__(self, part: object) -> Any:
        raise TypeError(
            "a Node has no value while the workflow is built: pass the whole node to the next task"
        )

    def __iter__(self) -> Any:
        raise TypeError(
            "a Node has no value while the workflow is built: use flow.map(...) to run a task per "
            "element"
        )

    def json(self, *, hashing: bool = False) -> str:
        """Return this node as the JSON object that ``horsies_add_nodes`` reads.

        If ``hashing`` is true, absolute times and metadata are left out, because they differ each
        time that the same workflow is built.
        """
        stored: dict[str, Any] = {"number": self.number, "name": self.name, "kind": self.kind.name}
        stored |= {"is_wait": True} if self.kind.waits else {}
        left_out = ABSOLUTE if hashing else ()
        stored |= {
            name: it for name, it in self.columns.items() if it is not None and name not in left_out
        }

        stored |= {"after": sorted(self.upstream)} if self.upstream else {}
        stored |= {"inputs": self.inputs} if self.inputs else {}
        stored |= {"over": self.over} if self.over else {}

        if self.rule != "all" or self.allow_failed:
            stored |= {"rule": self.rule, "needs": self.needs, "allow_failed": self.allow_failed}
        if self.rule == "quorum" and (uncounted := self.upstream - self.branches):
            stored["uncounted"] = sorted(uncounted)
        if self.when is not None:
            stored |= {"when_node": self.when.node.number, "when_path": self.when.path}

        return json_object(
            stored, {**self.texts, **(self.hashed if hashing else {}), "kwargs": self.kwargs}
        )


def json_object(members: Mapping[str, Any], texts: Mapping[str, str | None]) -> str:
    """Return a JSON object of members, and of texts that are JSON already.

    Texts that are None are left out.
    """
    more = "".join(f',"{name}":{text}' for name, text in texts.items() if text is not None)
    return f"{json.dumps(members)[:-1]}{more}}}"


# A generator of the problems of a node, without its name, that returns a value.
Problems = Generator[str, None, R]
Rule = Callable[..., Problems]  # compiles a node from the arguments that only its kind takes


@dataclass(eq=False, repr=False)
class Graph(Generic[T]):
    """A workflow: its options, its nodes, and the problems found in them."""

    name: str
    _: KW_ONLY
    on_error: Literal["fail", "stop", "pause"] = "fail"
    key: str | None = None
    good_until: dt.datetime | dt.timedelta | None = None
    max_in_flight: int | None = None
    nodes: list[Node] = field(default_factory=list, init=False)
    output: Node[T] | None = field(default=None, init=False)
    problems: list[str] = field(default_factory=list, init=False)
    # How many nodes were named after each title
    titles: Counter[str] = field(default_factory=Counter, init=False)
    taken: set[str] = field(default_factory=set, init=False)  # names of nodes
    # The workflows that have this one as a node, or continue as it
    outer: set[Graph] = field(default_factory=set, init=False)

    def foreign(self, node: object) -> str | None:
        """Return the problem of a value that is not a node of this workflow, or None."""
        if isinstance(node, Node) and node.flow is self:
            return None
        return f"{node!r:.80} is not a node of this workflow; use a node that its add() returned"

    def note(self, problem: str) -> None:
        """Note a problem of this workflow, and of the workflows that contain it."""
        self.problems.append(problem)
        for flow in self.outer:
            flow.note(problem)

    def change(self, what: str) -> None:
        """Note a problem if another workflow contains this one already, and so lacks a change."""
        while self.outer:  # emptied, so that each of them notes only the first change
            flow = self.outer.pop()
            flow.note(
                f"the workflow {self.name!r} got {what} after it was added to {flow.name!r}. "
                "Complete a workflow before you add it to another one"
            )

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
        return json_object(
            self.head(), {"nodes": f"[{','.join(node.json() for node in self.nodes)}]"}
        )

    def hash(self) -> str:
        """Return a hash of the graph.

        Absolute deadlines and metadata are not part of it, because they differ each time that a
        workflow is built.
        """
        head = {name: value for name, value in self.head().items() if name != "good_until"}
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        for node in self.nodes:
            digest.update(node.json(hashing=True).encode())
        return digest.hexdigest()


def graph_problems(flow: Graph) -> Problems:
    """Yield the problems of a graph as a whole."""
    if problem := name_problem("a workflow's name", flow.name):
        yield problem
    if flow.on_error not in ON_ERROR:
        yield f"on_error must be 'fail', 'stop' or 'pause', not {flow.on_error!r:.80}"
    if flow.key is not None and (problem := text_problem("key", flow.key)):
        yield problem

    many = flow.max_in_flight
    until = flow.good_until
    if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
        yield f"max_in_flight must be an int of at least 1, not {many!r}"

    if not (
        until is None
        or is_moment(until)
        or (isinstance(until, dt.timedelta) and until > dt.timedelta(0))
    ):
        yield f"good_until must be an aware datetime or a positive timedelta, not {until!r:.80}"

    if all(node.kind is INPUT for node in flow.nodes):
        yield "the workflow has no nodes. Add one with add()"
    yield from circle(flow.nodes)

    ends = {node.number for node in flow.nodes if node.kind is CONTINUE}
    for node in flow.nodes:
        if node.upstream & ends:
            end = flow.nodes[min(node.upstream & ends)]
            yield f"{node.name}: a node cannot wait for {end.name}, because the run ends there"

    named = [
        (node.columns["signal"], node.kind is GATE)
        for node in flow.nodes
        if node.columns.get("signal")
    ]
    for name in sorted(
        {name for name, gate in named if gate} & {name for name, gate in named if not gate}
    ):
        yield both(name)

    for node in flow.nodes:
        yield from impossible(node)


def both(name: str) -> str:
    """Return the problem of a run in which a gate and a signal have the same name."""
    return (
        f"{name!r} is the name of a gate and of a signal: a signal could be taken for a decision. "
        "Rename one of the two"
    )


def impossible(node: Node) -> Problems:
    """Yield a problem if a node needs more branches than it has.

    The check runs when the graph is complete, because branches may be added after the node.
    """
    if node.rule != "quorum":
        return
    needs = node.needs
    most = len(node.branches)
    if isinstance(needs, bool) or not isinstance(needs, int) or not 1 <= needs <= most:
        yield (
            f"{node.name}: a quorum of {needs!r} of {most} branches is impossible. Branches "
            "are the nodes in after= and in lists of nodes, not the nodes of when=, inputs, and "
            "single nodes as arguments"
        )


def circle(nodes: Sequence[Node]) -> Problems:
    """Yield a problem that names the nodes of a cycle, if there is one."""
    # This check is quick, and nearly always true: most nodes wait only for earlier ones.
    if all(max(node.upstream, default=-1) < node.number for node in nodes):
        return

    try:
        TopologicalSorter({node.number: node.upstream for node in nodes}).prepare()
    except CycleError as error:
        numbers: list[int] = error.args[1][1:]
        first = numbers.index(min(numbers)) + 1
        names = [nodes[number].name for number in (*numbers[first:], *numbers[:first])]
        shown = " -> ".join([*names[:20], *(["..."] if len(names) > 20 else []), names[0]])
        yield f"nodes of the workflow wait for one another in a circle: {shown}"


def outermost(nodes: Sequence[Node]) -> Problems:
    """Yield the problems of nodes of a run that is not a node of another run.

    These are workflows that are nested too deep, and inputs without a value.
    """
    levels = max((node.levels for node in nodes), default=1)
    if levels > MOST_LEVELS:
        yield (
            f"workflows are nested {levels} levels deep, but at most {MOST_LEVELS} levels are "
            "possible. Add the deeper workflows in a task of the innermost one, by "
            "current_task().workflow.add(...)"
        )

    for node in nodes:
        if node.kind is INPUT:
            yield (
                f"the input {node.name!r} has no value. Add the workflow to another one, which "
                "passes the value, or replace the input by a value"
            )


def is_moment(value: object) -> bool:
    """Return whether a value is an aware datetime that is valid in every time zone.

    PostgreSQL and Python must both be able to compute with it.
    """
    return (
        isinstance(value, dt.datetime) and value.utcoffset() is not None and 2 < value.year < 9999
    )
