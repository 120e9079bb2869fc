"""Operations on tasks that were sent: cancel, retry, copy, skip and purge.

Handles, the admin and the command ``horsies_task`` use them.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.db import OperationalError, connections, transaction

from horsies_django.conf import config
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.core.texts import storable_actor
from horsies_django.store.base import LOCK_NOT_AVAILABLE
from horsies_django.store.notify import channel_prefix
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7


def cancel(
    task_ids: Iterable[uuid.UUID],
    *,
    terminate: bool = False,
    actor: str | None = None,
    reason: str | None = None,
) -> dict[uuid.UUID, str]:
    """Cancel tasks, and return the verdict for each task that exists.

    The cancellation is part of the caller's transaction, if one is open. The verdict is "CANCELLED"
    if the task had not started. It will never start. The verdict is "REQUESTED" if the task is
    running and was requested to stop: ``current_task().cancel_requested`` becomes True, and in
    async code CancelledError is raised. With ``terminate``, the process of the task is killed if
    the task does not stop. The verdict is "FINISHED" if the task had already finished.

    With an ``actor``, the operation is audited with ``reason``. Raises ValueError if the actor or
    the reason cannot be stored.
    """
    if actor is not None:
        actor, reason = storable_actor(ValueError, "no task was cancelled", actor, reason)

    alias = config().database
    connection = connections[alias]
    store = TaskStore(connection)

    with transaction.atomic(using=alias):
        verdicts = store.cancel(task_ids, channel_prefix(connection), terminate=terminate)
        for id_, verdict in verdicts.items():
            if actor is not None and verdict != "FINISHED":
                store.note(
                    id_,
                    "task.terminate" if terminate else "task.cancel",
                    actor,
                    reason,
                    {"verdict": verdict},
                )

    return verdicts


def retry(task_id: uuid.UUID, *, actor: str | None = None, reason: str | None = None) -> None:
    """Run a task again, under the same id, if it failed, expired or was cancelled.

    The change is part of the caller's transaction, if one is open. The task is due now and has no
    ``good_until`` any more. Its attempts are kept, and the next one has the next number. Its retry
    policy begins anew. If the task waits for a retry, the retry is due now. With an ``actor``, the
    operation is audited with ``reason``.

    Raises LookupError if there is no such task. Raises TaskNotRetryable if the task completed, has
    not finished, was redacted or merged into another task, or belongs to a workflow run. It is also
    raised if the task is unique and another task is the same work, and if an open transaction locks
    the task for longer than ``UNIQUE_LOCK_TIMEOUT_MS``. Raises ValueError if the actor or the
    reason cannot be stored.
    """
    if actor is not None:
        actor, reason = storable_actor(ValueError, f"task {task_id} was not retried", actor, reason)

    alias = config().database
    connection = connections[alias]
    store = TaskStore(connection)
    patience = f"{config().unique_lock_timeout_ms}ms"

    with transaction.atomic(using=alias):
        try:
            verdict, other = store.retry(task_id, channel_prefix(connection), patience)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            raise TaskNotRetryable(f"task {task_id} {TASK_REFUSALS['LOCKED']}") from error

        if verdict is None:
            raise LookupError(f"there is no task {task_id} in the database {alias!r}")
        if verdict not in ("RETRIED", "HASTENED"):
            refusal = TASK_REFUSALS.get(verdict, IN_HAND).format(status=verdict, other=other)
            raise TaskNotRetryable(f"task {task_id} {refusal}")

        if actor is not None:
            store.note(task_id, "task.retry", actor, reason, {"due": "now"})


def copy(task_id: uuid.UUID, *, actor: str, reason: str | None = None) -> uuid.UUID:
    """Send a copy of a finished task, and return the id of the copy.

    The copy has the same arguments and options, and is due now. The operation is audited. Raises
    LookupError if there is no such task, TaskNotRetryable if the task has not finished or was
    redacted, and ValueError if the actor or the reason cannot be stored.
    """
    actor, reason = storable_actor(ValueError, f"task {task_id} was not copied", actor, reason)
    alias = config().database
    store = TaskStore(connections[alias])

    with transaction.atomic(using=alias):
        new = uuid7()
        found = store.copy(task_id, new)

        if found is None:
            raise LookupError(f"there is no task {task_id} in the database {alias!r}")
        if not found.copied:
            verdict = "REDACTED" if found.redacted else found.status
            raise TaskNotRetryable(
                f"task {task_id} {TASK_REFUSALS.get(verdict, IN_HAND).format(status=verdict)}"
            )

        store.note(task_id, "task.copy", actor, reason, {"new": str(new)})
        return new


def skip(task_id: uuid.UUID, *, actor: str, reason: str) -> bool:
    """Give up a failed task that stops its key in an ordered queue, so that the next task starts.

    Return True, or False if the task does not stop a key. The failed task itself does not change.
    The operation is audited for the queue and for the task. Raises ValueError if the actor or the
    reason cannot be stored.
    """
    actor, reason = storable_actor(ValueError, f"task {task_id} was not skipped", actor, reason)
    alias = config().database

    with transaction.atomic(using=alias):
        skipped = QueueStore(connections[alias]).skip(task_id, None, actor=actor, reason=reason)
        if skipped.id is not None:
            TaskStore(connections[alias]).note(task_id, "task.skip", actor, reason, {})

    return skipped.id is not None


def purge(
    status: str = "FINISHED",
    *,
    until: dt.datetime,
    actor: str,
    reason: str | None = None,
    since: dt.datetime | None = None,
    **attributes: Any,
) -> dict[str, int]:
    """Delete finished tasks, and return how many are ``DELETED``, ``KEPT`` and ``LOCKED``.

    Only tasks that finished from ``since`` to ``until``, and have the status and the attributes,
    are deleted. ``status`` is a final status, "UNSUCCESSFUL" for all but COMPLETED, or "FINISHED"
    for all. ``attributes`` are ``queue``, ``name`` (or a part of it), ``code``, ``site``,
    ``exception``, ``partition`` and ``worker``.

    Tasks are deleted in steps of 500. Each step has an entry in the audit, and is a transaction of
    its own unless one is open. Tasks that stop their partition are kept. Tasks of workflow runs are
    neither deleted nor counted. Raises ValueError if the status is not a final one, the attributes
    cannot be combined, or the actor or the reason cannot be stored.
    """
    # Imported here, because models cannot be imported before Django is set up.
    from horsies_django.models.fields import aware
    from horsies_django.tasks.selection import ENDED, act_on_all, matching

    if status not in ENDED:
        raise ValueError(
            f"purge applies only to tasks that are {', '.join(sorted(ENDED))}, not {status}"
        )

    chosen = matching(status, until=aware(until), since=since and aware(since), **attributes)
    verdicts: Counter[str] = Counter()
    for step in act_on_all(chosen, "purge", actor=actor, reason=reason):
        verdicts.update(step.verdicts)

    return dict(verdicts)


IN_HAND = "is {status}: it has not finished"
TASK_REFUSALS = {
    "COMPLETED": "completed: send a copy to run it again",
    "REDACTED": "was redacted, so its arguments were removed",
    "IN_WORKFLOW": "belongs to the workflow run {other}: retry the run",
    "MERGED": "was merged into task {other}, which ran for it: retry that task",
    "DUPLICATE": "is unique, and task {other} is a duplicate of it: see whether that completes",
    "LOCKED": "cannot be retried now: an open transaction has locked it or a task that it cancels, "
    "or sends a duplicate. Try again when that transaction has ended",
}
