"""The exceptions in ``TaskResult.errors`` for tasks that ended although their code did not raise.

They are never raised; ``TaskError.exception_class`` returns them.

- ``TaskCancelled``: the task was cancelled.
- ``TaskTimeout``: its time was over.
- ``TaskFailed``: the worker could not run it, or could not store its result. The traceback has the
  reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from horsies_django.core.errors import HorsiesError, Skip, TaskCancelled, TaskTimeout
from horsies_django.core.results import TaskFailed

__all__ = ["Skip", "TaskCancelled", "TaskExpired", "TaskFailed", "TaskTimeout", "WorkerCrashed"]


class TaskExpired(HorsiesError):  # noqa: N818 - a state of the task
    """The task did not start before its ``good_until``."""


class WorkerCrashed(HorsiesError):  # noqa: N818 - a state of the process
    """The process or the worker that ran the task died, or was interrupted.

    The task may or may not have done its work.
    """


# error code -> class; the class of all other codes is TaskFailed
CLASSES_BY_CODE: Mapping[str, type[BaseException]] = {
    "POISON": WorkerCrashed,
    "TASK_CANCELLED": TaskCancelled,
    "TASK_EXPIRED": TaskExpired,
    "TASK_SKIPPED": Skip,
    "TASK_TIMEOUT": TaskTimeout,
    "WORKER_CRASHED": WorkerCrashed,
}
