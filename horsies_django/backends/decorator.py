"""``@task`` of ``django.tasks`` with the options of ``HorsiesTask``, typed, for any Django."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Coroutine, Iterable
from importlib import import_module
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload

import django

from horsies_django.backends.options import BackoffFunction
from horsies_django.core.retry import FailureKind

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
BackoffArgument = float | list[float] | tuple[float, ...] | BackoffFunction


class EnqueuedResult(Protocol[T_co]):
    """The type of a TaskResult for type checkers."""

    id: str
    status: Any
    enqueued_at: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    last_attempted_at: dt.datetime | None
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    errors: list[Any]
    worker_ids: list[str]

    @property
    def return_value(self) -> T_co: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def attempts(self) -> int: ...
    def refresh(self) -> None: ...
    async def arefresh(self) -> None: ...


class EnqueuedTask(Protocol[P, T_co]):
    """The type of a Task for type checkers.

    Its parameters are those of the function, without the context.
    """

    func: Callable[..., Any]
    priority: int
    queue_name: str
    backend: str
    run_after: dt.datetime | dt.timedelta | None
    takes_context: bool

    @property
    def name(self) -> str: ...
    @property
    def module_path(self) -> str: ...
    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: dt.datetime | dt.timedelta | None = None,
        backend: str | None = None,
    ) -> Self: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedResult[T_co]: ...
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedResult[T_co]: ...
    def get_result(self, result_id: str) -> EnqueuedResult[T_co]: ...
    async def aget_result(self, result_id: str) -> EnqueuedResult[T_co]: ...
    def call(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class BackendDecorator(Protocol):
    """The type of ``@task(...)``."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> EnqueuedTask[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> EnqueuedTask[P, T]: ...


class ContextDecorator(Protocol):
    """The type of ``@task(takes_context=True)``.

    The first parameter of the function is the TaskContext.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /
    ) -> EnqueuedTask[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], T], /) -> EnqueuedTask[P, T]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> EnqueuedTask[P, T]: ...
@overload
def task(function: Callable[P, T], /) -> EnqueuedTask[P, T]: ...
@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[False] = ...,
    max_attempts: int | None = ...,
    backoff: BackoffArgument | None = ...,
    retry_on: FailureKind | Iterable[FailureKind] | None = ...,
    timeout_ms: int | dt.timedelta | None = ...,
) -> BackendDecorator: ...
@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[True],
    max_attempts: int | None = ...,
    backoff: BackoffArgument | None = ...,
    retry_on: FailureKind | Iterable[FailureKind] | None = ...,
    timeout_ms: int | dt.timedelta | None = ...,
) -> ContextDecorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    max_attempts: int | None = None,
    backoff: BackoffArgument | None = None,
    retry_on: FailureKind | Iterable[FailureKind] | None = None,
    timeout_ms: int | dt.timedelta | None = None,
) -> Any:
    """Turn a function into a Task of ``django.tasks``, with options that Django 6.0 does not have.

    - ``max_attempts``: the number of attempts, from 1 to 101.
    - ``backoff``: the seconds until the next attempt: a number, a list with a number for each
      retry, or a function of the exception and the TaskResult, which may return None for no further
      attempt.
    - ``retry_on``: exception classes, their dotted paths, and error codes.
    - ``timeout_ms``: the limit of each attempt, in milliseconds or as a timedelta.

    The OPTIONS of the backend apply to each of these four that is None. A backend that is not a
    HorsiesBackend, as in tests, ignores all four. Raises InvalidTask if the function cannot be a
    task, or if options are invalid.
    """
    own = {
        "max_attempts": max_attempts,
        "backoff": backoff,
        "retry_on": retry_on,
        "timeout_ms": timeout_ms,
    }

    def made(function: Callable[..., Any]) -> Any:
        task_class = import_module(PACKAGE).task_backends[backend].task_class
        known = {field.name for field in dataclasses.fields(task_class)}
        return task_class(
            func=function,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **{name: value for name, value in own.items() if name in known},
        )

    return made if function is None else made(function)
