"""Sends workflows: checks their graphs, and inserts runs, nodes and edges.

All rows are inserted in the transaction of the sender.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, transaction

from horsies_django.conf import config
from horsies_django.core.errors import TaskSendErrorCode, WorkflowDefinitionError, WorkflowError
from horsies_django.store.base import error_text
from horsies_django.store.tasks import CHUNK_ROWS
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks.enqueue import CHUNK_CHARACTERS, in_event_loop, refuse_suppressed, taken
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.options import send_error, simulated_now
from horsies_django.workflows.handle import WorkflowHandle, handle_of
from horsies_django.workflows.nodes import Graph, T, graph_problems, outermost
from horsies_django.workflows.operations import reading, writing

S = TypeVar("S")
_accepted: set[str] = set()


def send_graphs(flows: Sequence[Graph[T]]) -> list[WorkflowHandle[T]]:
    """Send workflows, all or none of them, and return their handles in the same order.

    Raises WorkflowDefinitionError if a graph has problems, TaskSendError if the workflows cannot be
    sent here or the database refuses them, and WorkflowError if there is a run of the same name and
    key with another graph.
    """
    for flow in flows:
        tasks = (node.task for node in flow.nodes if node.task is not None)
        refuse_suppressed(f"the workflow {flow.name!r}", tasks, circumstance="")
        if in_event_loop():
            message = "send() was called on a running event loop: use 'await flow.asend()'"
            raise send_error(message, TaskSendErrorCode.ASYNC_CONTEXT)

    now = simulated_now.get()
    with taken():
        for flow in flows:
            check(flow, reading())

        drafts = [Draft(flow) for flow in flows]
        # A single statement needs no transaction around it.
        single = len(drafts) == 1 and len(drafts[0].chunks) == 1
        with nullcontext(reading(now)) if single else writing(now) as store:
            runs = [
                run
                for group in parts(drafts, lambda draft: draft.size)
                for run in insert(store, group)
            ]

    return [handle_of(flow, run) for flow, run in zip(flows, runs, strict=True)]


def check(flow: Graph, store: WorkflowStore) -> None:
    """Raise WorkflowDefinitionError, with all problems, if a graph has any."""
    flow.finish()
    problems = [*flow.problems, *graph_problems(flow), *outermost(flow.nodes)]

    paths = {node.when.path: node.name for node in reversed(flow.nodes) if node.when is not None}
    for path, name in reversed(paths.items()):
        if problem := path_problem(store, path):
            problems.append(f"{name}: {problem}")

    if problems:
        raise WorkflowDefinitionError(str(flow.name), problems)


class Draft:
    """A run before it is inserted: its workflow, its id, and its nodes as JSON lists."""

    def __init__(self, flow: Graph) -> None:
        self.flow = flow
        self.id = uuid7()
        self.chunks = [
            f"[{','.join(texts)}]" for texts in parts((node.json() for node in flow.nodes), len)
        ]
        self.hash = None if flow.key is None else flow.hash()
        self.head = json.dumps({**flow.head(), "key": flow.key, "hash": self.hash})

    @property
    def size(self) -> int:
        """The number of characters that it takes in a statement.

        A draft of several chunks counts as a full statement.
        """
        return len(self.chunks[0]) if len(self.chunks) == 1 else CHUNK_CHARACTERS


def parts(items: Iterable[S], size: Callable[[S], int]) -> Iterator[list[S]]:
    """Yield groups of items that fit into one statement of moderate size.

    An item that is larger is alone in its group.
    """
    part: list[S] = []
    total = 0

    for item in items:
        if part and (len(part) == CHUNK_ROWS or total + size(item) > CHUNK_CHARACTERS):
            yield part
            part = []
            total = 0

        part.append(item)
        total += size(item)

    if part:
        yield part


def insert(store: WorkflowStore, group: list[Draft]) -> list[UUID]:
    """Insert runs that ``parts`` has grouped, and return their ids.

    Raises WorkflowError if there is a run of the same name and key with another graph.
    """
    more = group[0].chunks[1:]
    runs = store.send(
        [draft.id for draft in group],
        [draft.head for draft in group],
        [draft.chunks[0] for draft in group],
        begin=not more,
    )

    for draft, run in zip(group, runs, strict=True):
        if not run.created and run.hash != draft.hash:
            raise WorkflowError(
                f"there is a run of {draft.flow.name!r} with the key {draft.flow.key!r} and "
                f"another graph: {run.id}. Use another "
                "key, or send the same graph"
            )

    if more and runs[0].created:
        for chunk in more:
            store.add(runs[0].id, chunk)
        store.begin(runs[0].id)

    return [run.id for run in runs]


def path_problem(store: WorkflowStore, path: Any) -> str | None:
    """Return the reason why PostgreSQL does not accept a condition, or None if it does."""
    if not isinstance(path, str) or not path or "\x00" in path:
        return f"the condition must be a JSON path (a str), not {path!r:.200}"
    if path in _accepted:
        return None

    try:
        with transaction.atomic(using=config().database):
            store.check_path(path)
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) not in ("42601", "22P02", "22023", "2201B"):
            raise
        return f"the condition {path!r:.200} is not a JSON path of PostgreSQL: {error_text(error)}"

    if len(_accepted) < 1_000:  # a cache of conditions that PostgreSQL has accepted
        _accepted.add(path)
    return None
