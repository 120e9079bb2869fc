"""``current_task()``: information about the running task, for code inside it; and its durable steps.

A step is a call that a task makes once, and whose recorded result its later attempts get instead. An atomic step is one
transaction on the alias HORSIES["DATABASE"]: the function, then the record. The record is written only if the task still belongs
to this worker and claim, and it locks the task until the commit. So if two attempts run a step at the same time, only the current
one commits it; and no attempt begins while an earlier one commits a step.

The names of recorded steps are read once per attempt, because nobody else can record one meanwhile. Under the first claim of a
task there are none.
"""

from __future__ import annotations

import datetime as dt
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import IntegrityError, connections, transaction
from psycopg.pq import TransactionStatus

from horsies_django.conf import config
from horsies_django.core.codec import CodecError, Shape
from horsies_django.core.codec.calls import digest_of, result_shape
from horsies_django.core.codec.jsondata import read_json, write_json
from horsies_django.core.codec.shapes import ANY
from horsies_django.core.errors import StaleAttempt, StepError, TaskCancelled, TaskDefinitionError, WorkflowError
from horsies_django.core.metadata import read_metadata
from horsies_django.core.records import Claim, Fence
from horsies_django.core.texts import name_problem
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks.enqueue import in_event_loop
from horsies_django.tasks.options import too_large

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_NAME = 200  # of a step
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
NO_CLAIM = Claim(uuid.UUID(int=0), 0, "", "", "")  # of code that runs outside a worker


class CurrentTask:
    """The running attempt of a task.

    ``cancel_requested`` becomes True if the task is cancelled while it runs; long-running code should check it regularly, or call
    ``raise_if_cancelled``. Outside a worker, ``task_id`` and ``sent_at`` are None and ``cancel_requested`` stays False.
    """

    __slots__ = ("_claim", "_metadata", "_steps", "_worker", "cancel_requested", "workflow_cache")

    def __init__(self, claim: Claim | None = None, worker: str = "") -> None:
        self._claim = claim or NO_CLAIM
        self._worker = worker
        self._metadata: Mapping[str, Any] | None = None
        self._steps: Steps | None = None
        self.cancel_requested = False
        self.workflow_cache: Any = None

    @property
    def task_id(self) -> uuid.UUID | None:
        """The id of the task, None outside a worker."""
        return None if self._claim is NO_CLAIM else self._claim.id

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
        return None if self._claim is NO_CLAIM else dt.datetime.fromtimestamp(self._claim.sent_at, dt.UTC)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was sent with the task beside its arguments, read-only; empty without any and outside a worker."""
        if self._metadata is None:
            self._metadata = read_metadata(self._claim.options)
        return self._metadata

    @property
    def worker_id(self) -> str:
        """The id of the worker that runs the task, "" outside a worker."""
        return self._worker

    def about(self) -> dict[str, str | int]:
        """Return the attributes for log records."""
        return {
            "task_id": "-" if self._claim is NO_CLAIM else str(self._claim.id),
            "task_name": self.name,
            "queue_name": self.queue_name,
            "attempt": self.attempt,
        }

    @property
    def workflow(self) -> Any:
        """The workflow of which this task is a node; its ``add`` and ``map`` add nodes. Raises WorkflowError outside a worker."""
        if self._claim is NO_CLAIM or workflow_of is None:
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
            claim = self._claim
            self._steps = Steps(Fence(claim.id, uuid.UUID(self._worker), claim.generation) if self._worker else None)
        return self._steps

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if this task was cancelled; if not caught, the task ends as CANCELLED."""
        if self.cancel_requested:
            raise TaskCancelled("the task was cancelled while it ran, and stopped itself")

    def __repr__(self) -> str:
        return (
            f"<current task {self.name or 'none'}{f' {self.task_id}' if self.task_id else ''}, attempt {self.attempt}>"
        )


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


