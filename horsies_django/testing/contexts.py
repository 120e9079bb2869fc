"""The base of the test tools: a context manager that is also a decorator, and the look-up of tasks.

The context manager works with ``with`` and ``async with``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncContextDecorator, ContextDecorator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, cast

from asgiref.sync import sync_to_async

from horsies_django.tasks import registry
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import in_event_loop

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ErrorClass = type[BaseException] | None


class Context(ContextDecorator, AsyncContextDecorator, Generic[T]):
    """A context manager for sync and async code, and a decorator of test functions and methods.

    ``make`` returns the context manager for one block. With ``async with``, it is entered in the
    thread in which Django runs sync code, whose connection ``asend`` uses. If ``connected`` is
    true, a plain ``with`` on a running event loop raises RuntimeError, because it would watch
    another connection.
    """

    def __init__(
        self, name: str, make: Callable[[], AbstractContextManager[T]], *, connected: bool
    ) -> None:
        self._name = name
        self._make = make
        self._connected = connected
        self._entered: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        if self._connected and in_event_loop():
            raise RuntimeError(
                f"{self._name}() was entered on a running event loop: use 'async with "
                f"{self._name}(...)'"
            )
        return self._enter()

    def _enter(self) -> T:
        made = self._make()
        value = made.__enter__()
        self._entered.append(made)
        return value

    def __exit__(
        self, kind: ErrorClass, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._entered.pop().__exit__(kind, error, trace)

    async def __aenter__(self) -> T:
        return await sync_to_async(self._enter)()

    async def __aexit__(
        self, kind: ErrorClass, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await sync_to_async(self.__exit__)(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Return a function that runs each call of the given one in a block of its own.

        Raises TypeError if it is not a function.
        """
        if not inspect.isfunction(function):
            raise TypeError(
                f"@{self._name}() decorates test functions and methods, not {function!r:.100}; for "
                "all tests of a class, "
                f"call self.enterContext({self._name}(...)) in setUp"
            )
        kind: Any = (
            AsyncContextDecorator if inspect.iscoroutinefunction(function) else ContextDecorator
        )
        return cast("F", kind.__call__(self, function))


class DjangoTask(Protocol):
    """A task of ``django.tasks``."""

    @property
    def module_path(self) -> str: ...


AnyTask = Sender[..., Any] | DjangoTask | str  # a task, or its name


def definition_of(task: AnyTask) -> TaskDefinition:
    """Return the definition of a task.

    Raises TypeError if it is neither a task nor a name, and LookupError if the name is unknown.
    """
    if isinstance(task, Sender):
        return task._task
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if not isinstance(name, str):
        raise TypeError(f"pass a task or the name of one, not {task!r:.100}")

    found = registry.find_or_import(name)
    if found is None:
        raise LookupError(
            f"there is no task named {name!r}: pass the task itself, or the full name of one in "
            "the tasks.py of an installed app"
        )
    return found
