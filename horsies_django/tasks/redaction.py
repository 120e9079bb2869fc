"""Removes personal data from finished tasks: arguments, results and messages."""

from __future__ import annotations

import uuid

from django.db import connections

from horsies_django.conf import config
from horsies_django.core.errors import TaskNotFinished
from horsies_django.core.status import FINAL
from horsies_django.core.texts import NEEDS_REASON, storable_who
from horsies_django.store.retention import RetentionStore
from horsies_django.tasks.handle import TaskHandle

__all__ = ["TaskNotFinished", "redact"]


def redact(task_id: uuid.UUID | str, *, actor: str, reason: str) -> bool:
    """Remove arguments, result, steps, messages and a partition key made of arguments from a
    finished task, and audit that.

    Returns False if the task is already redacted. Afterwards ``get()`` returns the error
    RESULT_REDACTED for a completed task, and the error of the task without message, data and
    exception for any other. Runs in the open transaction, if any. Raises LookupError if there is no
    such task, TaskNotFinished while it waits or runs, ValueError for an id that is not a UUID or an
    empty reason, or an actor or a reason that cannot be stored.
    """
    id_ = TaskHandle(task_id).task_id
    actor, reason = storable_who(ValueError, f"task {id_} was not redacted", actor, reason)
    if not reason.strip():
        raise ValueError(NEEDS_REASON)

    alias = config().database
    status, redacted = RetentionStore(connections[alias]).redact(id_, actor=actor, reason=reason)
    if status is None:
        raise LookupError(
            f"there is no task {id_} in the database {alias!r}: never sent, rolled back, or "
            "deleted since"
        )

    if not redacted and status not in FINAL:
        raise TaskNotFinished(
            f"task {id_} is {status}: only a finished task can be redacted; cancel it first, or "
            "wait until it has finished"
        )

    return redacted
