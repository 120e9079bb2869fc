"""Redaction, which removes personal data from finished tasks."""

from __future__ import annotations

import uuid

from django.db import connections

from horsies_django.conf import config
from horsies_django.core.errors import TaskNotFinished
from horsies_django.core.status import FINAL_STATUSES
from horsies_django.core.texts import NEEDS_REASON, storable_actor
from horsies_django.store.retention import RetentionStore
from horsies_django.tasks.handle import TaskHandle

__all__ = ["TaskNotFinished", "redact"]


def redact(task_id: uuid.UUID | str, *, actor: str, reason: str) -> bool:
    """Remove personal data from a finished task, and return False if it was already redacted.

    The arguments, the result, the steps, the messages and a partition key made of arguments are
    removed. The operation is audited, and is part of the open transaction, if there is one. Then
    ``get()`` returns the error RESULT_REDACTED for a completed task, and the error of the task
    without message, data and exception for any other.

    Raises LookupError if there is no such task, and TaskNotFinished if it has not finished. Raises
    ValueError if the id is not a UUID, the reason is empty, or the actor or the reason cannot be
    stored.
    """
    id_ = TaskHandle(task_id).task_id
    actor, reason = storable_actor(ValueError, f"task {id_} was not redacted", actor, reason)
    if not reason.strip():
        raise ValueError(NEEDS_REASON)

    alias = config().database
    status, redacted = RetentionStore(connections[alias]).redact(id_, actor=actor, reason=reason)
    if status is None:
        raise LookupError(
            f"there is no task {id_} in the database {alias!r}: it was deleted, rolled back, "
            "or never sent"
        )

    if not redacted and status not in FINAL_STATUSES:
        raise TaskNotFinished(
            f"task {id_} is {status}: only a finished task can be redacted; cancel it first, or "
            "wait until it has finished"
        )

    return redacted
