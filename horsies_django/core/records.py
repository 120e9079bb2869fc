"""Immutable records: NewTasks are sent, a Claim is run by a worker, an Outcome is written back."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from horsies_django.core.errors import OperationalErrorCode, OutcomeCode
from horsies_django.core.options import drops_result

# the status of an outcome whose task runs again later, without having used an attempt
SNOOZED = "SNOOZED"
# the envelope of a task that completed and whose value is not stored
NOT_KEPT = '{"ok":null,"kept":false}'


class Reply(NamedTuple):
    """The outcome of a run; for the fields see ``Outcome``."""

    status: str
    result: str
    error_code: str | None = None
    error_message: str | None = None
    retry: float | bool | Mapping[str, Any] | None = None
    returned: bool = False
    classes: tuple[str, ...] = ()
    context: str | None = None

    def packed(self) -> str | tuple[Any, ...]:
        """Return what is sent to the worker: of a task that completed its result alone, since most
        tasks do.
        """
        return self.result if self.status == "COMPLETED" else tuple(self)

    @classmethod
    def unpacked(cls, sent: str | tuple[Any, ...]) -> Reply:
        """Return the reply from what was sent to the worker."""
        return cls("COMPLETED", sent) if isinstance(sent, str) else cls._make(sent)


class NewTasks(NamedTuple):
    """Tasks of one function, validated and encoded, before they are written.

    ``ids`` and ``kwargs`` (JSON texts) are parallel lists; the other fields apply to all tasks. At
    most one of ``delay`` (from now, by the database's clock) and ``due_at`` (aware) is set, and at
    most one of ``good_for`` and ``good_until``. ``options`` is the JSON text of
    ``core/options.py``, or None. In tests, ``now`` replaces the database's clock. ``codec`` says
    how ``kwargs`` is written: None for arguments by name, "plain" for the form of
    ``core/codec/plain.py``.
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


class Claim(NamedTuple):
    """A task that this worker has claimed; ``generation`` fences every later write.

    ``kwargs`` is JSON text, which only the child decodes. ``attempt`` counts from 1; ``options`` is
    the JSON text of the options, usually None. ``sent_at`` is an epoch; ``in_run``: it is a task of
    a workflow, but no element of a map, except perhaps the first. ``due_in``: seconds from the
    claim until the task became due, negative for one that has waited. The fields are read by name
    from ``horsies_passed``, and the child gets all of them.
    """

    id: uuid.UUID
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

    def packed(self) -> tuple[Any, ...]:
        """Return the fields for a message to a child, with the number of the id: an UUID would make
        it five times as slow.

        The child's Claim keeps the number, because most tasks do not ask for their id, and to make
        an UUID of it takes a tenth of the time of an empty async task.
        """
        return (self.id.int, *self[1:])


class Fence(NamedTuple):
    """What a write of running code names, so that it fails once the task belongs to another claim:
    task, worker, generation.
    """

    task: uuid.UUID
    worker: uuid.UUID
    generation: int


class Wanted(NamedTuple):
    """What a worker can claim in one pass: free slots by lane, tasks to prefetch, and the maximum
    in total and per queue.

    ``prefetch`` and ``lease`` belong to soft mode: tasks taken ahead wait CLAIMED under that lease.
    ``batch`` 0 is no limit. Unless ``durable``, the commit of a pass that only claims and starts
    does not wait for the disk.
    """

    sync: int = 0
    async_: int = 0
    prefetch: int = 0
    total: int = 1_000_000
    batch: int = 0
    lease: dt.timedelta | None = None
    durable: bool = True


class Outcome(NamedTuple):
    """The outcome of an attempt, to be written to the database.

    ``status`` is COMPLETED, FAILED, CANCELLED or SNOOZED; ``result`` is the JSON envelope, ``{"ok":
    ...}`` or ``{"err": {...}}``. ``retry`` is True, or a retry delay in seconds, for a task that
    raised Retry; the retry policy may retry others too. Of a SNOOZED one, it is the ``stored`` of
    its Snooze, with the ``most`` snoozes that are allowed. ``returned``: the task returned the
    error. ``classes``: the names of the exception's class and its bases, to which a policy may
    refer. ``crashed``: the process of the attempt died. The remaining fields are for the log and
    for signals; ``seconds`` is how long the task occupied its slot, ``options`` the JSON text of
    its options, ``in_run`` as in ``Claim``. ``context`` is the JSON text of what the code of a
    failed attempt left for the signal ``task_failed``.
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
        """Return the status with which the task ended, SNOOZED if it runs again; ``decided``: see
        ``horsies_settle``.
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
        """Combine a claim with the reply to it, without a value that is not kept.

        A reply WORKER_CRASHED says that the process was interrupted.
        """
        if reply.status != "COMPLETED":
            crashed = crashed or reply.error_code == OperationalErrorCode.WORKER_CRASHED
        elif claim.options is not None and drops_result(claim.options):
            reply = reply._replace(result=NOT_KEPT)

        about = (
            claim.task_name,
            claim.queue_name,
            claim.attempt,
            seconds,
            claim.options,
            claim.in_run,
        )
        return cls(claim.id, claim.generation, *reply, child_pid, crashed, *about)


class TaskAttemptInfo(NamedTuple):
    """One finished attempt of a task, as returned by ``handle.info()``.

    ``exception_class`` is the dotted path of the class of the exception with which it failed; None
    without one, like ``traceback``. ``site`` is the last place of the traceback in the project's
    code, as ``shop/tasks.py in charge``, and ``site_line`` its line; None if there is none.
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
    """The row of a task as plain values, as returned by ``handle.info()``.

    ``result`` is the stored JSON envelope; ``codec`` is "plain" for a task of django.tasks, else
    None.
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
