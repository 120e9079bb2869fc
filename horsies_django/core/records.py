"""Immutable records of tasks.

NewTasks are sent, a Claim is run by a worker, and an Outcome is written to the database.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # psycopg requires this package below Python 3.13

from horsies_django.core.errors import OperationalErrorCode, OutcomeCode
from horsies_django.core.options import drops_result

Id = TypeVar("Id", uuid.UUID, int, default=uuid.UUID)

# The status of an outcome if the same attempt of the task runs again later
SNOOZED = "SNOOZED"
# The envelope of a task that completed and whose value is not stored
NOT_KEPT = '{"ok":null,"kept":false}'


class Reply(NamedTuple):
    """The reply of a child about a claim, with the outcome of the attempt.

    For the fields, see ``Outcome``.
    """

    status: str
    result: str
    error_code: str | None = None
    error_message: str | None = None
    retry: float | bool | Mapping[str, Any] | None = None
    returned: bool = False
    classes: tuple[str, ...] = ()
    context: str | None = None

    def packed(self) -> str | tuple[Any, ...]:
        """Return the message for the worker.

        For a task that completed, as most tasks do, the message is only the result.
        """
        return self.result if self.status == "COMPLETED" else tuple(self)

    @classmethod
    def unpacked(cls, sent: str | tuple[Any, ...]) -> Reply:
        """Return the reply in a message to the worker."""
        return cls("COMPLETED", sent) if isinstance(sent, str) else cls._make(sent)


class NewTasks(NamedTuple):
    """Tasks of one function, validated and encoded, before they are written.

    ``ids`` and ``kwargs`` (JSON texts) are parallel lists. The other fields apply to all tasks. At
    most one of ``delay`` (from now, by the database's clock) and ``due_at`` (aware) is set, and at
    most one of ``good_for`` and ``good_until``. ``options`` is the JSON text of
    ``core/options.py``, or None. In tests, ``now`` replaces the database's clock. ``codec`` is None
    if ``kwargs`` has arguments by name, and "plain" for the form of ``core/codec/plain.py``.
    """

    task_name: str
    queue_name: str
    lane: str
    priority: int
    ids: list[uuid.UUID]
    kwargs: list[str]
    delay: dt.timedelta | None = None
    due_at: dt.datetime | None = None
    good_until: dt.datetime | None = None
    max_retries: int = 0
    options: str | None = None
    good_for: dt.timedelta | None = None
    now: dt.datetime | None = None
    codec: str | None = None


class Claim(NamedTuple, Generic[Id]):
    """A task that this worker has claimed.

    ``id`` is a UUID. In a child, which has a ``Claim[int]``, it is the number of the UUID.
    ``generation`` fences every later write. ``kwargs`` is JSON text, which only the child decodes.
    ``attempt`` counts from 1. ``options`` is the JSON text of the options, and usually None.
    ``sent_at`` is in seconds since the epoch. ``in_run`` is True if the task belongs to a workflow.
    For elements of a map it is False, except perhaps for the first one. ``due_in`` is the number of
    seconds from the claim until the due time, which is negative if the task has waited.

    The fields are read by name from ``horsies_passed``, and are all sent to the child.
    """

    id: Id
    generation: int
    lane: str
    task_name: str
    kwargs: str
    attempt: int = 1
    options: str | None = None
    queue_name: str = ""
    sent_at: float = 0.0
    in_run: bool = False
    due_in: float = 0.0


def packed_claim(claim: Claim) -> tuple[Any, ...]:
    """Return the fields of a claim for a message to a child, with the id as a number.

    With a UUID, the message would take five times as long. The claim of the child keeps the number,
    because most tasks do not read their id, and converting it to a UUID takes a tenth of the time
    of an empty async task.
    """
    return (claim.id.int, *claim[1:])


# Returns the claim of a child in such a message.
unpacked_claim: Callable[[Iterable[Any]], Claim[int]] = Claim[int]._make


class Fence(NamedTuple):
    """The claim that a write of running code belongs to.

    The write fails if the task belongs to another claim.
    """

    task: uuid.UUID
    worker: uuid.UUID
    generation: int


class Wanted(NamedTuple):
    """The numbers of tasks that a worker can claim in one pass.

    ``sync`` and ``async_`` are the free slots of the lanes. ``total`` is the most tasks in all, and
    ``batch`` the most tasks of a queue, where 0 means no limit. ``prefetch`` and ``lease`` belong
    to soft mode, in which prefetched tasks wait as CLAIMED under that lease. Unless ``durable``,
    the commit of a pass that only claims and starts tasks does not wait for the disk.
    """

    sync: int = 0
    async_: int = 0
    prefetch: int = 0
    total: int = 1_000_000
    batch: int = 0
    lease: dt.timedelta | None = None
    durable: bool = True


class Outcome(NamedTuple):
    """The outcome of an attempt, which the worker writes to the database.

    ``status`` is COMPLETED, FAILED, CANCELLED or SNOOZED. ``result`` is the JSON envelope, which is
    ``{"ok": ...}`` or ``{"err": {...}}``.

    ``retry`` is True or a retry delay in seconds if the task raised Retry. The retry policy may
    retry other tasks too. If the status is SNOOZED, ``retry`` is the ``stored`` of the Snooze,
    together with ``most``, the number of snoozes that are allowed.

    ``returned`` is True if the task returned the error. ``classes`` has the names of the class of
    the exception and of its bases, to which a policy may refer. ``crashed`` is True if the process
    of the attempt died. ``context`` is the JSON text of the ``failure_context`` of a failed
    attempt, for the signal ``task_failed``.

    The remaining fields are for the log and for signals. ``seconds`` is how long the task occupied
    its slot. ``options`` is the JSON text of the options. For ``in_run``, see ``Claim``.
    """

    id: uuid.UUID
    generation: int
    status: str
    result: str
    error_code: str | None = None
    error_message: str | None = None
    retry: float | bool | Mapping[str, Any] | None = None
    returned: bool = False
    classes: tuple[str, ...] = ()
    context: str | None = None
    child_pid: int | None = None
    crashed: bool = False
    task_name: str = ""
    queue_name: str = ""
    attempt: int = 0
    seconds: float | None = None
    options: str | None = None
    in_run: bool = False

    def ended_as(self, decided: Mapping[str, Any]) -> str:
        """Return the status with which the task ended, or SNOOZED if the task runs again.

        For ``decided``, see ``horsies_settle``.
        """
        if self.status != SNOOZED or "code" not in decided:
            return self.status
        return "CANCELLED" if decided["code"] == OutcomeCode.TASK_CANCELLED else "FAILED"

    @classmethod
    def of(
        cls,
        claim: Claim,
        reply: Reply,
        child_pid: int | None = None,
        *,
        crashed: bool = False,
        seconds: float | None = None,
    ) -> Outcome:
        """Return the outcome of a claim for the reply of the child.

        If the options of the task do not keep the value, the outcome does not contain it. A reply
        with the code WORKER_CRASHED counts as a crash, because the process was interrupted.
        """
        if reply.status != "COMPLETED":
            crashed = crashed or reply.error_code == OperationalErrorCode.WORKER_CRASHED
        elif claim.options is not None and drops_result(claim.options):
            reply = reply._replace(result=NOT_KEPT)

        # without the names of the arguments, which would double the time of this call
        return cls(
            claim.id,
            claim.generation,
            reply.status,
            reply.result,
            reply.error_code,
            reply.error_message,
            reply.retry,
            reply.returned,
            reply.classes,
            reply.context,
            child_pid,
            crashed,
            claim.task_name,
            claim.queue_name,
            claim.attempt,
            seconds,
            claim.options,
            claim.in_run,
        )


class TaskAttemptInfo(NamedTuple):
    """One finished attempt of a task, as ``handle.info()`` returns it.

    ``exception_class`` is the dotted path of the class of the exception with which the attempt
    failed. It is None without an exception, and so is ``traceback``. ``site`` is the last place of
    the traceback in the project's code, such as ``shop/tasks.py in charge``, and ``site_line`` is
    its line. Both are None if there is no such place.
    """

    attempt: int
    outcome: str
    will_retry: bool
    started_at: dt.datetime
    finished_at: dt.datetime
    error_code: str | None
    error_message: str | None
    worker_id: uuid.UUID | None
    child_pid: int | None
    exception_class: str | None = None
    traceback: str | None = None
    site: str | None = None
    site_line: int | None = None


class TaskInfo(NamedTuple):
    """The row of a task as plain values, as ``handle.info()`` returns it.

    ``result`` is the stored JSON envelope. ``codec`` is "plain" for a task of django.tasks, and
    None for others.
    """

    task_id: uuid.UUID
    task_name: str
    queue_name: str
    lane: str
    priority: int
    status: str
    sent_at: dt.datetime
    enqueued_at: dt.datetime
    good_until: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    cancel_requested_at: dt.datetime | None
    retry_count: int
    max_retries: int
    next_retry_at: dt.datetime | None
    error_code: str | None
    worker_id: uuid.UUID | None
    copy_of: uuid.UUID | None
    result: Any
    attempts: tuple[TaskAttemptInfo, ...]
    codec: str | None = None
