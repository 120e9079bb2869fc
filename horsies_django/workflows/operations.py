"""Operations on runs: pause, resume, cancel, retry, skip a node, signal, decide.

Handles, the admin and commands use them. Each operation is one transaction, which includes the
child runs. It locks a run before its children, as every operation does.

A signal is a row that is inserted without the lock of the run. Workers give it to a node.

A decision counts for one opening of one gate: the ``opening`` of a gate is increased each time the
gate begins to wait. A decision waits for the lock of the run. Timeouts end gates under the same
lock, so the first of the two counts. A decision that comes too late or too early is not kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.utils import timezone

from horsies_django.conf import config
from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.codec.type_texts import fit_problem
from horsies_django.core.errors import TaskDefinitionError, WorkflowError
from horsies_django.core.explanations import clock_time
from horsies_django.core.texts import (
    LONGEST_NAME,
    as_text,
    is_lazy,
    name_of_user,
    storable_actor,
    text_problem,
)
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workflows import WorkflowStore
from horsies_django.tasks.options import simulated_now, too_large

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from typing_extensions import TypeIs

    from horsies_django.models import WorkflowNode

MOST_GATES_NAMED = 20


def reading(now: datetime | None = None) -> WorkflowStore:
    """Return the store for statements that need no transaction: reads, ``send`` and ``signal``."""
    conf = config()
    return WorkflowStore(connections[conf.database], "", conf.max_payload_bytes, now)


@contextmanager
def writing(now: datetime | None = None) -> Iterator[WorkflowStore]:
    """Yield the store within a transaction.

    Tests pass ``now`` in place of the database's clock.
    """
    conf = config()
    connection = connections[conf.database]
    with transaction.atomic(using=conf.database):
        yield WorkflowStore(connection, channel_prefix(connection), conf.max_payload_bytes, now)


def rows(model: str, **filters: Any) -> QuerySet[Any]:
    """Return the rows of a model, which is given by its name.

    Modules of tasks are imported before the models are ready, so this module cannot import them.
    """
    found: QuerySet[Any] = (
        apps.get_model("horsies", model)._default_manager.using(config().database).filter(**filters)
    )
    return found


def control(
    run: uuid.UUID, verb: str, *, actor: str | None = None, reason: str | None = None
) -> bool:
    """Pause, resume or cancel a run and its children, and return whether its status changed.

    The change is noted in the audit if an ``actor`` is given. If the run continued as another one,
    the last of these runs is changed. A run that has finished, or is being compensated, stays as it
    is. Raises LookupError if there is no such run.
    """
    with writing() as store:
        run = last(store, run)
        found = []
        runs = [run]
        reached = {run}  # guards against a cycle of runs that somebody has written into the tables

        for each in runs:  # the loop appends the child runs
            children = store.children(each)
            found.append(store.control(each, verb))
            new = [child for child in [*children, *store.children(each)] if child not in reached]
            runs += dict.fromkeys(new)
            reached.update(new)

        before, after = found[0]
        if before is None:
            raise missing(run)
        # The run may have continued while this transaction waited for its lock.
        if before == after and last(store, run) != run:
            return control(run, verb, actor=actor, reason=reason)

        if before != after:
            note(
                store,
                run,
                f"workflow.{verb}",
                actor,
                reason,
                {"before": str(before), "after": str(after)},
            )

        return before != after


def retry(run: uuid.UUID, *, actor: str | None = None, reason: str | None = None) -> None:
    """Run the failed nodes of a run, and of the runs inside it, again.

    Paused runs continue. A run whose value could not be given ends again. Raises LookupError if
    there is no such run, and WorkflowError for the reasons in RETRY_REFUSALS. See also
    ``WorkflowHandle.retry``.
    """
    with writing() as store:
        verdict = retry_nested_runs(store, run, set())
        if verdict is None:
            raise missing(run)
        if verdict != "RETRIED":
            raise WorkflowError(f"run {run} was not retried: {RETRY_REFUSALS[verdict]}")

        note(store, run, "workflow.retry", actor, reason, {})


def retry_nested_runs(store: WorkflowStore, run: uuid.UUID, retried: set[uuid.UUID]) -> str | None:
    """Retry a run and the unfinished runs inside it, and return the verdict.

    Returns None if there is no such run. The runs of failed nodes are retried with their nodes. A
    run without a failed node counts as retried if a run inside it is. Paused runs continue, even if
    nothing in them has failed.

    ``retried`` has the runs that were retried already, and gets this one. It guards against a cycle
    of runs that somebody has written into the tables.
    """
    nested = len(retried) > 0
    retried.add(run)
    children = store.children(run)
    verdict = store.retry(run, nested=nested)
    if verdict not in ("RETRIED", "NOTHING"):
        return verdict

    verdicts = [
        retry_nested_runs(store, child, retried) for child in children if child not in retried
    ]
    if "RETRIED" in verdicts:
        verdict = "RETRIED"
    if nested or verdict == "RETRIED":
        store.control(run, "resume")
    return verdict


RETRY_REFUSALS = {
    "NOTHING": "none of its nodes has failed",
    "STOPPING": (
        "tasks of failed or cancelled nodes still run, or are still to be cancelled; try again "
        "when they have ended"
    ),
    "CHILD": "it is a node of another run. Retry that run",
    "CONTINUED": "it continued as another run. Retry that run, which latest() returns",
    "UNDONE": "its nodes were undone. Send the workflow again",
    "UNDOING": "its nodes are being undone. Retry it when it has ended, if an undo failed",
}


def skip(
    run: uuid.UUID,
    number: int,
    *,
    user: Any = None,
    actor: str | None = None,
    reason: str | None = None,
) -> None:
    """Skip a node that has not begun.

    The actor is a Django ``user``, or the text ``actor``. To skip a gate is a decision about it, so
    a user needs its permission. Raises LookupError if there is no such node, PermissionDenied if
    the user lacks the permission, and WorkflowError if the node has begun or finished.
    """
    with writing() as store:
        if user is not None:
            gate = gates(run).filter(number=number).first()
            actor = name_of_user(user) if gate is None else decider(gate, user, None)

        verdict = store.skip(run, number)
        if verdict is None:
            raise LookupError(f"there is no node {number} in the run {run}")
        if verdict != "SKIPPED":
            raise WorkflowError(
                f"node {number} of run {run} was not skipped: it has "
                f"{'begun' if verdict == 'BEGUN' else 'finished'}"
            )

        note(store, run, "workflow.skip", actor, reason, {"node": str(number)})


def note(
    store: WorkflowStore,
    run: uuid.UUID,
    action: str,
    actor: str | None,
    reason: str | None,
    after: dict[str, str],
) -> None:
    """Write an audit entry about a run if there is an actor.

    Raises WorkflowError if the actor or the reason cannot be stored.
    """
    if actor is None:
        return
    actor, reason = storable_actor(WorkflowError, f"run {run} was not changed", actor, reason)
    TaskStore(store.connection).note(run, action, actor, reason, after)


def last(store: WorkflowStore, run: uuid.UUID) -> uuid.UUID:
    """Return the last of the runs that continued one another, beginning with ``run``.

    Raises LookupError if there is no such run.
    """
    found = store.successor(run, last=True)
    if not found or found[0] is None:
        raise missing(run)
    return found[0]


def missing(run: uuid.UUID) -> LookupError:
    """Return the error for a run that does not exist."""
    return LookupError(
        f"there is no workflow run {run}: it was deleted, rolled back, or never sent"
    )


def signal(
    run: uuid.UUID, name: str, data: Any = None, *, key: str | None = None, actor: str = "code"
) -> None:
    """Send a signal to a run, or to the last of the runs as which it continued.

    ``data`` is encoded by its own type, and has to fit the annotation of a node that can take it.
    Raises LookupError if there is no such run, or if no node of it waits for the name. Raises
    WorkflowError if the signal cannot be taken.
    """
    actor = as_text(actor)
    given = [
        ("name", name, 200),
        ("actor", actor, LONGEST_NAME),
        *([] if key is None else [("key", key, LONGEST_NAME)]),
    ]
    if problem := next(filter(None, (text_problem(*one) for one in given)), None):
        raise WorkflowError(problem)

    text = encode_signal_data(name, data)
    store = reading(simulated_now.get())  # one statement is a transaction of its own
    verdict, names, misfit = offer(store, run, name, text, key, actor)

    if verdict == "ENDED" and (later := last(store, run)) != run:
        signal(later, name, data, key=key, actor=actor)
    elif verdict is None:
        raise missing(run)
    elif verdict == "TYPED":
        raise WorkflowError(
            f"the signal {name!r} was not sent: its data must be {' or '.join(names)}, but {misfit}"
        )
    elif verdict == "UNKNOWN":
        there = f"its signals are {', '.join(map(repr, names))}" if names else "it has no signals"
        raise LookupError(
            f"no node of run {run} waits for the signal {name!r}; {there}{inside(store, run, name)}"
        )
    elif verdict in UNTAKEN:
        raise WorkflowError(UNTAKEN[verdict].format(name=name, run=run))


UNTAKEN = {
    "ENDED": "run {run} has ended, and takes no signals",
    "GATE": "{name!r} of run {run} is a gate, not a signal. Approve or reject it",
    "FINISHED": "the nodes of run {run} that waited for the signal {name!r} have all finished",
}


def inside(store: WorkflowStore, run: uuid.UUID, name: str) -> str:
    """Return a sentence that names the run inside a run that waits for a signal, or ""."""
    found = store.children(run)
    for child in found:  # the loop appends the child runs
        if len(found) < 100:
            found += store.children(child)

    waiting = (
        rows("WorkflowNode", workflow_id__in=found, signal=name)
        .exclude(kind="gate")
        .order_by("workflow_id")
        .first()
    )
    if waiting is None:
        return ""

    node = rows(
        "WorkflowNode", task_id=waiting.workflow_id, kind="workflow", workflow_id__in=[run, *found]
    ).first()
    return (
        f". The run of its node {node and node.name!r} waits for it. Send the signal to run "
        f"{waiting.workflow_id}"
    )


def offer(
    store: WorkflowStore, run: uuid.UUID, name: str, data: str, key: str | None, actor: str
) -> tuple[str | None, list[str], str | None]:
    """Insert a signal if its data fits the type of a node that waits for it.

    Returns the verdict, names, and the problem of the data, or None if it fits. The names are those
    that the verdict needs: wanted types, or signals of the run.
    """
    problem = None

    # Most nodes of a name want the same type, so some are read first, and all before a refusal.
    for limit in (20, None):
        verdict, names = store.signal(run, name, key, data, actor, limit)
        problems = [fit_problem(wanted, data) for wanted in names] if verdict == "TYPED" else []
        if None in problems:
            return *store.signal(run, name, key, data, actor, 0), None
        if not problems:
            break
        problem = problems[-1]

    return verdict, names, problem


def encode_signal_data(name: str, data: Any) -> str:
    """Return data as JSON. Raises WorkflowError if it cannot be encoded or is too large."""
    try:
        # With str as the type of a lazy text, the error names the remedy.
        declared = str if is_lazy(data) else type(data)
        text = write_json(shape_of(declared, "data").encode(data, "data"))
    except (CodecError, TaskDefinitionError) as error:
        raise WorkflowError(f"the signal {name!r} was not sent: {error}") from error

    if excess := too_large(text):
        raise WorkflowError(f"the signal {name!r} was not sent: its data takes {excess}")
    return text


def decide(
    run: uuid.UUID,
    gate: str | int,
    *,
    approved: bool,
    user: Any = None,
    actor: str | None = None,
    reason: str | None = None,
) -> None:
    """Approve or reject an open gate, and note it in the audit.

    The gate is given by its name, a str, or its number, an int. If the run continued as another
    one, the gate is one of the last run. The actor is a Django ``user``, or the text ``actor`` if
    code decides by itself. Raises LookupError if there is no such run or gate, PermissionDenied if
    the user must not decide, and WorkflowError if the gate is not open, or if several open gates
    have the name.
    """
    if not is_number(gate) and (problem := text_problem("gate", gate, 200)):
        raise WorkflowError(problem)

    with writing(simulated_now.get()) as store:
        found = find_gates(last(store, run), gate)
        waiting = [one for one in found if one.status == "WAITING"]
        if len(waiting) > 1:
            numbers = ", ".join(str(one.number) for one in waiting[:MOST_GATES_NAMED])
            raise WorkflowError(
                f"run {run} has several open gates {gate!r}. Pass the number of one of them: "
                f"{numbers}"
            )

        node = waiting[0] if waiting else found[-1]
        settle(store, node, node.opening, approved, decider(node, user, actor), reason)


def decide_opening(
    run: uuid.UUID,
    number: int,
    opening: int,
    *,
    approved: bool,
    user: Any,
    reason: str | None = None,
) -> None:
    """Approve or reject one opening of the gate with this number.

    The errors are those of ``decide``.
    """
    with writing(simulated_now.get()) as store:
        node = gates(run).filter(number=number).first()
        if node is None:
            raise LookupError(f"run {run} has no gate with the number {number}")
        settle(store, node, opening, approved, decider(node, user, None), reason)


def settle(
    store: WorkflowStore,
    node: WorkflowNode,
    opening: int,
    approved: bool,
    by: str,
    reason: str | None,
) -> None:
    """Write a decision about an opening of a gate.

    Raises WorkflowError if the opening is not open any more.
    """
    run = node.workflow_id
    by, reason = storable_actor(
        WorkflowError, f"the gate {node.signal!r} of run {run} was not decided", by, reason
    )

    if not store.decide(run, node.number, opening, node.permission, approved, by, reason):
        raise WorkflowError(decision_refusal(gates(run).get(number=node.number), opening))

    details = {"gate": str(node.signal), "node": str(node.number), "opening": str(opening)}
    note(store, run, "workflow.approve" if approved else "workflow.reject", by, reason, details)


def gates(run: uuid.UUID) -> QuerySet[WorkflowNode]:
    """Return the gates of a run. The filter on the signal makes the index of names usable."""
    return rows("WorkflowNode", workflow_id=run, kind="gate", signal__isnull=False)


def find_gates(run: uuid.UUID, gate: str | int) -> list[WorkflowNode]:
    """Return the gates of a run with this name or number.

    Raises LookupError if there are none, and WorkflowError if the name is that of a signal.
    """
    found = (
        numbered(gates(run), gate)
        if is_number(gate)
        else gates(run).filter(signal=gate).order_by("number")
    )
    nodes = list(found)
    if nodes:
        return nodes

    if not is_number(gate) and rows("WorkflowNode", workflow_id=run, signal=gate).exists():
        raise WorkflowError(f"{gate!r} of run {run} is a signal, not a gate")

    names = list(
        gates(run).order_by("signal").values_list("signal", flat=True).distinct()[:MOST_GATES_NAMED]
    )
    there = f"its gates are {', '.join(map(repr, names))}" if names else "it has no gates"
    raise LookupError(f"run {run} has no gate {gate!r}; {there}{number_advice(gate)}")


def is_number(node: object) -> TypeIs[int]:
    """Return whether a node is given by its number.

    A str is always a name, even if it has only digits, because nodes may be named after orders.
    """
    return isinstance(node, int) and not isinstance(node, bool)


def numbered(nodes: QuerySet[Any], number: int) -> QuerySet[Any]:
    """Return the node with this number, or no rows if no node can have it."""
    return nodes.filter(number=number) if 0 <= number < 2**63 else nodes.none()


def number_advice(node: object) -> str:
    """Return a hint for an error about an unknown name that looks like a number, or ""."""
    if not isinstance(node, str) or not node.isdecimal():
        return ""
    return (
        ". A str is a name. Pass the number of a node as an int, or with --number on the command "
        "line"
    )


def decider(node: WorkflowNode, user: Any, actor: str | None) -> str:
    """Return the name of the user or actor who decides about a gate.

    Raises PermissionDenied if the user must not decide, WorkflowError if neither is given.
    """
    if user is None:
        if actor is None:
            raise WorkflowError(
                f"a decision about the gate {node.signal!r} needs a user or an actor. Pass "
                "user=request.user, or actor= if code decides by itself"
            )
        return actor

    if not (user.is_authenticated and user.is_active):
        raise PermissionDenied(
            f"only an active user who is logged in can decide about the gate {node.signal!r}"
        )

    if node.permission is not None and not user.has_perm(node.permission):
        raise PermissionDenied(
            f"{name_of_user(user)} does not have the permission {node.permission} of the gate "
            f"{node.signal!r}"
        )

    return name_of_user(user)


def decision_refusal(node: WorkflowNode, opening: int) -> str:
    """Return the reason why a decision about an opening of a gate did not count."""
    gate = f"the gate {node.signal!r} of run {node.workflow_id}"
    now = simulated_now.get() or timezone.now()
    over = node.finished_at is None and node.due_at is not None and node.due_at <= now

    if node.finished_at is None and node.status != "WAITING":
        return f"{gate} is not open yet. Decide when it is WAITING; this decision was not stored"
    if node.finished_at is None and node.opening != opening:
        return f"{gate} was opened again. Check it again, and decide about the new opening"

    if node.decided_by is not None:
        decision = "rejected" if node.error_code == "GATE_REJECTED" else "approved"
        return (
            f"{gate} was already {decision} by {node.decided_by} at "
            f"{local_clock_time(node.finished_at)}"
        )

    if node.status == "COMPLETED" or node.error_code == "WAIT_TIMED_OUT" or over:
        return f"{gate} is no longer open: it timed out at {local_clock_time(node.due_at)}"
    if node.finished_at is None:
        return f"{gate} requires another permission now. Try again"
    return (
        f"{gate} is no longer open: it ended as {node.status} at "
        f"{local_clock_time(node.finished_at)}"
    )


def local_clock_time(when: Any) -> str:
    """Return a time as text, without the date if that is today."""
    return clock_time(when, timezone.now(), timezone.get_current_timezone())
