"""Middleware: the project's code around the bodies of all tasks.

``HORSIES["MIDDLEWARE"]`` is a list of dotted paths of factories. A factory takes the next callable
and returns its own, which is called with the current task, the list of positional arguments and the
dict of keyword arguments. The first in the list is the outermost. There are two chains, one around
sync functions and one around async functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from horsies_django.conf import config
from horsies_django.signals import added_middleware
from horsies_django.tasks import registry
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.worker.child.interrupts import Run

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]


class LoadedMiddleware:
    """The paths of the middleware of this process, set by ``load``."""

    paths: tuple[str, ...] = ()


def call(run: Run, task: TaskDefinition, args: Arguments, kwargs: Keywords) -> Any:
    """Call a task within the middleware; return its result, or a coroutine if it is async."""
    if not LoadedMiddleware.paths:
        return task.function(*args, **kwargs)
    return chain(LoadedMiddleware.paths, task.lane)(run.current, args, kwargs)


def load() -> None:
    """Create the middleware of this process from the settings.

    Raises ImproperlyConfigured, and any exception of a factory.
    """
    paths = (*config().middleware, *added_middleware)
    for lane in {"sync", *(task.lane for task in registry.registered_tasks())}:
        chain(paths, lane)
    LoadedMiddleware.paths = paths


@functools.cache
def chain(paths: tuple[str, ...], lane: str) -> Callable[..., Any]:
    """Return the middleware of a lane around the bodies of its tasks.

    Raises ImproperlyConfigured, and any exception of a factory.
    """
    inner: Callable[..., Any] = async_body if lane == "async" else body
    for path in reversed(paths):
        try:
            made = import_string(path)(inner)
        except MiddlewareNotUsed:
            continue

        if not callable(made):
            raise ImproperlyConfigured(
                f"HORSIES['MIDDLEWARE']: {path} returned {made!r:.100} instead of a callable: a "
                "factory takes 'call' and returns "
                "a function that calls it"
            )

        if iscoroutinefunction(made) != iscoroutinefunction(inner):
            wanted, not_wanted = (
                ("an async", "a sync") if lane == "async" else ("a sync", "an async")
            )
            raise ImproperlyConfigured(
                f"HORSIES['MIDDLEWARE']: {path} returned {not_wanted} callable for {lane} tasks: "
                f"return {wanted} one when "
                f"iscoroutinefunction(call) is {lane == 'async'}, or raise MiddlewareNotUsed"
            )

        inner = made

    return inner


@receiver(setting_changed, dispatch_uid="horsies_middleware")
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "HORSIES":
        chain.cache_clear()


def body(current: CurrentTask, args: Arguments, kwargs: Keywords) -> Any:
    """Call the function of a sync task."""
    return function_of(current)(*args, **kwargs)


async def async_body(current: CurrentTask, args: Arguments, kwargs: Keywords) -> Any:
    return await function_of(current)(*args, **kwargs)


def function_of(current: CurrentTask) -> Callable[..., Any]:
    """Return the function of the current task.

    Raises LookupError if ``current`` is not a task, so if middleware passed another object on.
    """
    task = registry.find(current.name) if isinstance(current, CurrentTask) else None
    if task is None:
        raise LookupError(
            f"a middleware passed {current!r:.100} to 'call' instead of the task that it got"
        )
    return task.function
