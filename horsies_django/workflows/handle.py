"""Handles of workflow runs: status, progress, results and control; and the codecs of their values.

The end of a run is announced by the same notification as the end of a task.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple

from horsies_django.core import kinds
from horsies_django.core.codec import ResultCodec, shape_of
from horsies_django.core.codec.envelopes import open_envelope
from horsies_django.core.results import TaskResult
from horsies_django.core.status import UNFINISHED_NODES
from horsies_django.core.texts import text_problem
from horsies_django.store.tasks import Found
from horsies_django.store.workflows import Progress
from horsies_django.tasks import registry
from horsies_django.tasks.handle import (
    TaskHandle,
    async_form,
    deadline_of,
    decode,
    id_of,
    remaining,
)
from horsies_django.workflows import operations
from horsies_django.workflows.nodes import Graph, Node, T
from horsies_django.workflows.operations import reading, rows

# More than the characters in the result of a run that continued:
# {"ok": null, "continued_as": "..."}
LONGEST_CONTINUATION = 100


class RunResult(TaskHandle[T]):
    """The result of one run, once it has ended.

    ``continued`` is true if the run has ended and goes on as another run.
    """

    noun = "workflow run"
    continued = False

    def _result_of(self, found: Found | None) -> TaskResult[T]:
        text = "" if found is None else found.result or ""
        self.continued = (
            '"continued_as"' in text
            and len(text) < LONGEST_CONTINUATION
            and "continued_as" in json.loads(text)
        )
        return super()._result_of(found)


def left_ms(deadline: float | None) -> int | None:
    """Return the milliseconds until a deadline, or None if there is no deadline."""
    left = remaining(deadline)
    return None if left is None else int(left * 1_000)


class Change(NamedTuple):
    """An operation on a run, with its time, actor and reason."""

    at: dt.datetime
    actor: str
    action: str
    reason: str | None
    details: Mapping[str, str]


class WorkflowHandle(Generic[T]):
    """A run of a workflow, whose value has the type ``T``.

    ``workflow_id`` is its UUID. Raises ValueError if the id is not a UUID.

    If the run continued as another one, ``get``, ``signal``, ``approve``, ``reject``, ``pause``,
    ``resume`` and ``cancel`` apply to the last of the runs that continued one another. The other
    methods apply to the run with this id. Methods that change the run take a ``reason``, which is
    stored in the audit, and raise LookupError if there is no such run.
    """

    def __init__(
        self,
        workflow_id: uuid.UUID | str,
        codec: Any = None,
        codecs: Mapping[int, Any] | None = None,
    ) -> None:
        self.workflow_id = id_of(workflow_id, "workflow")
        self._codec = codec
        self._codecs = codecs or {}  # of nodes without a task

    def get(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait for the end of the run and return its result, as ``TaskHandle.get`` does.

        The value is that of the node given to ``returns()``, or None without such a node. The error
        is WORKFLOW_FAILED, whose ``data`` names the first failed node, or WORKFLOW_CANCELLED, or
        COMPENSATION_FAILED, whose ``data`` also names the nodes that were not undone, or a code for
        a value that could not be given, such as PAYLOAD_TOO_LARGE.

        A paused run does not end before it is resumed. If the run continued as another one, the
        result is that of the last run. The value is plain JSON if the last run is one of another
        workflow.
        """
        deadline = deadline_of(timeout_ms)
        waiting = RunResult[T](self.workflow_id, self._codec)
        result = waiting.get(timeout_ms)

        while waiting.continued and (last := self.latest()).workflow_id != waiting.task_id:
            waiting = RunResult(last.workflow_id, last._codec)
            result = waiting.get(left_ms(deadline))

        return result

    async def aget(self, timeout_ms: int | dt.timedelta | None = 30_000) -> TaskResult[T]:
        """Wait for the end of the run as ``get`` does, without blocking the event loop."""
        deadline = deadline_of(timeout_ms)
        waiting = RunResult[T](self.workflow_id, self._codec)
        result = await waiting.aget(timeout_ms)

        while waiting.continued and (last := await self.alatest()).workflow_id != waiting.task_id:
            waiting = RunResult(last.workflow_id, last._codec)
            result = await waiting.aget(left_ms(deadline))

        return result

    def status(self) -> str:
        """Return RUNNING, PAUSED, COMPENSATING, COMPLETED, FAILED or CANCELLED.

        Raises LookupError if there is no such run.
        """
        found = rows("WorkflowRun", pk=self.workflow_id).values_list("status", flat=True)
        if not found:
            raise operations.missing(self.workflow_id)
        return str(found[0])

    def successor(self) -> WorkflowHandle | None:
        """Return the run as which this one continued, or None if it did not continue.

        Raises LookupError if there is no such run.
        """
        found = reading().successor(self.workflow_id, last=False)
        if not found:
            raise operations.missing(self.workflow_id)
        return None if found[0] is None else WorkflowHandle(found[0])

    def latest(self) -> WorkflowHandle:
        """Return the last of the runs that continued one another, or this run if it did not.

        Raises LookupError if there is no such run.
        """
        found = operations.last(reading(), self.workflow_id)
        if found == self.workflow_id:
            return self
        names = rows("WorkflowRun", pk__in=[self.workflow_id, found]).values_list("name", flat=True)
        # The value of a run of another workflow is plain JSON.
        return WorkflowHandle(found, self._codec if len(set(names)) == 1 else None)

    def progress(self) -> Progress:
        """Return how many nodes have ended, and how many are open.

        Raises LookupError if there is no such run.
        """
        found = reading().progress([self.workflow_id])
        if self.workflow_id not in found:
            raise operations.missing(self.workflow_id)
        return found[self.workflow_id]

    def results(self) -> dict[str, TaskResult[Any] | None]:
        """Return the results of all nodes by name, with None for nodes that have not finished.

        The result of a map is a list of values, without elements that were skipped. Values of tasks
        have their types. Values of workflows, signals and inputs have their types if the handle was
        returned by ``send`` or ``Workflow.handle``; otherwise they are plain JSON.

        If tasks have added several nodes of one name, the names of the later ones are followed by
        their number, as in "part (1000002)".
        """
        store = reading()
        found: dict[str, TaskResult[Any] | None] = {}

        for node in store.node_results(self.workflow_id):
            task = registry.find_or_import(node.task_name) if node.task_name else None
            codec = self._codecs.get(node.number) if task is None else task.result
            name = f"{node.name} ({node.number})" if node.name in found else node.name

            if node.status in UNFINISHED_NODES:
                found[name] = None
            elif node.kind == "map" and node.status == "COMPLETED":
                elements = store.results(self.workflow_id, node.number, None, 0, 2**31 - 1)
                ok = [
                    decode(codec, result).ok
                    for _place, status, result in elements
                    if status == "COMPLETED"
                ]
                found[name] = TaskResult(ok=ok)
            else:
                found[name] = decode(None if node.kind == "map" else codec, node.result)

        return found

    def children(self) -> dict[str, WorkflowHandle]:
        """Return the runs inside this one that have begun, by the names of their nodes.

        The names are those of ``results``. A run stays in this dict after it has ended. A retry may
        replace one by a new run. The values of the runs are plain JSON. Raises LookupError if there
        is no such run.
        """
        found: dict[str, WorkflowHandle] = {}
        for name, number, run in reading().inner(self.workflow_id):
            found[f"{name} ({number})" if name in found else name] = WorkflowHandle(run)

        if not found:
            self.status()  # raises LookupError if there is no such run
        return found

    def history(self) -> list[Change]:
        """Return the operations of people and code on the run, oldest first.

        They are pauses, resumes, cancels, retries, skipped nodes, and decisions about gates.
        """
        entries = rows("AuditEntry", subject=str(self.workflow_id)).order_by("at", "pk")
        return [
            Change(entry.at, entry.actor, entry.action, entry.reason, entry.after or {})
            for entry in entries
        ]

    def pause(self, *, actor: str = "code", reason: str | None = None) -> bool:
        """Pause the run: nothing starts, not even a retry, until it is resumed. Running tasks end.

        Returns False if the run was not running.
        """
        return operations.control(self.workflow_id, "pause", actor=actor, reason=reason)

    def resume(self, *, actor: str = "code", reason: str | None = None) -> bool:
        """Continue a paused run. Return False if it was not paused."""
        return operations.control(self.workflow_id, "resume", actor=actor, reason=reason)

    def cancel(self, *, actor: str = "code", reason: str | None = None) -> bool:
        """End the run: cancel nodes that have not started, and ask running tasks to stop.

        If nodes have an ``undo`` and have begun, the run is COMPENSATING until all of them are
        undone. Returns False if the run had ended already.
        """
        return operations.control(self.workflow_id, "cancel", actor=actor, reason=reason)

    def retry(self, *, actor: str = "code", reason: str | None = None) -> None:
        """Run the failed nodes again, and those skipped because of them; keep the completed nodes.

        If the nodes of the run were undone, only the undos that failed run again. Raises
        WorkflowError if the run cannot be retried.
        """
        operations.retry(self.workflow_id, actor=actor, reason=reason)

    def skip(
        self, node: str, *, user: Any = None, actor: str = "code", reason: str | None = None
    ) -> None:
        """Skip a node that has not begun, by its name.

        A Django ``user`` is noted as the actor, and needs the permission of a gate to skip it.
        Raises WorkflowError if the node has begun, LookupError if there is no such node or if
        several nodes have this name, and PermissionDenied if the user lacks the permission.
        """
        named = rows("WorkflowNode", workflow_id=self.workflow_id, name=node).order_by("added_by")
        numbers = (
            []
            if text_problem("node", node, 200)
            else list(named.values_list("number", flat=True)[:2])
        )

        if len(numbers) != 1:
            raise LookupError(
                f"run {self.workflow_id} has {'several nodes' if numbers else 'no node'} named "
                f"{node!r}"
            )
        operations.skip(self.workflow_id, numbers[0], user=user, actor=actor, reason=reason)

    def signal(
        self, name: str, data: Any = None, *, key: str | None = None, actor: str = "code"
    ) -> None:
        """Send a signal, which one node that waits for ``name`` takes, with ``data`` as its value.

        The signal is kept until a node takes it. Raises LookupError if no node of the run waits for
        the name. Raises WorkflowError if the run has ended, if all of these nodes have finished, or
        if the data cannot be encoded or is larger than HORSIES["MAX_PAYLOAD_BYTES"].
        """
        operations.signal(self.workflow_id, name, data, key=key, actor=actor)

    def approve(
        self,
        gate: str | int,
        *,
        user: Any = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Approve an open gate, given by its name, or by its number (an int).

        The number is needed if several gates have the same name. The approval counts for this
        opening of the gate only. A Django ``user`` is noted as the actor, and must be active and
        have the permission of the gate. Code that decides without a user passes an ``actor``.
        Raises PermissionDenied if the user must not decide, LookupError if there is no such gate,
        and WorkflowError if the gate is not open: not yet, or because it was decided, its time is
        over or the run has ended.
        """
        operations.decide(
            self.workflow_id, gate, approved=True, user=user, actor=actor, reason=reason
        )

    def reject(
        self,
        gate: str | int,
        *,
        user: Any = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Reject an open gate, which then fails with GATE_REJECTED.

        The arguments and errors are those of ``approve``.
        """
        operations.decide(
            self.workflow_id, gate, approved=False, user=user, actor=actor, reason=reason
        )

    astatus = async_form(status)
    asuccessor = async_form(successor)
    alatest = async_form(latest)
    aprogress = async_form(progress)
    aresults = async_form(results)
    achildren = async_form(children)
    ahistory = async_form(history)
    apause = async_form(pause)
    aresume = async_form(resume)
    acancel = async_form(cancel)
    aretry = async_form(retry)
    askip = async_form(skip)
    asignal = async_form(signal)
    aapprove = async_form(approve)
    areject = async_form(reject)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and self.workflow_id == other.workflow_id

    def __hash__(self) -> int:
        return hash(self.workflow_id)

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.workflow_id}>"


