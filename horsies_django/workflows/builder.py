"""The builder of workflows, and ``Batch``: tasks that do not depend on one another, and callbacks.

Nothing raises while a graph is built; ``send`` names all problems at once. Each method records a
node, with what it was given and the rule of its kind, which turns that into what is stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from horsies_django.core import kinds
from horsies_django.core.errors import WorkflowDefinitionError
from horsies_django.core.kinds import Kind
from horsies_django.core.texts import close_to, name_problem
from horsies_django.tasks import registry
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.handle import async_form
from horsies_django.tasks.options import SendOptions
from horsies_django.workflows import rules
from horsies_django.workflows.arguments import Given, dropped
from horsies_django.workflows.handle import WorkflowHandle, handle_of
from horsies_django.workflows.nodes import Condition, Graph, Join, N, Node, Options, Rule, T
from horsies_django.workflows.rules import Called, OnTimeout
from horsies_django.workflows.send import send_graphs

MOST_NODES = 1_000_000
TASKS = "add() takes a task, the name of one, or a Workflow"
MAPPED = (
    "map() runs a task per element, which may add a workflow by current_task().workflow.add(): it "
    "takes a task or its name"
)
UNDOS = "undo= takes a task, what its with_options() returns, or the name of a task"
CALLBACKS = ("succeeded", "failed", "finished")  # their rules


class Workflow(Graph[T]):
    """A graph of tasks to be sent as one run; ``Workflow[int]`` is one whose value is an int, for
    type checkers.

    ``on_error`` says what a failed node does to the run, unless a node that depends on it runs
    nevertheless: "fail" (independent nodes still run), "stop" (no other node starts, running ones
    are cancelled) or "pause". Sending the same name, ``key`` and graph again returns the first run.
    ``good_until``, an aware datetime or a timedelta from sending, is the latest start of its tasks.
    ``max_in_flight`` limits how many tasks of the run are sent and not finished at the same time.
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

        ``what`` is a task, what its ``with_options()`` returns, the name of a task, or a Workflow,
        whose inputs are the keyword arguments. An argument that is a node, or a list of nodes,
        becomes their results. The node waits for those nodes and for ``after``. ``join``: "all"
        must complete, or "any" or ``quorum(n)`` of those in ``after`` and in lists.
        ``allow_failed``: it runs even if some did not. ``when``: it is skipped unless the condition
        holds. ``name``, unique in the workflow, is that of the function without one. ``undo``: a
        task that undoes what this one did, if the run fails or is cancelled. ``kwargs`` are
        arguments by name as well, also those that are named like one of these options.
        """
        options = Options(after, join, allow_failed, when, name, undo)
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

        The first keyword argument is the list: a node whose value is one, a map, a list of nodes,
        or plain values. The others are the same for every element; those in ``kwargs`` come before
        those beside it. The node completes if all its tasks do; its value is the list of their
        values. Its ``undo`` runs once per element.
        """
        options = Options(after, join, allow_failed, when, name, undo)
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
        """Add a node that ends the run, as COMPLETED, and begins another one in the same
        transaction, which takes over its key.

        Nodes that have not begun are CANCELLED, running tasks are asked to stop. The keyword
        arguments are the inputs of ``what``; for the others see ``add``. A loop is built by a task:
        ``current_task().workflow.continue_as(...)``.
        """
        options = Options(after, join, allow_failed, when, name)
        given = self._given(options, (), kwargs, others)
        return self._record(kinds.CONTINUE, "continue", options, rules.follow, what, given)

    @overload
    def input(self, name: str, annotation: type[N]) -> Node[N]: ...
    @overload
    def input(self, name: str, annotation: Any = ...) -> Node: ...
    def input(self, name: str, annotation: Any = Any) -> Node:
        """Add an input, whose value another workflow gives when this one is a node of it."""
        return self._record(kinds.INPUT, name, Options(name=name), rules.take_input, annotation)

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
        """Add a timer: a node that completes ``delay`` after it is ready, a timedelta or seconds.

        Its value is None.
        """
        return self._record(
            kinds.TIMER, "sleep", Options(after, join, allow_failed, when, name), rules.sleep, delay
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
        """Add a timer that completes at an aware datetime, or when it is ready if that is later.

        Its value is None.
        """
        return self._record(
            kinds.TIMER,
            "until",
            Options(after, join, allow_failed, when, name),
            rules.until,
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
        """Add a node that waits for a signal of this name, whose data becomes its value; see
        ``WorkflowHandle.signal``.

        Each signal is taken by one node, the oldest first, also if it was sent before the node
        began to wait. With a ``key``, only signals with that key are taken. ``annotation`` is the
        type of the data, which is checked when it is sent. After ``timeout``, a timedelta or
        seconds from when the node is ready, it is FAILED ("fail"), SKIPPED ("skip") or COMPLETED
        with None ("complete").
        """
        options = Options(after, join, allow_failed, when, name)
        title = signal if isinstance(signal, str) else "signal"
        return self._record(
            kinds.SIGNAL, title, options, rules.signal, signal, key, annotation, timeout, on_timeout
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
        """Add a node that waits until a person approves or rejects it; see
        ``WorkflowHandle.approve``.

        Its value is ``{"by": ..., "reason": ...}``; a rejection fails it with GATE_REJECTED.
        ``permission``, as in "shop.approve", is what users need. ``timeout`` and ``on_timeout`` are
        those of ``signal``. ``announce`` is a task that is sent when the gate opens, with the name
        of the gate as its argument ``gate``.
        """
        options = Options(after, join, allow_failed, when, name)
        node = self._record(
            kinds.GATE, "gate", options, rules.gate, permission, timeout, on_timeout
        )

        if announce is not None:  # it waits for the same nodes
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
        """Let the value of a node be the value of the workflow."""
        self.change("a value")
        if problem := self.foreign(node):
            self.problems.append(f"returns(): {problem}")
        else:
            self.problems += dropped(node, "returns(): ")
            self.output = node

    def send(self) -> WorkflowHandle[T]:
        """Send the workflow in the caller's transaction and return its handle.

        Raises WorkflowDefinitionError, which names all problems of the graph, and TaskSendError if
        the database refuses it. If a ``key`` is given that another open transaction is sending, it
        waits for that transaction.
        """
        return send_graphs([self])[0]

    asend = async_form(send)

    @staticmethod
    def send_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send workflows in the caller's transaction, all or none of them, and return their handles
        in order.

        They are inserted by few statements: for many runs this takes a part of the time that as
        many sends take. Raises what ``send`` does.
        """
        return send_graphs(list(workflows))

    @staticmethod
    async def asend_many(workflows: Iterable[Workflow[T]]) -> list[WorkflowHandle[T]]:
        """Send from async code, as ``send_many`` does."""
        return await sync_to_async(send_graphs)(list(workflows))

    def handle(self, workflow_id: UUID | str) -> WorkflowHandle[T]:
        """Return the handle of a run of this workflow that was sent earlier, in any process."""
        return handle_of(self, workflow_id)

    def _given(
        self, options: Options, args: tuple[Any, ...], kwargs: Any, others: dict[str, Any]
    ) -> Given:
        """Return the arguments of a node: those in ``kwargs``, which leaves no doubt about options,
        and those beside it.
        """
        if kwargs is None:
            changed = {
                name
                for name, value in options._asdict().items()
                if value != Options._field_defaults[name]
            }
            return Given(args, others, changed)

        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            self.problems.append(f"kwargs= takes a dict of arguments by name, not {kwargs!r:.80}")
            return Given(args, others)

        twice = [name for name in kwargs if name in others]
        self.problems += [
            f"the argument {name!r:.80} is given twice: in kwargs= and beside it" for name in twice
        ]
        return Given(args, {**kwargs, **others})

    def _called(self, what: Any, expected: str) -> Called | None:
        """Return a task and its options.

        One of django.tasks has them as its attributes ``definition`` and ``send_options``.
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

    def _call(self, kind: Kind, what: Any, expected: str, options: Options, given: Given) -> Node:
        """Record a node that runs a task."""
        called = self._called(what, expected)
        title = str(what) if called is None else called[0].name.rpartition(".")[2]
        return self._record(kind, title, options, rules.take_task, called, given)

    def _record(self, kind: Kind, title: Any, options: Options, rule: Rule, *given: Any) -> Node:
        """Add a node, and compile it.

        Its title is its name, unless the options have one, or the title is taken.
        """
        if len(self.nodes) >= MOST_NODES:
            raise WorkflowDefinitionError(
                self.name,
                [
                    f"it has more than {MOST_NODES:,} nodes: map() runs a task per element with "
                    "one node"
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
        """Return the name of a node: the one that was given, else its title, with a number if that
        is taken.
        """
        if given is not None and (problem := name_problem("a node's name", given, 200)):
            self.problems.append(problem)
            given = None

        name: str | None = given
        while name is None or (given is None and name in self.taken):
            self.titles[title] += 1
            name = title if self.titles[title] == 1 else f"{title}-{self.titles[title]}"

        if given in self.taken:
            self.problems.append(
                f"the name {name!r} is used for two nodes: give one of them another"
            )

        self.taken.add(name)
        return name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.nodes)} nodes>"


class Batch(Workflow[T]):
    """Tasks that do not depend on one another, with callbacks for when they have all finished."""

    def on_success(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
        """Add a task that runs when all have finished and none failed."""
        return self._callback("succeeded", what, args, kwargs)

    def on_failure(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
        """Add a task that runs when all have finished and one failed."""
        return self._callback("failed", what, args, kwargs)

    def on_finish(
        self, what: Sender[..., N] | Workflow[N] | str, /, *args: Any, **kwargs: Any
    ) -> Node[N]:
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
