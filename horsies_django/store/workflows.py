"""The statements about workflows: send a graph, advance and control runs, and read their nodes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from horsies_django.store.base import Connection, Cursor, Store, executed
from horsies_django.store.tasks import CHUNK_ROWS


class Created(NamedTuple):
    """A run of a name and a key: new, or an earlier one with the hash of its graph."""

    id: uuid.UUID
    hash: str | None
    created: bool


class Advanced(NamedTuple):
    """The result of advancing a run; see ``horsies_advance``.

    Fields other than ``busy`` are None if it did nothing.
    """

    busy: bool
    many: int | None
    more: bool | None
    finished: bool | None
    parent: uuid.UUID | None
    halted: str | None


class AdvanceReason(NamedTuple):
    """A reason to advance a run: a finished task, a finished child run, or the run itself."""

    workflow: uuid.UUID
    task: uuid.UUID | None
    child: uuid.UUID | None


class Progress(NamedTuple):
    """The progress of a run.

    A map counts as its tasks once their number is known, else as one.
    """

    total: int
    completed: int
    failed: int
    skipped: int
    open: int

    @property
    def share(self) -> float:
        """The finished part, from 0 to 1."""
        return 1.0 if not self.total else (self.total - self.open) / self.total


class PlaceInRun(NamedTuple):
    """The place of a task: its run, its node with the kind, and the element of a map.

    ``nested`` is True if the run is a node of another one. ``keyed_name`` is the name of the run if
    it has a key.
    """

    workflow: uuid.UUID
    node: int
    element: int | None
    kind: str
    nested: bool
    keyed_name: str | None


class OpenCalls(NamedTuple):
    """Calls of one task, with arguments of the same names, that ``runs`` still have to make.

    ``nodes`` is the number of calls. ``given`` is the source of each argument: "constant", "undo"
    (from the undone task), or the "as" of its input. ``constants`` are examples of these, as JSON
    texts. ``run`` and ``node`` are an example of a call. ``codec`` is the form of the arguments.
    """

    task: str
    queue: str
    undo: bool
    given: dict[str, str]
    nodes: int
    runs: list[uuid.UUID]
    run: uuid.UUID
    node: str
    constants: frozenset[str]
    codec: str | None = None


class NodeResult(NamedTuple):
    """The status of a node and its result as JSON."""

    number: int
    name: str
    kind: str
    status: str
    task_name: str
    result: str | None


class WorkflowStore(Store):
    """The statements about workflows.

    Tests pass ``now`` in place of the database's clock.
    """

    def __init__(
        self, connection: Connection, channel: str, max_bytes: int, now: datetime | None = None
    ) -> None:
        super().__init__(connection, now)
        self.clock = {"now": now}
        self.shared = {"channel": channel, "max_bytes": max_bytes, **self.clock}

    def send(
        self, ids: Sequence[uuid.UUID], runs: Sequence[str], nodes: Sequence[str], *, begin: bool
    ) -> list[Created]:
        """Insert runs with nodes, or find those of the same name and key.

        With ``begin``, their first tasks are sent, too. It is one statement, which reads the
        channel itself. ``runs`` are JSON objects without nodes, and ``nodes`` are JSON lists.
        """
        params = {
            "ids": list(ids),
            "runs": list(runs),
            "nodes": list(nodes),
            "limit": CHUNK_ROWS if begin else None,
        }
        params |= {"max_bytes": self.shared["max_bytes"], **self.clock}
        rows = self.run("workflows/send", **params)
        self.report_written()
        return [Created(*row) for row in rows]

    def add(self, workflow: uuid.UUID, nodes: str) -> None:
        """Insert more nodes, a JSON list, of a new run."""
        self.run(
            "horsies_add_nodes",
            workflow=workflow,
            added_by=-1,
            nodes=nodes,
            values="{}",
            **self.clock,
        )

    def begin(self, workflow: uuid.UUID) -> None:
        """Send the first tasks of a new run."""
        self._change("horsies_begin_run", workflow=workflow, limit=CHUNK_ROWS)

    def advancing(
        self,
        workflow: uuid.UUID,
        tasks: Iterable[uuid.UUID],
        children: Iterable[uuid.UUID],
        limit: int,
    ) -> AbstractContextManager[Cursor]:
        """Advance a run after some of its tasks and child runs have finished.

        ``limit`` tasks are sent at most. Return a context manager with a cursor, which has one row
        for an Advanced. In pipeline mode the row can be read after other statements were sent.
        """
        params = {
            "workflow": workflow,
            "tasks": list(tasks),
            "children": list(children),
            "limit": limit,
        }
        return executed(self.connection, "horsies_advance", {**params, **self.shared})

    def wake(self, many: int, limit: int) -> list[tuple[uuid.UUID, Advanced]]:
        """Advance up to ``many`` runs with waits whose time is over.

        ``limit`` tasks of each run are sent at most.
        """
        rows = self.run("horsies_wake", many=many, limit=limit, **self.shared)
        return [(row[0], Advanced(*row[1:])) for row in rows]

    def mark_advanced(self, ids: Iterable[uuid.UUID]) -> None:
        """Record that the parents of these finished runs have been advanced."""
        self.execute("workflows/mark_advanced", ids=list(ids))

    def advance_reasons(self, age: timedelta | None, many: int) -> list[AdvanceReason]:
        """Return up to ``many`` reasons to advance runs.

        Only tasks that finished in the last ``age`` count, or all if it is None.
        """
        return [
            AdvanceReason(*row)
            for row in self.run("horsies_owed", age=age, many=many, **self.clock)
        ]

    def control(self, workflow: uuid.UUID, verb: str) -> tuple[str | None, str | None]:
        """Pause, resume or cancel a run; return its status before and after.

        Both are None if there is no such run.
        """
        before, after = self._change("horsies_control_run", workflow=workflow, verb=verb)
        return before, after

    def retry(self, workflow: uuid.UUID, *, nested: bool) -> str | None:
        """Run the failed nodes of a run again, and return the verdict.

        Return None if there is no such run.
        """
        verdict: str | None = self._change("horsies_retry_run", workflow=workflow, nested=nested)[0]
        return verdict

    def skip(self, workflow: uuid.UUID, number: int) -> str | None:
        """Skip a node; return the verdict, or None if there is no such node."""
        verdict: str | None = self._change("horsies_skip_node", workflow=workflow, number=number)[0]
        return verdict

    def successor(self, workflow: uuid.UUID, *, last: bool) -> list[uuid.UUID | None]:
        """Return in a list the run as which a run was continued, or with ``last`` the last of them.

        The item is None if the run was not continued. The list is empty if there is no such run.
        """
        return [row[0] for row in self.run("workflows/successor", workflow=workflow, last=last)]

    def signal(
        self,
        workflow: uuid.UUID,
        name: str,
        key: str | None,
        data: str,
        actor: str,
        most_nodes: int | None,
    ) -> tuple[str | None, list[str]]:
        """Insert a signal, with ``data`` as JSON; return the verdict and names.

        The verdicts and their names are those of ``horsies_signal``. After TYPED no signal was
        inserted, and the names are types, one of which the data must fit. ``most_nodes`` is the
        number of nodes whose types are read (None means all), or 0 if the data was checked already.
        """
        params = {
            "workflow": workflow,
            "name": name,
            "key": key,
            "data": data,
            "actor": actor,
            "look": most_nodes,
        }
        verdict, names = self.run("horsies_signal", **params, **self.clock)[0]
        self.report_written()
        return verdict, names or []

    def decide(
        self,
        workflow: uuid.UUID,
        number: int,
        opening: int,
        permission: str | None,
        approved: bool,
        by: str,
        reason: str | None,
    ) -> bool:
        """Store the decision about one opening of a gate; return whether it was stored.

        ``permission`` is the permission that was checked.
        """
        params = {
            "workflow": workflow,
            "number": number,
            "opening": opening,
            "permission": permission,
        }
        return bool(
            self._change("horsies_decide", **params, approved=approved, by=by, reason=reason)[0]
        )

    def unseen(self, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Return the runs among these that must be advanced.

        They have signals that no advance has read, or are marked as left to be advanced.
        """
        return [row[0] for row in self.run("workflows/unseen", ids=list(ids))]

    def children(self, workflow: uuid.UUID) -> list[uuid.UUID]:
        """Return the unfinished child runs of a run."""
        return [row[0] for row in self.run("workflows/children", workflow=workflow)]

    def inner(self, workflow: uuid.UUID) -> list[tuple[str, int, uuid.UUID]]:
        """Return the name and number of each node that has begun a run, and this run, in order."""
        return [tuple(row) for row in self.run("workflows/inner", workflow=workflow)]

    def grow(self, task: uuid.UUID, attempt: int, nodes: str) -> list[list[int] | None]:
        """Add nodes, a JSON list, for a running task; return a list with their numbers as its item.

        The item is None if a gate and a signal would have one name. The list is empty if the
        attempt does not run any more.
        """
        return [
            row[0] for row in self.run("workflows/grow", task=task, attempt=attempt, nodes=nodes)
        ]

    def named(self, workflow: uuid.UUID, added_by: int, name: str) -> tuple[int, str]:
        """Return the number of the node that a node added under a name, and its definition.

        The definition is a JSON text with its task and the nodes for which it waits.
        """
        ((number, text),) = self.run(
            "workflows/named", workflow=workflow, added_by=added_by, name=name
        )
        return number, text

    def number(self, workflow: uuid.UUID) -> int:
        """Return a number for a node that a running task adds."""
        return int(self.run("horsies_new_number", workflow=workflow)[0][0])

    def place(self, task: uuid.UUID) -> PlaceInRun | None:
        """Return the place of a task, or None if it is not part of a workflow."""
        rows = self.run("workflows/place", task=task)
        return PlaceInRun(*rows[0]) if rows else None

    def results(
        self, workflow: uuid.UUID, node: int, parameter: str | None, start: int, many: int
    ) -> list[tuple[int, str, str | None]]:
        """Return the places, statuses and results for an argument annotated ``Results[T]``.

        If ``parameter`` is None, they are those of a map.
        """
        params = {
            "workflow": workflow,
            "node": node,
            "parameter": parameter,
            "from": start,
            "many": many,
        }
        return [tuple(row) for row in self.run("workflows/results", **params)]

    def node_results(self, workflow: uuid.UUID) -> list[NodeResult]:
        """Return the nodes of a run with their results, in order."""
        return [NodeResult(*row) for row in self.run("workflows/node_results", workflow=workflow)]

    def progress(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Progress]:
        """Return the progress of runs, by id."""
        rows = self.run("workflows/progress", ids=list(ids))
        return {id_: Progress(*counts) for id_, *counts in rows}

    def open_calls(self, runs: Sequence[uuid.UUID]) -> list[OpenCalls]:
        """Return the calls that runs still have to make, grouped by task and names of arguments."""
        rows = self.run("horsies_open_calls", runs=list(runs))
        return [
            OpenCalls(
                task,
                queue,
                undo,
                json.loads(given),
                many,
                ids,
                uuid.UUID(id_),
                node,
                frozenset(text for text in constants if text is not None),
                codec,
            )
            for task, queue, undo, codec, given, many, ids, (id_, node), *constants in rows
        ]

    def names(self, many: int) -> list[str]:
        """Return up to ``many`` names of runs, in order."""
        return [row[0] for row in self.run("workflows/names", many=many)]

    def check_path(self, path: str) -> None:
        """Raise an error of the database if a JSON path is malformed."""
        self.run("workflows/path", path=path)

    def _change(self, function: str, **params: Any) -> Any:
        """Call a function that changes a run, and return its row."""
        (row,) = self.run(function, **params, **self.shared)
        self.report_written()
        return row
