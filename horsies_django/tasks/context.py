"""``current_task()``: information about the running task, for code inside it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from horsies_django.core.errors import TaskCancelled, WorkflowError
from horsies_django.core.metadata import read_metadata
from horsies_django.core.records import Fence
from horsies_django.tasks.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")


class CurrentTask:
    """The running attempt of a task.

    It has ``name``, ``queue_name`` and ``attempt`` (counted from 1). ``cancel_requested`` becomes True if the task is cancelled
    while it runs; long-running code should check it regularly, or call ``raise_if_cancelled``. Outside a worker, ``task_id`` is
    None and ``cancel_requested`` stays False.
    """

    __slots__ = (
        "_claim", "_id", "_metadata", "_options", "_steps", "attempt", "cancel_requested", "name", "queue_name", "workflow_cache",
    )  # fmt: skip

    def __init__(
        self,
        task_id: str | None = None,
        name: str = "",
        attempt: int = 1,
        queue_name: str = "",
        worker: str = "",
        generation: int = 0,
        options: str | None = None,
    ) -> None:
        self._id = task_id
        self._claim = (worker, generation)
        self._options = options  # JSON, if they contain metadata
        self._metadata: Mapping[str, Any] | None = None
        self._steps: Steps | None = None
        self.name = name
        self.attempt = attempt
        self.queue_name = queue_name
        self.cancel_requested = False
        self.workflow_cache: Any = None

    @property
    def task_id(self) -> uuid.UUID | None:
        """The id of the task, None outside a worker."""
        return None if self._id is None else uuid.UUID(self._id)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was sent with the task beside its arguments, read-only; empty without any and outside a worker."""
        if self._metadata is None:
            self._metadata = read_metadata(self._options)
        return self._metadata

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the task, "" outside a worker."""
        return self._claim[0]

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

    @overload
    def step(self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool, **kwargs: Any) -> T: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(  # type: ignore[misc]  # a parameter of the function that is named atomic is refused at run time
        self, name: str, function: Callable[..., Any], /, *args: Any, atomic: bool = True, **kwargs: Any
    ) -> Any:
        """Call ``function(*args, **kwargs)`` once per task, and return the recorded result in later attempts.

        With ``atomic``, the call and its record are one transaction on the alias HORSIES["DATABASE"]; without, no transaction is
        open during the call, and the record is written after it. ``name`` identifies the step within the task. Outside a worker
        nothing is recorded. Raises StepError in an open transaction, for the same name with other arguments, and for arguments
        and results that cannot be encoded; StaleAttempt if the task was given to another attempt; and what the function raises.
        """
        return self._recorder().run(name, function, args, kwargs, atomic=atomic)

    @overload
    async def astep(
        self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, atomic: bool, **kwargs: Any
    ) -> T: ...
    @overload
    async def astep(self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool, **kwargs: Any) -> T: ...
    @overload
    async def astep(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(  # type: ignore[misc]
        self, name: str, function: Callable[..., Any], /, *args: Any, atomic: bool = True, **kwargs: Any
    ) -> Any:
        """Do the same from async code. A sync function runs in Django's thread for sync code; a coroutine function needs
        ``atomic=False``, because Django's transactions are sync.
        """
        return await self._recorder().arun(name, function, args, kwargs, atomic=atomic)

    def _recorder(self) -> Steps:
        if self._steps is None:
            worker, generation = self._claim
            fence = Fence(uuid.UUID(self._id), uuid.UUID(worker), generation) if self._id and worker else None
            self._steps = Steps(fence)
        return self._steps

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
