"""What can go wrong, and the names it goes by: the built-in error codes by family, and the exceptions the house raises."""

from __future__ import annotations

import enum
import re
import uuid

CODE_PATTERN = re.compile(r"[A-Z][A-Z0-9_]{0,99}")


class ErrorCode(enum.StrEnum):
    """Base of the built-in families; their values are reserved: user code cannot create an error that carries one."""


class OperationalErrorCode(ErrorCode):
    """The machinery failed, or user code failed without a code of its own."""

    UNHANDLED_ERROR = "UNHANDLED_ERROR"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    POISON = "POISON"


class ContractCode(ErrorCode):
    """A task broke what its own signature declares."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"


class RetrievalCode(ErrorCode):
    """A result could not be had, now or any more; the task itself may be fine."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    RESULT_REDACTED = "RESULT_REDACTED"


class OutcomeCode(ErrorCode):
    """How a task ended when neither it nor the machinery failed."""

    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    RETRY_REQUESTED = "RETRY_REQUESTED"


class TaskSendErrorCode(ErrorCode):
    """Why a task was not sent."""

    SEND_SUPPRESSED = "SEND_SUPPRESSED"
    ASYNC_CONTEXT = "ASYNC_CONTEXT"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"


FAMILIES: tuple[type[ErrorCode], ...] = (
    OperationalErrorCode,
    ContractCode,
    RetrievalCode,
    OutcomeCode,
    TaskSendErrorCode,
)
RESERVED: frozenset[str] = frozenset(code.value for family in FAMILIES for code in family)


def code_problem(code: object) -> str | None:
    """Return why ``code`` cannot be a user's error code, or None when it can."""
    if not isinstance(code, str):
        return f"an error code is a str, not {type(code).__name__}"
    if not CODE_PATTERN.fullmatch(code):
        return f"error code {code[:120]!r}: use upper-case letters, digits and underscores, at most 100, as in 'MAILBOX_FULL'"
    if code in RESERVED:
        return f"error code {code!r} is reserved for horsies_django itself: choose a name of your own"
    return None


class HorsiesError(Exception):
    """Base of every exception that horsies_django raises on purpose."""


class TaskDefinitionError(HorsiesError):
    """A function cannot be a task as it is written; the message shows what to write instead."""


class TaskSendError(HorsiesError):
    """A task was not sent; nothing was written.

    ``code`` is a TaskSendErrorCode; ``retryable`` says whether the same send may succeed later.
    """

    def __init__(self, code: TaskSendErrorCode, message: str) -> None:
        super().__init__(f"[{code.value}] {message}")
        self.code = code
        self.message = message
        self.retryable = code is TaskSendErrorCode.ENQUEUE_FAILED


class TaskNotCommitted(HorsiesError):  # noqa: N818 - a state of the caller, not a failure of the task
    """``get()`` would wait for ever: the task was sent in this transaction, which no worker can see yet."""


class TaskNotRetryable(HorsiesError):  # noqa: N818 - a state of the task
    """A task was not run again: it completed, it has not ended, or its arguments are gone."""


class TaskCopied(TaskNotRetryable):
    """A task was not run again: that was done before, and nobody asked for another copy. ``copy`` is the id of the newest."""

    def __init__(self, message: str, copy: uuid.UUID) -> None:
        super().__init__(message)
        self.copy = copy


class QueueError(HorsiesError):
    """A queue was not changed: no such queue, a limit that cannot be, or limits that somebody keeps locked."""


class ScheduleError(HorsiesError):
    """A schedule cannot be what was asked for; nothing was changed."""


class TaskNotFinished(HorsiesError):  # noqa: N818 - a state of the task, not a failure
    """What was asked for can be done only once the task is finished."""


class WorkerStartError(HorsiesError):
    """The worker refuses to start; the message says why and what to do."""


class TaskCancelled(HorsiesError):  # noqa: N818 - somebody wanted it so
    """Raised by ``current_task().raise_if_cancelled()``: a task that ends with it is CANCELLED."""


class TaskTimeout(BaseException):  # noqa: N818 - the time was over; nothing broke
    """Raised in the middle of a sync task whose ``timeout_ms`` has passed; an async one is cancelled instead.

    It passes ``except Exception``. Code that must clean up catches it, does so, and lets it go on: after a grace the process
    is killed.
    """
