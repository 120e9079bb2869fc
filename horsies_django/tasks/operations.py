"""What somebody does to a task that was sent: cancel it, or run it again. Handles, the admin and ``horsies_task`` come here."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from django.db import connections, transaction

from horsies_django.conf import config
from horsies_django.core.errors import TaskCopied, TaskNotRetryable
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.ids import uuid7


def cancel(
    task_ids: Iterable[uuid.UUID], *, terminate: bool = False, actor: str | None = None, reason: str | None = None
) -> dict[uuid.UUID, str]:
    """Cancel tasks, in the caller's transaction if it has one, and return the verdict on each that exists.

    "CANCELLED": it had not started and never will. "REQUESTED": it runs, and hears of it (``current_task().cancel_requested``, a
    CancelledError in async code); with ``terminate`` its process is killed if it goes on. "FINISHED": it was over. With an
    ``actor`` the audit names who and why.
    """
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
    """Run a task again and return the id under which it runs; the audit names who and why.

    One that waits for its next attempt is due at once. One that failed, expired or was cancelled is sent once more, under a new
    id and with the arguments and options that it had; the old one stays as it is. Raises LookupError when there is no such task,
    TaskNotRetryable for one that completed, that has not ended, or whose arguments were redacted, and TaskCopied for one that was
    sent once more before, unless ``again``.
    """
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
            raise TaskCopied(f"task {task_id} was run again before: {found.copy} is {found.copy_status}", found.copy)
        if not found.copied:
            raise TaskNotRetryable(f"task {task_id} {REFUSALS.get(found.status, IN_HAND).format(status=found.status)}")
        store.note(task_id, "task.retry", actor, reason, {"new": str(new)})
        return new


IN_HAND = "is {status}: it runs or will run; cancel it first if it shall start anew"
REFUSALS = {
    "COMPLETED": "completed: send it again if it shall do its work twice",
    "FAILED": "was redacted: its arguments are gone",
    "CANCELLED": "was redacted: its arguments are gone",
    "EXPIRED": "was redacted: its arguments are gone",
}