def get_workflow(workflow_id: uuid.UUID | str) -> WorkflowHandle:
    """Return the handle of a run; the values that it returns are plain JSON.

    Raises ValueError if the id is not a UUID.
    """
    return WorkflowHandle(workflow_id)


def handle_of(flow: Graph[T], id_: uuid.UUID | str) -> WorkflowHandle[T]:
    """Return the handle of a run of a workflow, with the types of its values.

    Raises ValueError if the id is not a UUID.
    """
    # Nodes with a task use the codec of the task.
    codecs = {node.number: codec_of(node) for node in flow.nodes if node.task is None}
    return WorkflowHandle(id_, codec_of(flow.output), codecs)


class ValueCodec(NamedTuple):
    """A decoder of the value of a node.

    It is a function, which can be pickled, because handles can be pickled.
    """

    load: Callable[[Any], Any]

    def decode(self, envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the value in an envelope.

        Raises CodecError if the value does not fit, and TaskDefinitionError if no value can have
        the annotation.
        """
        found = open_envelope(envelope)
        return (
            ResultCodec.decode_error(found)
            if "err" in found
            else TaskResult(ok=self.load(found["ok"]))
        )


def load_elements(codec: ResultCodec, values: list[Any]) -> list[Any]:
    """Return the decoded values of the tasks of a map."""
    return [codec.decode({"ok": each}).ok_value for each in values]


def load_declared(annotation: Any, name: str, value: Any) -> Any:
    """Return the decoded value of an input, or of a signal whose data has an annotation."""
    return shape_of(annotation, name).load(value)


def codec_of(node: Node | None) -> Any:
    """Return the codec for the value of a node, or None if the value is plain JSON."""
    if node is None:
        return None
    if node.kind is kinds.WORKFLOW:
        return codec_of(node.output)
    if node.task is None:
        return (
            None if node.type is Any else ValueCodec(partial(load_declared, node.type, node.name))
        )
    return (
        ValueCodec(partial(load_elements, node.task.result)) if node.kind.many else node.task.result
    )
