"""Operations on runs: pause, resume, cancel, retry and skip a node. Used by handles, the admin and ``horsies_workflow``.

Each runs in one transaction, with the child runs; it locks a run before its children, as every operation does.
"""

from __future__ import annotations

import uuid

from horsies_django.core.errors import WorkflowError
from horsies_django.core.texts import refuse_who
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workflows import WorkflowStore
from horsies_django.workflows.database import writing


def control(run: uuid.UUID, verb: str, *, actor: str | None = None, reason: str | None = None) -> bool:
    """Pause, resume or cancel a run and its children; return whether its status changed. With an ``actor`` it is audited.

    Of runs that continued one another, the last is changed. A run that has finished, or is being compensated, stays as it is.
    Raises LookupError if there is no such run.
    """
    with writing() as store:
        run = last(store, run)
        runs, found = [run], []
        for each in runs:  # grows by the runs inside
            children = store.children(each)
            found.append(store.control(each, verb))
            runs += dict.fromkeys([*children, *store.children(each)])
        before, after = found[0]
        if before is None:
            raise missing(run)
        if before == after and last(store, run) != run:  # it continued while this waited for its lock
            return control(run, verb, actor=actor, reason=reason)
        if before != after and actor is not None:
            note(store, run, f"workflow.{verb}", actor, reason, {"before": str(before), "after": str(after)})
        return before != after


def retry(run: uuid.UUID, *, actor: str | None = None, reason: str | None = None) -> None:
    """Run the failed nodes of a run again, and those that were skipped because of them; keep what completed.

    So it is with the runs inside, and those that are paused continue. Of a run whose nodes were undone, only the failed undos
    run again; one whose value could not be given ends again. Raises LookupError if there is no such run, WorkflowError if no node
    failed, if all was undone, if tasks of a cancelled run are still running, or if it is the finished child of another run, which
    is to be retried instead.
    """
    with writing() as store:
        verdict = follow(store, run, nested=False)
        if verdict is None:
            raise missing(run)
        if verdict != "RETRIED":
            raise WorkflowError(f"run {run} was not retried: {REFUSALS[verdict]}")
        if actor is not None:
            note(store, run, "workflow.retry", actor, reason, {})


def follow(store: WorkflowStore, run: uuid.UUID, *, nested: bool) -> str | None:
    """Retry a run, and the runs inside it that have not ended; return the verdict. Those of failed nodes are retried with these.

    A run without a failed node is retried if one inside it is. What is paused continues, also if nothing in it has failed.
    """
    children = store.children(run)
    verdict = store.retry(run, nested=nested)
    if verdict not in ("RETRIED", "NOTHING"):
        return verdict
    if "RETRIED" in [follow(store, child, nested=True) for child in children]:
        verdict = "RETRIED"
    if nested or verdict == "RETRIED":
        store.control(run, "resume")
    return verdict


REFUSALS = {
    "NOTHING": "none of its nodes has failed",
    "STOPPING": "tasks of failed or cancelled nodes still run, or are still to be cancelled; try again when they have ended",
    "CHILD": "it is a node of another run: retry that one",
    "CONTINUED": "it continued as another run: retry that one, its handle is latest()",
    "UNDONE": "its nodes were undone; send it again",
    "UNDOING": "its nodes are being undone; undos that fail can be retried when it has ended",
}


def skip(run: uuid.UUID, number: int, *, actor: str | None = None, reason: str | None = None) -> None:
    """Skip a node that has not begun. Raises LookupError if there is no such node, WorkflowError if it has begun or finished."""
    with writing() as store:
        verdict = store.skip(run, number)
        if verdict is None:
            raise LookupError(f"there is no node {number} in the run {run}")
        if verdict != "SKIPPED":
            raise WorkflowError(
                f"node {number} of run {run} was not skipped: it has {'begun' if verdict == 'BEGUN' else 'finished'}"
            )
        if actor is not None:
            note(store, run, "workflow.skip", actor, reason, {"node": str(number)})


def note(
    store: WorkflowStore, run: uuid.UUID, action: str, actor: str, reason: str | None, after: dict[str, str]
) -> None:
    """Write an audit entry about a run. Raises WorkflowError for an actor or a reason that cannot be stored."""
    refuse_who(WorkflowError, f"run {run} was not changed", actor, reason)
    TaskStore(store.connection).note(run, action, actor, reason, after)


def last(store: WorkflowStore, run: uuid.UUID) -> uuid.UUID:
    """Return the last of the runs that continued one another, from ``run`` on. Raises LookupError if there is no such run."""
    found = store.successor(run, last=True)
    if not found or found[0] is None:
        raise missing(run)
    return found[0]


def missing(run: uuid.UUID) -> LookupError:
    """Return the error for a run that does not exist."""
    return LookupError(f"there is no workflow run {run}: never sent, rolled back, or deleted since")
