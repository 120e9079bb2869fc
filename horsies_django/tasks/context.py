"""``current_task()``: what code that runs inside a task may ask about that very run."""

from __future__ import annotations

import logging
import uuid
from contextvars import ContextVar

from horsies_django.core.errors import TaskCancelled


class CurrentTask:
    """One attempt of a task, as its own code sees it.

    ``name``, ``queue_name`` and ``attempt`` (from 1) say what runs. ``cancel_requested`` becomes True when somebody cancels
    the task while it runs; code that runs long asks now and then, or calls ``raise_if_cancelled``. Outside a worker, where a
    task function is just called, ``task_id`` is None and nobody cancels.
    """

    __slots__ = ("_id", "attempt", "cancel_requested", "name", "queue_name")

    def __init__(self, task_id: str | None = None, name: str = "", attempt: int = 1, queue_name: str = "") -> None:
        self._id = task_id
        self.name = name
        self.attempt = attempt
        self.queue_name = queue_name
        self.cancel_requested = False

    @property
    def task_id(self) -> uuid.UUID | None:
        """The task's id; ``get_handle`` takes it."""
        return None if self._id is None else uuid.UUID(self._id)

    def about(self) -> dict[str, str | int]:
        """Return what a record of the log says about it."""
        return {
            "task_id": self._id or "-",
            "task_name": self.name,
            "queue_name": self.queue_name,
            "attempt": self.attempt,
        }

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if somebody cancelled this task: uncaught, it ends CANCELLED."""
        if self.cancel_requested:
            raise TaskCancelled("the task was cancelled while it ran, and stopped itself")

    def __repr__(self) -> str:
        return f"<current task {self.name or 'none'}{f' {self._id}' if self._id else ''}, attempt {self.attempt}>"


running: ContextVar[CurrentTask | None] = ContextVar("horsies_current_task", default=None)


def current_task() -> CurrentTask:
    """Return the run that this code belongs to; one without an id where no worker runs it."""
    return running.get() or CurrentTask()


NOWHERE: dict[str, str | int] = {"task_id": "-", "task_name": "-", "queue_name": "-", "attempt": 0}


class TaskContextFilter(logging.Filter):
    """Gives every record ``task_id``, ``task_name``, ``queue_name`` and ``attempt``; lets all of them pass.

    They are those of the task whose code logs, or that a line of the worker is about. Where there is none they are "-", and 0 for
    the attempt.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        current = running.get()
        about = NOWHERE if current is None else current.about()
        for name, value in about.items():
            record.__dict__.setdefault(name, value)
        return True
