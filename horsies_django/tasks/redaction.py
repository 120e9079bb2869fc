"""Personal data that has to go: a finished task loses what its caller and its code put into it, and keeps what it was."""

from __future__ import annotations

import uuid

from django.db import connections

from horsies_django.conf import config
from horsies_django.core.errors import TaskNotFinished
from horsies_django.core.status import TERMINAL
from horsies_django.store.retention import RetentionStore
from horsies_django.tasks.handle import TaskHandle

__all__ = ["TaskNotFinished", "redact"]

FINAL = frozenset(status.value for status in TERMINAL)


def redact(task_id: uuid.UUID | str, *, actor: str, reason: str) -> bool:
    """Remove arguments, result, messages and a partition made of arguments from a finished task; the audit names who and why.

    Returns False when it was redacted before. Afterwards ``get()`` gives the error RESULT_REDACTED for a task that completed, and
    the task's own error without its message, data and exception for one that did not. Runs in the transaction that is open, if
    any. Raises LookupError when there is no such task, TaskNotFinished while it waits or runs, ValueError for an id that is no
    UUID and without a reason.
    """
    id_ = TaskHandle(task_id).task_id
    if not reason.strip():
        raise ValueError(
            "a redaction needs a reason, for whoever finds it later; the audit keeps it, so name nobody in it"
        )
    alias = config().database
    status, redacted = RetentionStore(connections[alias]).redact(id_, actor=actor, reason=reason)
    if status is None:
        raise LookupError(
            f"there is no task {id_} in the database {alias!r}: never sent, rolled back, or deleted since"
        )
    if not redacted and status not in FINAL:
        raise TaskNotFinished(
            f"task {id_} is {status}: only a finished task can be redacted; cancel it first, or wait for its end"
        )
    return redacted
