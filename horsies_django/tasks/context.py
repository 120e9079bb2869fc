"""``current_task()``: information about the running task, for code inside it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from horsies_django.core.errors import TaskCancelled, WorkflowError


class CurrentTask:
    """The running attempt of a task.

    It has ``name``, ``queue_name`` and ``attempt`` (counted from 1). ``cancel_requested`` becomes True if the task is cancelled
    while it runs; long-running code should check it regularly, or call ``raise_if_cancelled``. Outside a worker, ``task_id`` is
    None and ``cancel_requested`` stays False.
    """

    __slots__ = ("_id", "attempt", "cancel_requested", "name", "queue_name", "workflow_cache")

    def __init__(self, task_id: str | None = None, name: str = "", attempt: int = 1, queue_name: str = "") -> None:
        self._id = task_id
        self.name = name
        self.attempt = attempt
        self.queue_name = queue_name
        self.cancel_requested = False
        self.workflow_cache: Any = None

    @property
    def task_id(self) -> uuid.UUID | None:
        """The id of the task, None outside a worker."""
        return None if self._id is None else uuid.UUID(self._id)

    def about(self) -> dict[str, str | int]:
        """Return the attributes for log records."""
        return {
            "task_id": self._id or "-",
            "task_name": self.name,
            "queue_name": self.queue_name,
            "attempt": self.attempt,
        }

    @property
    def workflow(self) -> Any:
        """The workflow of which this task is a node; its ``add`` and ``map`` add nodes. Raises WorkflowError outside a worker."""
        if self._id is None or workflow_of is None:
            raise WorkflowError("this code does not run in a task of a workflow")
        return workflow_of(self)

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if this task was cancelled; if not caught, the task ends as CANCELLED."""
        if self.cancel_requested:
            raise TaskCancelled("the task was cancelled while it ran, and stopped itself")

    def __repr__(self) -> str:
        return f"<current task {self.name or 'none'}{f' {self._id}' if self._id else ''}, attempt {self.attempt}>"


# Returns the workflow of a running task; the package ``workflows``, of a floor above, sets it.
workflow_of: Callable[[CurrentTask], Any] | None = None
running: ContextVar[CurrentTask | None] = ContextVar("horsies_current_task", default=None)


def current_task() -> CurrentTask:
    """Return the running task of the calling code; outside a worker, one without an id."""
    return running.get() or CurrentTask()


NOWHERE: dict[str, str | int] = {"task_id": "-", "task_name": "-", "queue_name": "-", "attempt": 0}


class TaskContextFilter(logging.Filter):
    """Adds ``task_id``, ``task_name``, ``queue_name`` and ``attempt`` to every log record. Discards no record.

    They describe the running task, or the task that a log line of the worker is about. Without a task they are "-", and the
    attempt is 0.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        current = running.get()
        about = NOWHERE if current is None else current.about()
        for name, value in about.items():
            record.__dict__.setdefault(name, value)
        return True
