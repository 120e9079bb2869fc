"""Decisions about gates. Used by handles, the admin and ``horsies_workflow``.

A decision counts for one opening of one gate: each time a gate begins to wait, its ``opening`` is counted up. Like other
operations it waits for the lock of the run, under which timeouts end gates, too; the first one counts, and nothing is kept for
later.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone

from horsies_django.conf import config
from horsies_django.core.errors import WorkflowError
from horsies_django.core.facts import clock_time
from horsies_django.core.texts import refuse_who, text_problem
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks.options import simulated_now
from horsies_django.workflows.database import writing
from horsies_django.workflows.operations import last, note

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from horsies_django.models import WorkflowNode

NAMED = 20


def decide(
    run: uuid.UUID, gate: str, *, approved: bool, user: Any = None, actor: str | None = None, reason: str | None = None
) -> None:
    """Approve or reject the open gate of a name, or of a number, and note it in the audit. Of runs that continued one another,
    the last has the gate.

    Who decides is a Django ``user``, or the ``actor`` for code that decides by itself. Raises LookupError if there is no such run
    or gate, PermissionDenied, and WorkflowError if the gate is not open, or if several of this name are.
    """
    if problem := text_problem("gate", gate, 200):
        raise WorkflowError(problem)
    with writing(simulated_now.get()) as store:
        found = find(last(store, run), gate)
        waiting = [one for one in found if one.status == "WAITING"]
        if len(waiting) > 1:
            numbers = ", ".join(str(one.number) for one in waiting[:NAMED])
            raise WorkflowError(f"run {run} has several open gates {gate!r}: decide about one by its number: {numbers}")
        node = waiting[0] if waiting else found[-1]
        settle(store, node, node.opening, approved=approved, user=user, actor=actor, reason=reason)


def decide_opening(
    run: uuid.UUID, number: int, opening: int, *, approved: bool, user: Any, reason: str | None = None
) -> None:
    """Approve or reject one opening of the gate of a number; otherwise as ``decide``."""
    with writing(simulated_now.get()) as store:
        node = gates(run).filter(number=number).first()
        if node is None:
            raise LookupError(f"run {run} has no gate with the number {number}")
        settle(store, node, opening, approved=approved, user=user, actor=None, reason=reason)


def settle(
    store: WorkflowStore,
    node: WorkflowNode,
    opening: int,
    *,
    approved: bool,
    user: Any,
    actor: str | None,
    reason: str | None,
) -> None:
    """Decide about an opening of a gate, if it is allowed and still open."""
    run, by = node.workflow_id, decider(node, user, actor)
    refuse_who(WorkflowError, f"the gate {node.signal!r} of run {run} was not decided", by, reason)
    if not store.decide(run, node.number, opening, node.permission, approved, by, reason):
        raise WorkflowError(refusal(gates(run).get(number=node.number), opening))
    details = {"gate": str(node.signal), "node": str(node.number), "opening": str(opening)}
    note(store, run, "workflow.approve" if approved else "workflow.reject", by, reason, details)


def gates(run: uuid.UUID) -> QuerySet[WorkflowNode]:
    """Return the gates of a run, through the index of names."""
    return waiters(run).filter(kind="gate")


def waiters(run: uuid.UUID) -> QuerySet[WorkflowNode]:
    """Return the gates and the nodes that wait for signals of a run."""
    from horsies_django.models import WorkflowNode

    return WorkflowNode.objects.using(config().database).filter(workflow_id=run, signal__isnull=False)


def find(run: uuid.UUID, gate: str) -> list[WorkflowNode]:
    """Return the gates of a name in a run, else the one of a number. Raises LookupError."""
    found = list(gates(run).filter(signal=gate).order_by("number"))
    if not found and gate.isdecimal() and len(gate) < 19:
        found = list(gates(run).filter(number=int(gate)))
    if found:
        return found
    if waiters(run).filter(signal=gate).exists():
        raise WorkflowError(f"{gate!r} of run {run} is not a gate but a signal")
    names = list(gates(run).order_by("signal").values_list("signal", flat=True).distinct()[:NAMED])
    there = f"its gates are {', '.join(map(repr, names))}" if names else "it has no gates"
    raise LookupError(f"no node of run {run} waits for the gate {gate!r}; {there}")


def decider(node: WorkflowNode, user: Any, actor: str | None) -> str:
    """Return the name of who decides. Raises PermissionDenied if the user must not, WorkflowError if nobody is named."""
    if user is None:
        if actor is None:
            raise WorkflowError(
                f"say who decides about the gate {node.signal!r}: pass user=request.user, or actor= if code decides by itself"
            )
        return actor
    if not (user.is_authenticated and user.is_active):
        raise PermissionDenied(f"only an active user who is logged in decides about the gate {node.signal!r}")
    if node.permission is not None and not user.has_perm(node.permission):
        raise PermissionDenied(
            f"{user.get_username()} does not have the permission {node.permission} of the gate {node.signal!r}"
        )
    return str(user.get_username())


def refusal(node: WorkflowNode, opening: int) -> str:
    """Return why a decision about an opening of a gate did not count."""
    gate = f"the gate {node.signal!r} of run {node.workflow_id}"
    if node.finished_at is None and node.status != "WAITING":
        return f"{gate} is not open yet: decide when it waits; nothing is kept until then"
    if node.finished_at is None and node.opening != opening:
        return f"{gate} was opened anew since: look at it again, and decide about this opening"
    if node.decided_by is not None:
        how = "rejected" if node.error_code == "GATE_REJECTED" else "approved"
        return f"{gate} was already decided by {node.decided_by} at {clock(node.finished_at)}: {how}"
    if node.status == "COMPLETED" or node.error_code == "WAIT_TIMED_OUT" or over(node):
        return f"{gate} is not open any more: its time was over at {clock(node.due_at)}"
    if node.finished_at is None:
        return f"{gate} asks for another permission since: try again"
    return f"{gate} is not open any more: it ended as {node.status} at {clock(node.finished_at)}"


def over(node: WorkflowNode) -> bool:
    """Return whether the time of a gate that waits is over."""
    return (
        node.finished_at is None and node.due_at is not None and node.due_at <= (simulated_now.get() or timezone.now())
    )


def clock(when: Any) -> str:
    """Return a time as text, without the date if it is today."""
    return clock_time(when, timezone.now(), timezone.get_current_timezone())
