"""Operations on tasks that were sent: cancel and run again. Used by handles, the admin and ``horsies_task``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from django.db import connections, transaction

from horsies_django.conf import config
from horsies_django.core.errors import TaskCopied, TaskNotRetryable
from horsies_django.core.texts import refuse_who
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7


def cancel(
    task_ids: Iterable[uuid.UUID], *, terminate: bool = False, actor: str | None = None, reason: str | None = None
) -> dict[uuid.UUID, str]:
    """Cancel tasks, in the caller's transaction if it has one, and return the outcome for each task that exists.

    "CANCELLED": it had not started and never will. "REQUESTED": it is running and was asked to stop
    (``current_task().cancel_requested``, a CancelledError in async code); with ``terminate`` its process is killed if it does not
    stop. "FINISHED": it had already finished. With an ``actor``, the operation is audited with ``reason``. Raises ValueError if
    these cannot be stored.
    """
    if actor is not None:
        refuse_who(ValueError, "no task was cancelled", actor, reason)
    alias = config().database
    connection = connections[alias]
    store = TaskStore(connection)
    with transaction.atomic(using=alias):
        verdicts = store.cancel(task_ids, channel_prefix(connection), terminate=terminate)
        for id_, verdict in verdicts.items():
            if actor is not None and verdict != "FINISHED":
                store.note(id_, "task.terminate" if terminate else "task.cancel", actor, reason, {"verdict": verdict})
    return verdicts


def retry(task_id: uuid.UUID, *, actor: str, reason: str | None = None, again: bool = False) -> uuid.UUID:
    """Run a task again and return the id under which it runs. The operation is audited with ``actor`` and ``reason``.

    A task that waits for a retry becomes due now. A task that failed, expired or was cancelled is sent again under a new id, with
    the same arguments and options; the old task is unchanged. Raises LookupError if there is no such task, TaskNotRetryable for
    one that completed, has not finished, or was redacted, TaskCopied for one that has already been sent again, unless ``again``,
    and ValueError for an actor or a reason that cannot be stored.
    """
    refuse_who(ValueError, f"task {task_id} was not run again", actor, reason)
    alias = config().database
    connection = connections[alias]
    store = TaskStore(connection)
    with transaction.atomic(using=alias):
        if store.retry_now(task_id, channel_prefix(connection)):
            store.note(task_id, "task.retry", actor, reason, {"due": "now"})
            return task_id
        new = uuid7()
        found = store.copy(task_id, new, again=again)
        if found is None:
            raise LookupError(f"there is no task {task_id} in the database {alias!r}")
        if found.copy is not None and not again:
            raise TaskCopied(
                f"task {task_id} has already been run again: {found.copy} is {found.copy_status}", found.copy
            )
        if not found.copied:
            raise TaskNotRetryable(f"task {task_id} {REFUSALS.get(found.status, IN_HAND).format(status=found.status)}")
        store.note(task_id, "task.retry", actor, reason, {"new": str(new)})
        return new


IN_HAND = "is {status}: cancel it before running it again"
REFUSALS = {
    "COMPLETED": "completed: send a new task to repeat its work",
    "FAILED": "was redacted, so its arguments are gone",
    "CANCELLED": "was redacted, so its arguments are gone",
    "EXPIRED": "was redacted, so its arguments are gone",
}
