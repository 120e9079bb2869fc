"""The decorator ``@task``, which turns a function into a task, and the methods that send it."""

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
from horsies_django.core.retry import EMPTY_MAPPER, Mapper, RetryPolicy
from horsies_django.core.unique import Unique
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define
from horsies_django.tasks.enqueue import refuse_running_loop, send_call, send_calls
from horsies_django.tasks.handle import TaskHandle, async_form
from horsies_django.tasks.options import SendOptions, When

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")  # the type that a direct call returns


class Sender(Generic[P, T]):
    """The methods that send a task, with the same options for each of them.

    Every method raises TaskSendError if the task cannot be sent. Nothing is written in this case.
    Sending is part of the caller's transaction on the alias HORSIES["DATABASE"]: the task exists if
    and only if that transaction commits.
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

        ``when`` is a number of seconds from now, a timedelta from now, or an aware datetime.
        """
        refuse_running_loop(self._task, "schedule")
        return self._handle(*send_call(self._task, self._options, args, kwargs, when))

    def send_many(self, calls: Iterable[Mapping[str, Any]]) -> list[TaskHandle[T]]:
        """Send one task per dict of arguments, and return the handles in the same order.

        Either all tasks are sent or none of them.
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
        """Return an object with the same methods, which send the task with other options.

        ``queue``, ``priority``, ``retry_policy``, ``timeout_ms`` and ``keep_result`` replace the
        options of the decorator. ``keep_result=True`` cancels the ``keep_result`` of the decorator.

        ``good_until`` is an aware datetime, or a timedelta that begins when the task is sent. A
        task that has not started by then becomes EXPIRED and never runs. No retry starts later
        either.

        ``delay`` has the same values as the argument of ``schedule``: a number of seconds or a
        timedelta that begins when the task is sent, or an aware datetime.

        ``metadata`` is a dict of plain JSON values, of at most 4,096 bytes, that is sent beside the
        arguments. The task reads it as ``current_task().metadata``.

        ``key`` identifies the work. If this task was already sent with the same key within
        RETENTION["KEY_HOURS"], no task is sent. The handle is then that of the first task, in any
        status, and its ``is_new`` is False. The methods raise TaskSendError with the code
        KEY_CONFLICT if the first task has other arguments. If an open transaction sends the same
        key, the send waits for it, at most UNIQUE_LOCK_TIMEOUT_MS.

        The methods raise TaskSendError if an option is invalid.
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
    """A function that is registered as a task.

    A call runs the function directly. The methods of Sender send the task. ``definition`` is the
    TaskDefinition, and ``name`` is the name under which the task is sent.
    """

    def __init__(self, definition: TaskDefinition) -> None:
        super().__init__(definition, SendOptions())
        self.definition = definition
        self.name = definition.name
        functools.update_wrapper(self, definition.function)
        if inspect.iscoroutinefunction(definition.function):
            markcoroutinefunction(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without the queue, and return its value.

        The value is a coroutine if the function is an ``async def``.
        """
        returned: R = self.definition.function(*args, **kwargs)
        return returned

    def handle(self, task_id: UUID | str) -> TaskHandle[T]:
        """Return the typed handle of a task of this function that was sent earlier.

        Another process may have sent the task. Raises ValueError if the id is not a UUID.
        """
        return TaskHandle(task_id, self.definition.result)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    # A task is copied and pickled like a function: a copy is the task itself, and a pickle has only
    # its name.
    def __reduce__(self) -> str:
        return self.definition.function.__qualname__


class Undeclared:
    """A type for the overloads of ``task``, which selects functions that return Any.

    No function returns this type. So a type checker accepts a function for an overload with it only
    if the function returns Any.
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
    exception_mapper: Mapper = EMPTY_MAPPER,
    timeout_ms: int | timedelta | None = None,
    schedule: Pattern | str | Mapping[str, Any] | None = None,
    keep_result: bool | timedelta | None = None,
    unique: Unique | Sequence[str] | bool | None = None,
) -> Any:
    """Turn a function into a task: ``@task``, or with options ``@task(queue="mail")``.

    The parameters and the return value of the function need annotations, which define how the
    values are encoded. Raises TaskDefinitionError if the function or an option is invalid. The
    message contains the correction.

    ``name`` is the name under which the task is sent. The default is the dotted path of the
    function.

    ``queue`` is the name of a queue. The default is "default".

    ``priority`` orders the tasks of a queue, from 1 (first) to 100.

    ``retry_policy`` defines which failures are retried.

    ``exception_mapper`` maps exception classes to error codes. It has precedence over the mapper of
    the settings.

    ``timeout_ms`` limits each attempt. It is a number of milliseconds or a timedelta.

    ``schedule`` sends the task regularly. It is a pattern, the text of a pattern, or a dict as in
    HORSIES["SCHEDULES"].

    ``keep_result=False`` stores no value when the task completes, and its row is deleted soon. A
    timedelta replaces the time for which RETENTION keeps that row.

    ``unique`` defines which sends are duplicates of a task that has not finished: True (equal
    arguments), the name of an argument, a list of names, or ``Unique``. A duplicate is not sent,
    and the handle is that of the first task.
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