class Call:
    """A call of a step, checked before anything is run. Raises StepError, and TypeError if the arguments do not fit."""

    def __init__(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if problem := name_problem("a step's name", name, LONGEST_NAME):
            raise StepError(problem)
        if not callable(function):
            raise StepError(f"step {name!r}: the second argument is what it calls, not {type(function).__name__}")
        self.name = name
        self.function = function
        self.args = args
        self.kwargs = kwargs
        try:
            self.digest = digest_of(function, args, kwargs)
            self.shape: Shape = result_shape(function)
        except (CodecError, TaskDefinitionError) as error:
            raise StepError(f"step {name!r}: {error}") from error

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return bool(iscoroutinefunction(self.function))

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def encode(self, value: Any) -> str:
        """Return the result as JSON text. Raises StepError."""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise StepError(
                f"step {self.name!r}: the function returned {type(value).__name__}: pass a coroutine function to astep()"
            )
        try:
            text = write_json(self.shape.encode(value, ""))
        except CodecError as error:
            error.subject, error.path = "result", error.path.removeprefix(".")
            hint = (
                f". Annotate what {label(self.function)} returns, or return plain values" if self.shape is ANY else ""
            )
            raise StepError(f"step {self.name!r} was not recorded: {error}{hint}") from error
        if excess := too_large(text):
            said = f"its result takes {excess}. Store the data and return its key"
            raise StepError(f"step {self.name!r} was not recorded: {said}")
        return text

    def decode(self, text: str) -> Any:
        """Return the result that ``encode`` wrote. Raises StepError if it does not fit the present annotation."""
        try:
            return self.shape.decode(read_json(text, "result"), "")
        except CodecError as error:
            error.subject, error.path = "recorded result", error.path.removeprefix(".")
            raise StepError(f"step {self.name!r}: {error}") from error


class Steps:
    """The steps of one attempt of a task; without a fence, outside a worker, they are run and not recorded."""

    def __init__(self, fence: Fence | None) -> None:
        self.fence = fence
        # The names of steps that may be recorded; None: not read yet
        self.recorded: set[str] | None = set() if fence is None or fence.generation == 1 else None

    def run(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, atomic: bool
    ) -> Any:
        """Run a step, or return its recorded result. Raises StepError, and what the function raises."""
        if in_event_loop():
            raise StepError(f"step {name!r} was called on a running event loop: use 'await current_task().astep(...)'")
        call = Call(name, function, args, kwargs)
        if call.is_async:
            raise StepError(
                f"step {name!r}: {label(function)} is a coroutine function: in an async task, use "
                "'await current_task().astep(..., atomic=False)'"
            )
        return self.run_here(call, atomic=atomic)

    async def arun(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, atomic: bool
    ) -> Any:
        """Run a step from async code; a sync function runs in Django's thread for sync code. Raises as ``run`` does."""
        call = Call(name, function, args, kwargs)
        if not call.is_async:
            return await sync_to_async(self.run_here)(call, atomic=atomic)
        if atomic:
            raise StepError(
                f"step {name!r}: {label(function)} is a coroutine function, which cannot run in one of Django's transactions: "
                "pass atomic=False, or a sync function"
            )
        if (found := await sync_to_async(self.look_up)(call)) is not None:
            return call.decode(found)
        coroutine: Awaitable[Any] = call.run()
        return await sync_to_async(self.record)(call, await coroutine)

    def run_here(self, call: Call, *, atomic: bool) -> Any:
        """Run a checked step of a sync function in this thread, or return its recorded result."""
        if (found := self.look_up(call)) is not None:
            return call.decode(found)
        alias = config().database
        if atomic:
            with transaction.atomic(using=alias, durable=True):
                return self.record(call, call.run())
        value = call.run()
        if in_transaction(alias):
            raise StepError(
                f"step {call.name!r} was not recorded: its function left a transaction open on the alias {alias!r}"
            )
        return self.record(call, value)

    def look_up(self, call: Call) -> str | None:
        """Return the recorded result of a step as JSON text, None if there is none. Raises StepError."""
        alias = config().database
        if in_transaction(alias):
            raise StepError(
                f"step {call.name!r} was called in an open transaction on the alias {alias!r}, which could undo it after it was "
                "recorded: call it outside of atomic(). All that its function does is one transaction anyway"
            )
        fence, store = self.fence, TaskStore(connections[alias])
        if fence is None:
            return None
        if self.recorded is None:
            self.recorded = store.step_names(fence.task)
        if call.name not in self.recorded or (found := store.step(fence.task, call.name)) is None:
            return None
        digest, result = found
        if digest != call.digest:
            raise StepError(
                f"step {call.name!r} of task {fence.task} was recorded with other arguments (digest {digest}) than those of "
                f"this call ({call.digest}): give each call a name of its own, as in f'page {{number}}'"
            )
        return result

    def record(self, call: Call, value: Any) -> Any:
        """Record the result of a step, and return it as later attempts get it. Raises StepError."""
        text = call.encode(value)
        fence = self.fence
        if fence is not None:
            if self.recorded is not None:
                self.recorded.add(call.name)
            store = TaskStore(connections[config().database])
            try:
                recorded = store.record_step(fence, call.name, call.digest, text)
            except IntegrityError as error:
                raise StepError(
                    f"step {call.name!r} of task {fence.task} has been recorded meanwhile: another thread or coroutine of this "
                    "attempt ran a step of the same name. Give each call a name of its own"
                ) from error
            if not recorded:
                raise StaleAttempt(
                    f"step {call.name!r} was not recorded: task {fence.task} no longer belongs to worker {fence.worker}, "
                    f"generation {fence.generation}. This attempt was given up, and another one may be running"
                )
        return call.decode(text)


def in_transaction(alias: str) -> bool:
    """Return whether a transaction is open that could roll a step back; the one that a TestCase opens does not count."""
    connection: Any = connections[alias]
    if connection.in_atomic_block:  # as durable=True sees it
        return not connection.atomic_blocks or not connection.atomic_blocks[-1]._from_testcase
    return not connection.get_autocommit() or connection.connection.pgconn.transaction_status in OPEN


def label(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
