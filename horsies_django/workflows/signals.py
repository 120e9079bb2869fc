"""Signals to runs. Used by handles, the admin and ``horsies_workflow``.

A signal is a row that is inserted in the caller's transaction, without the lock of the run. Workers give it to a node.
"""

from __future__ import annotations

import uuid
from typing import Any

from horsies_django.conf import config
from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsontext import write_json
from horsies_django.core.codec.type_texts import problem
from horsies_django.core.errors import TaskDefinitionError, WorkflowError
from horsies_django.core.texts import LONGEST_ACTOR, text_problem
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks.options import simulated_now
from horsies_django.workflows.database import writing
from horsies_django.workflows.operations import last, missing

LOOK = 20  # nodes whose types are compared at first
MOST_INSIDE = 100  # runs inside a run that are searched


def signal(run: uuid.UUID, name: str, data: Any = None, *, key: str | None = None, actor: str = "code") -> None:
    """Send a signal to a run. ``data`` is encoded by its own type, and has to fit the annotation of a node that can take it.

    Raises LookupError if there is no such run, or no node of it waits for the name, WorkflowError if the signal cannot be taken.
    """
    given = [("name", name, 200), ("actor", actor, LONGEST_ACTOR), *([] if key is None else [("key", key, 255)])]
    if problem := next(filter(None, (text_problem(*one) for one in given)), None):
        raise WorkflowError(problem)
    text = encoded(name, data)
    with writing(simulated_now.get()) as store:
        send(store, run, name, text, key=key, actor=actor)


def send(store: WorkflowStore, run: uuid.UUID, name: str, data: str, *, key: str | None, actor: str) -> None:
    """Insert a signal, ``data`` as JSON, to the last of runs that continued one another. Raises LookupError, WorkflowError."""
    verdict, names, why = offer(store, run, name, data, key=key, actor=actor)
    if verdict == "ENDED" and (later := last(store, run)) != run:
        send(store, later, name, data, key=key, actor=actor)
        return
    if verdict is None:
        raise missing(run)
    if verdict == "TYPED":
        raise WorkflowError(f"the signal {name!r} was not sent: it takes {' or '.join(names)}, and {why}")
    if verdict == "UNKNOWN":
        there = f"its signals are {', '.join(map(repr, names))}" if names else "it has no signals"
        raise LookupError(f"no node of run {run} waits for the signal {name!r}; {there}{inside(store, run, name)}")
    if verdict == "ENDED":
        raise WorkflowError(f"run {run} has ended: there is nothing to signal")
    if verdict == "GATE":
        raise WorkflowError(f"{name!r} of run {run} is not a signal but a gate: approve or reject it")
    if verdict == "FINISHED":
        raise WorkflowError(f"the nodes of run {run} that waited for the signal {name!r} have all finished")


def inside(store: WorkflowStore, run: uuid.UUID, name: str) -> str:
    """Return, for a message, which of the runs inside a run waits for a signal."""
    from horsies_django.models import WorkflowNode

    found = store.children(run)
    for child in found:  # grows
        if len(found) < MOST_INSIDE:
            found += store.children(child)
    nodes = WorkflowNode.objects.using(config().database).filter(workflow_id__in=found, signal=name, kind="signal")
    waiting = nodes.order_by("workflow_id").values_list("workflow_id", flat=True).first()
    if waiting is None:
        return ""
    node = WorkflowNode.objects.using(config().database).filter(
        task_id=waiting, kind="workflow", workflow_id__in=[run, *found]
    )
    return f". The run of its node {node.values_list('name', flat=True).first()!r} does: signal {waiting}"


def offer(
    store: WorkflowStore, run: uuid.UUID, name: str, data: str, *, key: str | None, actor: str
) -> tuple[str | None, list[str], str | None]:
    """Insert a signal if its data fits the type that a node wants; return the verdict, names and why it does not fit."""
    why = None
    for look in (LOOK, None):  # most nodes of a name want the same; a refusal has asked all
        verdict, names = store.signal(run, name, key, data, actor, look)
        problems = [problem(wanted, data) for wanted in names] if verdict == "TYPED" else []
        if None in problems:
            return *store.signal(run, name, key, data, actor, 0), None
        if not problems:
            break
        why = problems[-1]
    return verdict, names, why


def encoded(name: str, data: Any) -> str:
    """Return data as JSON. Raises WorkflowError for what cannot be encoded, or is too large."""
    try:
        text = write_json(shape_of(type(data), "data").encode(data, "data"))
    except (CodecError, TaskDefinitionError) as error:
        raise WorkflowError(f"the signal {name!r} was not sent: {error}") from error
    limit = config().max_payload_bytes
    if len(text.encode()) > limit:
        raise WorkflowError(
            f"the signal {name!r} was not sent: its data takes {len(text.encode()):,} bytes of JSON; "
            f"HORSIES['MAX_PAYLOAD_BYTES'] allows {limit:,}"
        )
    return text
