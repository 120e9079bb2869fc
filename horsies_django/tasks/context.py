"""``current_task()``, which returns information about the running task to the code inside it."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from horsies_django.core.errors import TaskCancelled, WorkflowError
from horsies_django.core.metadata import read_metadata
from horsies_django.core.records import Claim, Fence
from horsies_django.tasks.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")


NO_CLAIM = Claim(uuid.UUID(int=0), 0, "", "", "")  # the claim of code that runs outside a worker


class CurrentTask:
    """The running attempt of a task.

    ``cancel_requested`` becomes True if the task is cancelled while it runs. Long-running code
    should check it regularly, or call ``raise_if_cancelled``. Outside a worker, ``task_id`` and
    ``sent_at`` are None and ``cancel_requested`` stays False.
    """

    __slots__ = (
        "_claim",
        "_failure_context",
        "_metadata",
        "_steps",
        "_worker",
        "cancel_requested",
        "interrupted",
        "workflow_cache",
    )

    def __init__(self, claim: Claim | Claim[int] | None = None, worker: str = "") -> None:
        self._claim = claim or NO_CLAIM
        self._worker = worker
        self._metadata: Mapping[str, Any] | None = None
        self._steps: Steps | None = None
        self._failure_context: dict[str, Any] | None = None
        self.cancel_requested = False
        self.interrupted: str | None = None  # "timeout" or "cancel" after the code was interrupted
        self.workflow_cache: Any = None

    @property
    def task_id(self) -> uuid.UUID | None:
        """The id of the task, or None outside a worker."""
        if self._claim is NO_CLAIM:
            return None
        id_ = self._claim.id
        return uuid.UUID(int=id_) if isinstance(id_, int) else id_

    @property
    def name(self) -> str:
        """The name of the task, or "" outside a worker."""
        return self._claim.task_name

    @property
    def queue_name(self) -> str:
        return self._claim.queue_name

    @property
    def attempt(self) -> int:
        """The number of the attempt, counted from 1."""
        return self._claim.attempt

    @property
    def sent_at(self) -> dt.datetime | None:
        """The time at which the task was sent, or None outside a worker.

        The time is that of the database's clock.
        """
        return (
            None
            if self._claim is NO_CLAIM
            else dt.datetime.fromtimestamp(self._claim.sent_at, dt.UTC)
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The read-only metadata that was sent with the task, beside its arguments.

        It is empty if the task has no metadata, and outside a worker.
        """
        if self._metadata is None:
            self._metadata = read_metadata(self._claim.options)
        return self._metadata

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the task, or "" outside a worker."""
        return self._worker

    @property
    def failure_context(self) -> dict[str, Any]:
        """A dict that receivers of the signal ``task_failed`` get as ``context``.

        The code of the task fills it with JSON values, of at most 8,192 characters.
        """
        if self._failure_context is None:
            self._failure_context = {}
        return self._failure_context

    def about(self) -> dict[str, str | int]:
        """Return the attributes for log records."""
        return {
            "task_id": str(self.task_id or "-"),
            "task_name": self.name,
            "queue_name": self.queue_name,
            "attempt": self.attempt,
        }

    @property
    def workflow(self) -> Any:
        """The workflow of which this task is a node.

        Its methods ``add`` and ``map`` add nodes. Raises WorkflowError outside a worker.
        """
        if self._claim is NO_CLAIM or workflow_getter is None:
            raise WorkflowError("this code does not run in a task of a workflow")
        return workflow_getter(self)

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool, **kwargs: Any
    ) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    # If the function itself has a parameter ``atomic``, the call is refused at run time.
    def step(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Call ``function(*args, **kwargs)`` once per task, and return its result.

        In later attempts, the recorded result is returned without a call. ``name`` identifies the
        step within the task. With ``atomic``, the call and its record are one transaction on the
        alias HORSIES["DATABASE"]. Without it, no transaction is open during the call, and the
        record is written after the call. Outside a worker nothing is recorded.

        Raises StepError if a transaction is open, if the step was recorded with other arguments,
        and if the arguments or the result cannot be encoded. Raises StaleAttempt if the task no
        longer belongs to this attempt. Exceptions of the function are raised too.
        """
        return self._recorder().run(name, function, args, kwargs, atomic=atomic)

    @overload
    async def astep(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        atomic: bool,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def astep(
        self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool, **kwargs: Any
    ) -> T: ...
    @overload
    async def astep(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def astep(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Call a function once per task from async code, and return its result.

        A sync function runs in Django's thread for sync code. A coroutine function requires
        ``atomic=False``, because Django's transactions are sync. For the arguments and the
        exceptions, see ``step``.
        """
        return await self._recorder().arun(name, function, args, kwargs, atomic=atomic)

    def _recorder(self) -> Steps:
        if self._steps is None:
            fence = None
            if self._worker and (task := self.task_id):
                fence = Fence(task, uuid.UUID(self._worker), self._claim.generation)
            self._steps = Steps(fence)
        return self._steps

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if this task was cancelled.

        The task ends as CANCELLED if its code does not catch the exception.
        """
        if self.cancel_requested:
            raise TaskCancelled("the task was cancelled while it ran, and stopped itself")

    def __repr__(self) -> str:
        return (
            f"<current task {self.name or 'none'}{f' {self.task_id}' if self.task_id else ''}, "
            f"attempt {self.attempt}>"
        )


# The function that returns the workflow of a running task. The package ``workflows`` sets it,
# because this package must not import it.
workflow_getter: Callable[[CurrentTask], Any] | None = None
running_task: ContextVar[CurrentTask | None] = ContextVar("horsies_current_task", default=None)


def current_task() -> CurrentTask:
    """Return the running task of the calling code.

    Outside a worker, the returned object has no id.
    """
    return running_task.get() or CurrentTask()


NO_TASK_FIELDS: dict[str, str | int] = {
    "task_id": "-",
    "task_name": "-",
    "queue_name": "-",
    "attempt": 0,
}


class TaskContextFilter(logging.Filter):
    """A filter that adds ``task_id``, ``task_name``, ``queue_name`` and ``attempt`` to log records.

    The values are those of the running task, or of the task that a log line of the worker is about.
    Without a task they are "-", and the attempt is 0. No record is discarded.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        current = running_task.get()
        about = NO_TASK_FIELDS if current is None else current.about()
        for name, value in about.items():
            record.__dict__.setdefault(name, value)
        return True
