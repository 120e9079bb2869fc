"""The builder of workflows, and ``Batch``, for tasks that do not depend on one another.

No method raises while a graph is built; ``send`` names all problems at once. Each method records a
node and the arguments that it was given. The rule of the kind of the node turns these into the
columns that are stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from horsies_django.core import kinds
from horsies_django.core.errors import WorkflowDefinitionError
from horsies_django.core.kinds import NodeKind
from horsies_django.core.texts import close_to, name_problem
from horsies_django.tasks import registry
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.handle import async_form
from horsies_django.tasks.options import SendOptions
from horsies_django.workflows import rules
from horsies_django.workflows.arguments import Given, dropped
from horsies_django.workflows.handle import WorkflowHandle, handle_of
from horsies_django.workflows.nodes import Condition, Graph, Join, N, Node, NodeOptions, Rule, T
from horsies_django.workflows.rules import Called, OnTimeout
from horsies_django.workflows.send import send_graphs

MOST_NODES = 1_000_000
TASKS = "add() takes a task, the name of one, or a Workflow"
MAPPED = (
    "map() takes a task or its name (the task of an element may add a workflow by "
    "current_task().workflow.add())"
)
UNDOS = "undo= takes a task, the result of its with_options(), or the name of a task"
CALLBACKS = ("succeeded", "failed", "finished")  # their rules


class Workflow(Graph[T]):
    """A graph of tasks to be sent as one run.

    For type checkers, ``Workflow[int]`` is a workflow whose value is an int.

    ``on_error`` is the effect of a failed node on the run, unless a node that depends on it runs
    nevertheless: "fail" (independent nodes still run), "stop" (no other node starts, and running
    ones are cancelled) or "pause". A workflow is sent once per name and ``key``: the first run is
    returned if the same graph is sent with them again. ``good_until``, an aware datetime or a
    timedelta from sending, is the latest start of its tasks. ``max_in_flight`` limits how many
    tasks of the run are sent and not finished at the same time.
    """

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

        ``what`` is a task, the return value of its ``with_options()``, the name of a task, or a
        Workflow. The keyword arguments are those of the task, or the inputs of the Workflow. If an
        argument is a node or a list of nodes, their results become the argument, and the node waits
        for them. The other arguments are options:

        - ``after``: further nodes that the node waits for.
        - ``join``: "all" if all of these nodes must complete; "any" or ``quorum(n)`` if one or n of
          the nodes in ``after`` and in lists must complete.
        - ``allow_failed``: the node runs even if some of these nodes did not complete.
        - ``when``: the node is skipped if this condition does not hold.
        - ``name``: the name of the node, unique in the workflow. The default is the name of the
          function.
        - ``undo``: a task that undoes the work of this one if the run fails or is cancelled.
        - ``kwargs``: more arguments by name, which may have the names of these options.
        """
        options = NodeOptions(after, join, allow_failed, when, name, undo)
        given = self._given(options, args, kwargs, others)

        if isinstance(what, Workflow):
            return self._record(kinds.WORKFLOW, what.name, options, rules.embed, what, given)
        return self._call(kinds.TASK, what, TASKS, options, given)

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

        The first keyword argument is the list: a node whose value is a list, a map, a list of
        nodes, or plain values. The other arguments are the same for every element. Arguments in
        ``kwargs`` come before those beside it. The node completes if all its tasks complete, and
        its value is the list of their values. Its ``undo`` runs once per element. The options are
        those of ``add``.
        """
        options = NodeOptions(after, join, allow_failed, when, name, undo)
        return self._call(
            kinds.MAP, what, MAPPED, options, self._given(options, (), kwargs, others)
        )

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
        """Add a node that ends the run and begins another one, and return it.

        The run is COMPLETED, and the other run begins in the same transaction and takes over its
        key. Nodes that have not begun are CANCELLED, and running tasks are asked to stop. The
        keyword arguments are the inputs of ``what``; the options are those of ``add``. A loop is
        built by a task, which calls ``current_task().workflow.continue_as(...)``.
        """
        options = NodeOptions(after, join, allow_failed, when, name)
        given = self._given(options, (), kwargs, others)
        return self._record(kinds.CONTINUE, "continue", options, rules.begin_successor, what, given)

    @overload
    def input(self, name: str, annotation: type[N]) -> Node[N]: ...
    @overload
    def input(self, name: str, annotation: Any = ...) -> Node: ...
    def input(self, name: str, annotation: Any = Any) -> Node:
        """Add an input, and return it.

        If this workflow becomes a node of another one, the other one gives the value of the input.
        """
        return self._record(kinds.INPUT, name, NodeOptions(name=name), rules.take_input, annotation)

    def sleep(
        self,
        delay: float | dt.timedelta,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node[None]:
        """Add a timer, and return it: a node that completes some time after it is ready.

        ``delay`` is a timedelta or a number in seconds. The value of the node is None.
        """
        return self._record(
            kinds.TIMER,
            "sleep",
            NodeOptions(after, join, allow_failed, when, name),
            rules.complete_after,
            delay,
        )

    def until(
        self,
        moment: dt.datetime,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node[None]:
        """Add a timer that completes at an aware datetime, and return it.

        If the node is ready later than that, it completes when it is ready. Its value is None.
        """
        return self._record(
            kinds.TIMER,
            "until",
            NodeOptions(after, join, allow_failed, when, name),
            rules.complete_at,
            moment,
        )

    def signal(
        self,
        signal: str,
        /,
        *,
        key: str | None = None,
        annotation: Any = Any,
        timeout: float | dt.timedelta | None = None,
        on_timeout: OnTimeout = "fail",
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node:
        """Add a node that waits for a signal of this name, and return it.

        The data of the signal becomes the value of the node. Each signal is taken by one node, the
        oldest signal first, even if it was sent before the node began to wait. With a ``key``, the
        node takes only signals with that key. ``annotation`` is the type of the data, which is
        checked when the signal is sent.

        ``timeout`` is a timedelta or a number in seconds, counted from when the node is ready. The
        node then ends as FAILED ("fail"), SKIPPED ("skip"), or COMPLETED with None ("complete").
        See also ``WorkflowHandle.signal``.
        """
        options = NodeOptions(after, join, allow_failed, when, name)
        title = signal if isinstance(signal, str) else "signal"
        return self._record(
            kinds.SIGNAL,
            title,
            options,
            rules.await_signal,
            signal,
            key,
            annotation,
            timeout,
            on_timeout,
        )

    def gate(
        self,
        name: str,
        /,
        *,
        permission: str | None = None,
        timeout: float | dt.timedelta | None = None,
        on_timeout: OnTimeout = "fail",
        announce: Sender[..., Any] | str | None = None,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
    ) -> Node:
        """Add a node that waits until a person approves or rejects it, and return it.

        Its value is ``{"by": ..., "reason": ...}``. A rejection fails it with GATE_REJECTED.
        ``permission``, as in "shop.approve", is the permission that a user needs. ``timeout`` and
        ``on_timeout`` are those of ``signal``. ``announce`` is a task that is sent when the gate
        opens, with the name of the gate as its argument ``gate``. See also
        ``WorkflowHandle.approve``.
        """
        options = NodeOptions(after, join, allow_failed, when, name)
        node = self._record(
            kinds.GATE, "gate", options, rules.await_decision, permission, timeout, on_timeout
        )

        if announce is not None:  # the announcement waits for the same nodes
            title = f"announce {node.title[:180]}"
            self.add(
                announce,
                gate=node.name,
                name=title,
                after=after,
                join=join,
                allow_failed=allow_failed,
                when=when,
            )

        return node

    def returns(self, node: Node[T]) -> None:
        """Make the value of a node the value of the workflow."""
        self.change("a value")
        if problem := self.foreign(node):
            self.problems.append(f"returns(): {problem}")
        else:
            self.problems += dropped(node, "returns(): ")
            self.output = node

    def send(self) -> WorkflowHandle[T]:
        """Send the workflow in the caller's transaction and return its handle.

        Raises WorkflowDefinitionError, which names all problems of the graph, and TaskSendError if
        the database refuses it. If another open transaction is sending the same ``key``, the call
        waits for that transaction.
        """
        return send_graphs([self])[0]

    asend = async_form(send)

    @staticmethod
    def send_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send workflows in the caller's transaction, all or none, and return their handles.

        The handles are in the order of the workflows. Few statements insert all runs, so this takes
        a fraction of the time of one send per run. The errors are those of ``send``.
        """
        return send_graphs(list(workflows))

    @staticmethod
    async def asend_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send workflows as ``send_many`` does, from async code."""
        return await sync_to_async(send_graphs)(list(workflows))

    def handle(self, workflow_id: UUID | str) -> WorkflowHandle[T]:
        """Return the handle of a run of this workflow that was sent earlier, in any process."""
        return handle_of(self, workflow_id)

    def _given(
        self, options: NodeOptions, args: tuple[Any, ...], kwargs: Any, others: dict[str, Any]
    ) -> Given:
        """Return the arguments of a node: those in ``kwargs``, and those beside it.

        If ``kwargs`` is not used, the names of changed options are returned with them, because they
        could be meant as arguments.
        """
        if kwargs is None:
            changed = {
                name
                for name, value in options._asdict().items()
                if value != NodeOptions._field_defaults[name]
            }
            return Given(args, others, changed)

        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            self.problems.append(f"kwargs= takes a dict of arguments by name, not {kwargs!r:.80}")
            return Given(args, others)

        twice = [name for name in kwargs if name in others]
        self.problems += [
            f"the argument {name!r:.80} is given twice: in kwargs= and as a keyword "
            "argument. Remove one of the two"
            for name in twice
        ]
        return Given(args, {**kwargs, **others})

    def _called(self, what: Any, expected: str) -> Called | None:
        """Return a task and its options, or note a problem and return None.

        A task of django.tasks has them as its attributes ``definition`` and ``send_options``.
        """
        if isinstance(what, Sender):
            return what._task, what._options
        if isinstance(definition := getattr(what, "definition", None), TaskDefinition):
            return definition, getattr(what, "send_options", SendOptions())

        if not isinstance(what, str):
            self.problems.append(f"{expected}, not {type(what).__name__}")
        elif (task := registry.find_or_import(what)) is not None:
            return task, SendOptions()
        else:
            self.problems.append(
                f"there is no task named {what!r}{close_to(what, registry.names())}"
            )

        return None

    def _call(
        self, kind: NodeKind, what: Any, expected: str, options: NodeOptions, given: Given
    ) -> Node:
        """Record a node that runs a task."""
        called = self._called(what, expected)
        title = str(what) if called is None else called[0].name.rpartition(".")[2]
        return self._record(kind, title, options, rules.take_task, called, given)

    def _record(
        self, kind: NodeKind, title: Any, options: NodeOptions, rule: Rule, *given: Any
    ) -> Node:
        """Add a node, compile it, and note its problems.

        The title becomes its name, unless the options have a name or the title is taken.
        """
        if len(self.nodes) >= MOST_NODES:
            raise WorkflowDefinitionError(
                self.name,
                [
                    f"the workflow has more than {MOST_NODES:,} nodes. Use map(), which runs a "
                    "task per element with one node"
                ],
            )

        name = self._name(options.name, str(title)[:180])
        self.change(f"the node {name!r:.80}")
        node: Node = Node(self, len(self.nodes), name, kind)
        self.nodes.append(node)

        undone = options.undo is not None and not kind.runs
        undo = self._called(options.undo, f"{name}: {UNDOS}") if undone else None
        self.problems += [
            f"{name}: {problem}" for problem in rules.compiled(node, options, undo, rule, *given)
        ]

        return node

    def _name(self, given: Any, title: str) -> str:
        """Return the name of a node: the given name, or its title.

        A number is appended to a title that is taken.
        """
        if given is not None and (problem := name_problem("a node's name", given, 200)):
            self.problems.append(problem)
            given = None

        name: str | None = given
        while name is None or (given is None and name in self.taken):
            self.titles[title] += 1
            name = title if self.titles[title] == 1 else f"{title}-{self.titles[title]}"

        if given in self.taken:
            self.problems.append(f"two nodes have the name {name!r}. Rename one of them")

        self.taken.add(name)
        return name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.nodes)} nodes>"


class Batch(Workflow[T]):
    """Tasks that do not depend on one another, with callbacks that run when all have finished."""

    def on_success(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
        """Add a task that runs when all tasks have finished and none has failed."""
        return self._callback("succeeded", what, args, kwargs)

    def on_failure(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
        """Add a task that runs when all tasks have finished and at least one has failed."""
        return self._callback("failed", what, args, kwargs)

    def on_finish(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
        """Add a task that runs when all tasks have finished."""
        return self._callback("finished", what, args, kwargs)

    def finish(self) -> None:
        """Make the callbacks wait for all other nodes."""
        others = {node.number for node in self.nodes if node.rule not in CALLBACKS}
        for node in self.nodes:
            if node.rule in CALLBACKS:
                node.upstream = set(others)

    def _callback(self, rule: str, what: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
        node: Node = self.add(what, *args, **kwargs)
        if node.upstream:
            self.problems.append(
                f"{node.name}: a callback of a batch waits for all other nodes, and takes no "
                "results. Remove the nodes from its arguments"
            )
        node.rule = rule
        return node
