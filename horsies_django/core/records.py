"""The frozen records that travel between floors: NewTasks go in, a Claim comes out, an Outcome goes back."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, NamedTuple

Reply = tuple[  # the fields of Outcome, status to classes
    str, str, str | None, str | None, float | bool | None, bool, tuple[str, ...]
]


class NewTasks(NamedTuple):
    """Tasks of one function as the sender made them: checked, encoded, not written yet.

    ``ids`` and ``kwargs`` (JSON texts) run side by side; the rest holds for all of them. At most one of ``delay`` (from
    now, on the database's clock) and ``due_at`` (aware) is set, and likewise of ``good_for`` and ``good_until``. ``options`` is
    the JSON text of what travels with the task to the worker (``core/options.py``), None when there is nothing. ``now`` stands
    in for the database's clock, in tests.
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


class Claim(NamedTuple):
    """A task that this worker holds: what a child needs to run it, and the generation that fences every later write.

    ``kwargs`` stays the JSON text that the database sent; only the child decodes it. ``attempt`` counts from 1; ``options``
    is the JSON text that was sent along, mostly None. ``queue_name`` is for the log.
    """

    id: uuid.UUID
    generation: int
    lane: str
    task_name: str
    kwargs: str
    attempt: int = 1
    options: str | None = None
    queue_name: str = ""


class Wanted(NamedTuple):
    """What a worker can take in one pass: free slots per lane, places in its buffer, and how many tasks in all and per queue.

    ``prefetch`` and ``lease`` belong to soft mode: tasks taken ahead wait CLAIMED under that lease. ``batch`` 0 is no limit.
    """

    sync: int = 0
    async_: int = 0
    prefetch: int = 0
    total: int = 1_000_000
    batch: int = 0
    lease: dt.timedelta | None = None


class Outcome(NamedTuple):
    """What shall become of a running task.

    ``status`` is COMPLETED, FAILED or CANCELLED; ``result`` is the JSON envelope, ``{"ok": ...}`` or ``{"err": {...}}``.
    ``retry`` is True, or a number of seconds, for a task that asked to be tried again; a policy may retry others as well.
    ``returned`` marks an error that the task returned. ``classes`` are the names of the exception's class and its bases, for an
    attempt that raised; a policy may list them. ``crashed`` marks an attempt that ended with its process. What follows is for the
    log, ``seconds`` is how long the task had its slot.
    """

    id: uuid.UUID
    generation: int
    status: str
    result: str
    error_code: str | None = None
    error_message: str | None = None
    retry: float | bool | None = None
    returned: bool = False
    classes: tuple[str, ...] = ()
    child_pid: int | None = None
    crashed: bool = False
    task_name: str = ""
    queue_name: str = ""
    attempt: int = 0
    seconds: float | None = None

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
        """Join a reply with the claim that it answers."""
        name, queue, attempt = claim.task_name, claim.queue_name, claim.attempt
        return cls(claim.id, claim.generation, *reply, child_pid, crashed, name, queue, attempt, seconds)


class TaskAttemptInfo(NamedTuple):
    """One finished attempt of a task, as ``handle.info()`` tells it."""

    attempt: int
    outcome: str
    will_retry: bool
    started_at: dt.datetime
    finished_at: dt.datetime
    error_code: str | None
    error_message: str | None
    worker_id: uuid.UUID | None
    child_pid: int | None


class TaskInfo(NamedTuple):
    """A task's row in plain values, as ``handle.info()`` tells it; ``result`` stays the stored envelope."""

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
