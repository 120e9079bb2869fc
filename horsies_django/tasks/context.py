"""``current_task()``: information about the running task, for code inside it."""

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


NO_CLAIM = Claim(uuid.UUID(int=0), 0, "", "", "")  # of code that runs outside a worker


class CurrentTask:
    """The running attempt of a task.

    ``cancel_requested`` becomes True if the task is cancelled while it runs; long-running code
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

    def __init__(self, claim: Claim | None = None, worker: str = "") -> None:
        self._claim = claim or NO_CLAIM
        self._worker = worker
        self._metadata: Mapping[str, Any] | None = None
        self._steps: Steps | None = None
        self._failure_context: dict[str, Any] | None = None
        self.cancel_requested = False
        self.interrupted: str | None = None  # "timeout" or "cancel" once its code was interrupted
        self.workflow_cache: Any = None

    @property
    def task_id(self) -> uuid.UUID | None:
        """The id of the task, None outside a worker."""
        if self._claim is NO_CLAIM:
            return None
        return uuid.UUID(int=int(self._claim.id))  # see Claim.packed

    @property
    def name(self) -> str:
        """The name of the task, "" outside a worker."""
        return self._claim.task_name

    @property
    def queue_name(self) -> str:
        return self._claim.queue_name

    @property
    def attempt(self) -> int:
        """Which attempt of the task this is, counted from 1."""
        return self._claim.attempt

    @property
    def sent_at(self) -> dt.datetime | None:
        """When the task was sent, by the database's clock; None outside a worker."""
        return (
            None
            if self._claim is NO_CLAIM
            else dt.datetime.fromtimestamp(self._claim.sent_at, dt.UTC)
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was sent with the task beside its arguments, read-only; empty without any and
        outside a worker.
        """
        if self._metadata is None:
            self._metadata = read_metadata(self._claim.options)
        return self._metadata

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the task, "" outside a worker."""
        return self._worker

    @property
    def failure_context(self) -> dict[str, Any]:
        """What the signal ``task_failed`` passes on as ``context`` if this attempt fails: JSON of
        8,192 characters at most.
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
        """The workflow of which this task is a node; its ``add`` and ``map`` add nodes.

        Raises WorkflowError outside a worker.
        """
        if self._claim is NO_CLAIM or workflow_of is None:
            raise WorkflowError("this code does not run in a task of a workflow")
        return workflow_of(self)

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, atomic: bool, **kwargs: Any
    ) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    # A parameter of the function that is named atomic is refused at run time.
    def step(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Call ``function(*args, **kwargs)`` once per task, and return the recorded result in later
        attempts.

        With ``atomic``, the call and its record are one transaction on the alias
        HORSIES["DATABASE"]; without, no transaction is open during the call, and the record is
        written after it. ``name`` identifies the step within the task. Outside a worker nothing is
        recorded. Raises StepError in an open transaction, for the same name with other arguments,
        and for arguments and results that cannot be encoded; StaleAttempt if the task was given to
        another attempt; and what the function raises.
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
        """Do the same from async code. A sync function runs in Django's thread for sync code; a
        coroutine function needs ``atomic=False``, because Django's transactions are sync.
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
        """Raise TaskCancelled if this task was cancelled; if not caught, the task ends as
        CANCELLED.
        """
        if self.cancel_requested:
            raise TaskCancelled("the task was cancelled while it ran, and stopped itself")

    def __repr__(self) -> str:
        return (
            f"<current task {self.name or 'none'}{f' {self.task_id}' if self.task_id else ''}, "
            f"attempt {self.attempt}>"
        )


# Returns the workflow of a running task; the package ``workflows``, of a floor above, sets it.
workflow_of: Callable[[CurrentTask], Any] | None = None
running: ContextVar[CurrentTask | None] = ContextVar("horsies_current_task", default=None)


def current_task() -> CurrentTask:
    """Return the running task of the calling code; outside a worker, one without an id."""
    return running.get() or CurrentTask()


NOWHERE: dict[str, str | int] = {"task_id": "-", "task_name": "-", "queue_name": "-", "attempt": 0}


class TaskContextFilter(logging.Filter):
    """Adds ``task_id``, ``task_name``, ``queue_name`` and ``attempt`` to every log record. Discards
    no record.

    They describe the running task, or the task that a log line of the worker is about. Without a
    task they are "-", and the attempt is 0.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        current = running.get()
        about = NOWHERE if current is None else current.about()
        for name, value in about.items():
            record.__dict__.setdefault(name, value)
        return True
