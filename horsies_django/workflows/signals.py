"""Signals to runs, and decisions about gates. Used by handles, the admin and ``horsies_workflow``.

A signal is a row that is inserted in the caller's transaction, without the lock of the run. Workers give it to a node.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.core.exceptions import PermissionDenied

from horsies_django.conf import config
from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsontext import write_json
from horsies_django.core.errors import TaskDefinitionError, WorkflowError
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks.options import simulated_now
from horsies_django.workflows.database import writing
from horsies_django.workflows.operations import missing, note


def signal(run: uuid.UUID, name: str, data: Any = None, *, key: str | None = None, actor: str = "code") -> None:
    """Send a signal to a run. ``data`` is encoded by its own type.

    Raises LookupError if there is no such run, or no node of it waits for the name, WorkflowError if the signal cannot be taken.
    """
    check("name", name, 200)
    if key is not None:
        check("key", key, 255)
    text = encoded(name, data)
    with writing(simulated_now.get()) as store:
        send(store, run, "signal", name, text, key=key, actor=actor)


def decide(
    run: uuid.UUID, gate: str, *, approved: bool, user: Any = None, actor: str = "code", reason: str | None = None
) -> None:
    """Approve or reject a gate, and note it in the audit. A ``user`` must have its permission, and is the actor then.

    Raises LookupError if there is no such run or gate, PermissionDenied, and WorkflowError if the decision comes too late.
    """
    check("gate", gate, 200)
    with writing(simulated_now.get()) as store:
        if user is not None:
            actor = user.get_username()
            for permission in store.permissions(run, gate):
                if not user.has_perm(permission):
                    raise PermissionDenied(f"{actor} does not have the permission {permission} of the gate {gate!r}")
        text = json.dumps({"approved": approved, "by": actor, "reason": reason})
        send(store, run, "gate", gate, text, actor=actor, reason=reason)
        note(store, run, "workflow.approve" if approved else "workflow.reject", actor, reason, {"gate": gate})


def send(
    store: WorkflowStore,
    run: uuid.UUID,
    kind: str,
    name: str,
    data: str,
    *,
    actor: str,
    key: str | None = None,
    reason: str | None = None,
) -> None:
    """Insert a signal; ``kind`` is the kind of the nodes that take it. Raises LookupError, WorkflowError."""
    verdict, names = store.signal(run, kind, name, key, data, actor, reason)
    what, verb, other = (
        ("signal", "signal", "gate: approve or reject it")
        if kind == "signal"
        else ("gate", "approve or reject", "signal")
    )
    if verdict is None:
        raise missing(run)
    if verdict == "UNKNOWN":
        there = f"its {what}s are {', '.join(map(repr, names))}" if names else f"it has no {what}s"
        raise LookupError(f"no node of run {run} waits for the {what} {name!r}; {there}")
    if verdict == "ENDED":
        raise WorkflowError(f"run {run} has ended: there is nothing to {verb}")
    if verdict == "KIND":
        raise WorkflowError(f"{name!r} of run {run} is not a {what} but a {other}")
    if verdict == "FINISHED":
        raise WorkflowError(f"the nodes of run {run} that waited for the {what} {name!r} have all finished")


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


def check(what: str, value: object, most: int) -> None:
    """Raise WorkflowError unless a value is a str of at most so many characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= most or "\x00" in value:
        raise WorkflowError(f"{what} must be a str of 1 to {most} characters, not {value!r:.80}")
