"""The built-in error codes by family, and the exceptions that horsies_django raises."""

from __future__ import annotations

import enum
import re
from typing import Any

CODE_PATTERN = re.compile(r"[A-Z][A-Z0-9_]{0,99}")


class ErrorCode(enum.StrEnum):
    """The base class of the families of built-in error codes.

    The codes are reserved, so user code cannot create an error with one of them.
    """


class OperationalErrorCode(ErrorCode):
    """The codes of failures of the worker, and of user code without an error code of its own."""

    UNHANDLED_ERROR = "UNHANDLED_ERROR"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    POISON = "POISON"


class ContractCode(ErrorCode):
    """The codes of tasks that violated their own signature."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"


class RetrievalCode(ErrorCode):
    """The codes of results that are not available yet or any more.

    The task itself may have succeeded.
    """

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    RESULT_REDACTED = "RESULT_REDACTED"


class OutcomeCode(ErrorCode):
    """The codes of tasks that ended although neither their code nor the worker failed."""

    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TASK_SKIPPED = "TASK_SKIPPED"
    RETRY_REQUESTED = "RETRY_REQUESTED"
    SNOOZED_TOO_OFTEN = "SNOOZED_TOO_OFTEN"
    ORDER_CANCELLED = "ORDER_CANCELLED"
    MERGED = "MERGED"


class WorkflowCode(ErrorCode):
    """The codes of workflow runs and nodes that ended for another reason than their task."""

    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_ENDED = "WORKFLOW_ENDED"
    WORKFLOW_CONTINUED = "WORKFLOW_CONTINUED"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    SKIPPED_BY_HAND = "SKIPPED_BY_HAND"
    WAIT_TIMED_OUT = "WAIT_TIMED_OUT"
    GATE_REJECTED = "GATE_REJECTED"
    QUORUM_NOT_MET = "QUORUM_NOT_MET"
    MAP_FAILED = "MAP_FAILED"
    MAP_WITHOUT_LIST = "MAP_WITHOUT_LIST"
    NODE_NOT_SENT = "NODE_NOT_SENT"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class TaskSendErrorCode(ErrorCode):
    """The codes of reasons why a task was not sent."""

    SEND_SUPPRESSED = "SEND_SUPPRESSED"
    ASYNC_CONTEXT = "ASYNC_CONTEXT"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    KEY_CONFLICT = "KEY_CONFLICT"
    DUPLICATE = "DUPLICATE"


FAMILIES: tuple[type[ErrorCode], ...] = tuple(ErrorCode.__subclasses__())
RESERVED: frozenset[str] = frozenset(code.value for family in FAMILIES for code in family)


def code_problem(code: object) -> str | None:
    """Return the problem with an error code of user code, or None if it is valid."""
    if not isinstance(code, str):
        return f"an error code must be a str, not {type(code).__name__}"
    if not CODE_PATTERN.fullmatch(code):
        return (
            f"error code {code[:120]!r}: use upper-case letters, digits and underscores, at most "
            "100, as in 'MAILBOX_FULL'"
        )
    if code in RESERVED:
        return f"error code {code!r} is reserved for horsies_django: choose a name of your own"

    return None


class Restorable(BaseException):
    """An exception that can be pickled and copied if its class has other parameters than a text.

    The ``__reduce__`` of Exception would call the class with the text alone.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


class HorsiesError(Restorable, Exception):
    """The base class of all exceptions that horsies_django raises on purpose."""


def _restored(
    kind: type[Restorable], args: tuple[Any, ...], attributes: dict[str, Any]
) -> Restorable:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class TaskDefinitionError(HorsiesError):
    """A function cannot be a task. The message contains the correction."""


class TaskSendError(HorsiesError):
    """A task was not sent, and nothing was written.

    ``code`` is a TaskSendErrorCode. ``retryable`` is True if sending the same task may succeed
    later.
    """

    def __init__(self, code: TaskSendErrorCode, message: str) -> None:
        super().__init__(f"[{code.value}] {message}")
        self.code = code
        self.message = message
        self.retryable = code is TaskSendErrorCode.ENQUEUE_FAILED


class TaskNotCommitted(HorsiesError):  # noqa: N818 - a state of the caller, not a failure of the task
    """A task whose result is awaited was sent in a transaction that is still open.

    ``get()`` raises it, because no worker can see the task before the commit.
    """


class TaskNotRetryable(HorsiesError):  # noqa: N818 - a state of the task
    """A task was not retried or copied.

    The message contains the reason. For example, the task has not finished, was redacted, or
    belongs to a workflow run.
    """


class QueueError(HorsiesError):
    """A queue was not changed.

    It does not exist, a value is invalid, or the limits are locked.
    """


class ScheduleError(HorsiesError):
    """An operation on a schedule failed, and changed nothing. The message contains the reason."""


class WorkflowDefinitionError(HorsiesError):
    """A workflow was not sent, and nothing was written.

    ``problems`` has all problems of its graph.
    """

    def __init__(self, name: str, problems: list[str]) -> None:
        shown = "\n".join(f"- {problem}" for problem in problems)
        super().__init__(f"the workflow {name!r} was not sent:\n{shown}")
        self.problems = problems


class WorkflowError(HorsiesError):
    """An operation on a workflow was refused, and changed nothing.

    The message contains the reason.
    """


class StepError(HorsiesError):
    """A step of a task was refused, or failed outside of its function.

    The step was not recorded. The message contains the reason.
    """


class StaleAttempt(StepError):  # noqa: N818 - a state of the attempt
    """A step was not recorded, because the task no longer belongs to this attempt.

    If the step is atomic, it was rolled back.
    """


class Skip(HorsiesError):  # noqa: N818 - requested, not an error
    """The exception with which a task ends itself as skipped.

    The task is CANCELLED with the code TASK_SKIPPED, and its workflow node is SKIPPED.
    """


class TaskNotFinished(HorsiesError):  # noqa: N818 - a state of the task, not a failure
    """An operation was refused because it requires a finished task."""


class WorkerStartError(HorsiesError):
    """The worker cannot start. The message contains the reason and the remedy."""


class StopRequested(BaseException):
    """A signal arrived before the worker had started.

    It is a BaseException, so that imports and retries do not catch it.
    """


class TaskCancelled(HorsiesError):  # noqa: N818 - requested, not an error
    """The exception that ``current_task().raise_if_cancelled()`` raises.

    A task that ends with it is CANCELLED.
    """


class TaskTimeout(BaseException):  # noqa: N818 - a limit was reached; not an error
    """The exception that is raised in a sync task after its ``timeout_ms`` has passed.

    In an async task, CancelledError is raised instead. ``except Exception`` does not catch
    TaskTimeout. Code that catches it to clean up must raise it again, because the process is killed
    if the task is still running after ``KILL_GRACE_MS``.
    """
