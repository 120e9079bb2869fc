"""``@task``: turns a function into a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

from asgiref.sync import markcoroutinefunction

from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.hints import explains_options, missing_attribute
from horsies_django.core.patterns import Pattern
from horsies_django.core.results import TaskResult
from horsies_django.core.retry import EMPTY, Mapper, RetryPolicy
from horsies_django.core.unique import Unique
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define
from horsies_django.tasks.enqueue import refuse_running_loop, send_call, send_calls
from horsies_django.tasks.handle import TaskHandle, async_form
from horsies_django.tasks.options import SendOptions, When

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")  # of a direct call


class Sender(Generic[P, T]):
    """Methods that send a task, with options for all of them.

    Every method raises TaskSendError if the task cannot be sent; nothing is written then. Sending
    is part of the caller's transaction on the alias HORSIES["DATABASE"]: the task exists if and
    only if that transaction commits.
    """

    def __init__(self, task: TaskDefinition, options: SendOptions) -> None:
        self._task = task
        self._options = options

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Send the task to run as soon as a slot is free."""
        refuse_running_loop(self._task, "send")
        return self._handle(*send_call(self._task, self._options, args, kwargs))

    def schedule(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Send the task to run at ``when``.

        That is seconds or a timedelta from now, or an aware datetime.
        """
        refuse_running_loop(self._task, "schedule")
        return self._handle(*send_call(self._task, self._options, args, kwargs, when))

    def send_many(self, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[T]]:
        """Send one task per dict of arguments, all or none.

        Return the handles in the same order.
        """
        refuse_running_loop(self._task, "send_many")
        return [self._handle(*sent) for sent in send_calls(self._task, self._options, calls)]

    # In async code, the insert runs in Django's thread for sync code, like ORM calls.
    asend = async_form(send)
    aschedule = async_form(schedule)
    asend_many = async_form(send_many)

    @explains_options
    def with_options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | timedelta | None = None,
        delay: When | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep_result: bool | timedelta | None = None,
        key: str | None = None,
    ) -> Sender[P, T]:
        """Return the same methods with other options: those of the decorator, ``good_until``,
        ``delay``, ``metadata``, ``key``.

        ``good_until`` is an aware datetime, or a timedelta from sending; a task that has not
        started by then becomes EXPIRED and never runs, and no retry starts later. ``delay`` is what
        ``schedule`` takes: seconds or a timedelta from sending, or an aware datetime. ``metadata``
        is a dict of plain JSON values, of at most 4,096 bytes, that travels with the task beside
        its arguments: ``current_task().metadata``. ``keep_result=True`` undoes that of the
        decorator. With a ``key`` that a send of this task has had within RETENTION["KEY_HOURS"],
        the handle is that of the first task, whatever became of it, and its ``is_new`` is False;
        other arguments raise KEY_CONFLICT. It waits for an open transaction that sends the same
        key, for UNIQUE_LOCK_TIMEOUT_MS at most. The methods raise TaskSendError for invalid
        options.
        """
        options = SendOptions(
            queue, priority, good_until, retry_policy, timeout_ms, delay, metadata, keep_result, key
        )
        chosen = {name: value for name, value in options._asdict().items() if value is not None}
        return Sender(self._task, self._options._replace(**chosen))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def _handle(self, task_id: UUID, is_new: bool) -> TaskHandle[T]:
        handle = TaskHandle[T](task_id, self._task.result)
        handle.is_new = is_new
        return handle


class TaskFunction(Sender[P, T], Generic[P, T, R]):
    """A function registered as a task. Calling it runs the function directly; the methods of Sender
    send it.

    ``definition`` is its TaskDefinition, ``name`` the name under which it is sent.
    """

    def __init__(self, definition: TaskDefinition) -> None:
        super().__init__(definition, SendOptions())
        self.definition = definition
        self.name = definition.name
        functools.update_wrapper(self, definition.function)
        if inspect.iscoroutinefunction(definition.function):
            markcoroutinefunction(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without the queue; an ``async def`` returns its coroutine."""
        returned: R = self.definition.function(*args, **kwargs)
        return returned

    def handle(self, task_id: UUID | str) -> TaskHandle[T]:
        """Return the typed handle of a task of this function that any process sent earlier."""
        return TaskHandle(task_id, self.definition.result)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    # As for a function: copies are the task itself, pickles refer to it.
    def __reduce__(self) -> str:
        return self.definition.function.__qualname__


class Undeclared:
    """For type checkers: nothing returns it, so of all functions only those that return Any fit an
    overload that takes it.
    """


class Decorator:
    """The decorator that ``@task(...)`` returns."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    @overload
    def __call__(self, function: Callable[P, Undeclared], /) -> TaskFunction[P, Any, Any]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, TaskResult[T, Any]]], /
    ) -> TaskFunction[P, T, Coroutine[Any, Any, TaskResult[T]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, function: Callable[P, TaskResult[T, Any]], /
    ) -> TaskFunction[P, T, TaskResult[T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> TaskFunction[P, T, T]: ...
    def __call__(self, function: Callable[P, Any], /) -> TaskFunction[P, Any, Any]:
        if isinstance(function, TaskFunction):
            raise TaskDefinitionError(
                f"{function.definition.origin} is decorated with @task twice: remove one"
            )
        definition = define(function, **self.options)
        registry.register(definition)
        return TaskFunction(definition)


@overload
def task(function: Callable[P, Undeclared], /) -> TaskFunction[P, Any, Any]: ...
@overload
def task(
    function: Callable[P, Coroutine[Any, Any, TaskResult[T, Any]]], /
) -> TaskFunction[P, T, Coroutine[Any, Any, TaskResult[T]]]: ...
@overload
def task(
    function: Callable[P, Coroutine[Any, Any, T]], /
) -> TaskFunction[P, T, Coroutine[Any, Any, T]]: ...
@overload
def task(function: Callable[P, TaskResult[T, Any]], /) -> TaskFunction[P, T, TaskResult[T]]: ...
@overload
def task(function: Callable[P, T], /) -> TaskFunction[P, T, T]: ...
@overload
def task(
    *,
    name: str | None = ...,
    queue: str | None = ...,
    priority: int = ...,
    retry_policy: RetryPolicy | None = ...,
    exception_mapper: Mapper = ...,
    timeout_ms: int | timedelta | None = ...,
    schedule: Pattern | str | Mapping[str, Any] | None = ...,
    keep_result: bool | timedelta | None = ...,
    unique: Unique | Sequence[str] | bool | None = ...,
) -> Decorator: ...
@explains_options
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int = 100,
    retry_policy: RetryPolicy | None = None,
    exception_mapper: Mapper = EMPTY,
    timeout_ms: int | timedelta | None = None,
    schedule: Pattern | str | Mapping[str, Any] | None = None,
    keep_result: bool | timedelta | None = None,
    unique: Unique | Sequence[str] | bool | None = None,
) -> Any:
    """Turn a function into a task: ``@task``, or with options ``@task(queue="mail")``.

    ``name`` defaults to the dotted path of the function, ``queue`` to "default"; ``priority``
    orders the tasks of a queue, from 1 (first) to 100. ``retry_policy`` says which failures are
    retried; ``exception_mapper`` maps exception classes to error codes, before the mapper of the
    settings; ``timeout_ms`` (milliseconds or a timedelta) limits each attempt. ``schedule`` sends
    the task regularly: a pattern, its text, or a dict as in HORSIES["SCHEDULES"].
    ``keep_result=False`` stores no value when the task completes, and its row is deleted soon; a
    timedelta keeps that row for so long instead of as RETENTION says. ``unique`` says which sends
    are duplicates of a task that has not finished: True (equal arguments), the name of an argument,
    a list of names, or ``Unique``; a duplicate is not sent, and the handle is that of the first
    task. Parameters and the return value need annotations, which say how values are encoded. Raises
    TaskDefinitionError, whose message says what to write instead.
    """
    decorator = Decorator(
        name=name,
        queue=queue,
        priority=priority,
        retry_policy=retry_policy,
        exception_mapper=exception_mapper,
        timeout_ms=timeout_ms,
        schedule=schedule,
        keep_result=keep_result,
        unique=unique,
    )
    return decorator if function is None else decorator(function)
