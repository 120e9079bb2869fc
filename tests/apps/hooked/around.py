"""Middleware and sources of metadata, right ones and wrong ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.models import Group
from django.core.exceptions import MiddlewareNotUsed

trace: ContextVar[str | None] = ContextVar("trace", default=None)
seen: list[tuple[Any, ...]] = []
NOTHING_TO_CALL = 7
OVER = threading.Event()  # it is never set


def carrier() -> dict[str, Any] | None:
    return None if trace.get() is None else {"trace": trace.get(), "by": "carrier"}


def tenant() -> dict[str, Any]:
    return {"tenant": 7, "by": "tenant"}


def forgetful() -> None:
    """Return None, as a source of metadata may."""


def breaks() -> dict[str, Any]:
    raise LookupError("no tenant is active")


def a_list() -> Any:
    return ["tenant"]


def an_object() -> Any:
    return {"tenant": object()}


class Noting:
    """Middleware as a class, for sync and async tasks, which notes the calls that it gets."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        if iscoroutinefunction(call):
            markcoroutinefunction(self)

    def __call__(self, current: Any, args: Any, kwargs: Any) -> Any:
        seen.append(("noting", current.name, list(args), dict(kwargs), dict(current.metadata)))
        return (
            self.noted(current, args, kwargs)
            if iscoroutinefunction(self)
            else self.call(current, args, kwargs)
        )

    async def noted(self, current: Any, args: Any, kwargs: Any) -> Any:
        return await self.call(current, args, kwargs)


def doubling(call: Callable[..., Any]) -> Callable[..., Any]:
    """Middleware that changes arguments and results."""

    async def async_middleware(current: Any, args: Any, kwargs: Any) -> Any:
        seen.append(("doubling", current.name))
        return await call(current, args, kwargs)

    def middleware(current: Any, args: Any, kwargs: Any) -> Any:
        seen.append(("doubling", current.name))
        result = call(
            current, args, {**kwargs, "b": 2 * kwargs.get("b", 0)} if "b" in kwargs else kwargs
        )
        return 2 * result if isinstance(result, int) else result

    return async_middleware if iscoroutinefunction(call) else middleware


def raising(call: Callable[..., Any]) -> Callable[..., Any]:
    """Middleware that fails for tasks that have no tenant."""

    def refuse(current: Any) -> None:
        if "tenant" not in current.metadata:
            raise PermissionError(f"{current.name} has no tenant")

    async def async_middleware(current: Any, args: Any, kwargs: Any) -> Any:
        refuse(current)
        return await call(current, args, kwargs)

    def middleware(current: Any, args: Any, kwargs: Any) -> Any:
        refuse(current)
        return call(current, args, kwargs)

    return async_middleware if iscoroutinefunction(call) else middleware


def holding(call: Callable[..., Any]) -> Callable[..., Any]:
    """Middleware that waits in front of the task until it is interrupted, and notes that it was."""

    async def async_middleware(current: Any, args: Any, kwargs: Any) -> Any:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await Group.objects.acreate(name=f"interrupted {current.task_id}")
        return await call(current, args, kwargs)

    def middleware(current: Any, args: Any, kwargs: Any) -> Any:
        try:
            while not OVER.wait(0.01):
                pass
        finally:
            Group.objects.create(name=f"interrupted {current.task_id}")
        return call(current, args, kwargs)

    return async_middleware if iscoroutinefunction(call) else middleware


def not_used(call: Callable[..., Any]) -> Callable[..., Any]:
    raise MiddlewareNotUsed


def fails_at_start(call: Callable[..., Any]) -> Callable[..., Any]:
    raise LookupError("the tracing service has no address")


def returns_nothing(call: Callable[..., Any]) -> None:
    """Return None, because the middleware was forgotten."""


def sync_only(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda current, args, kwargs: call(current, args, kwargs)


def passes_something_else(call: Callable[..., Any]) -> Callable[..., Any]:
    async def async_middleware(current: Any, args: Any, kwargs: Any) -> Any:
        return await call(current.name, args, kwargs)

    return (
        async_middleware
        if iscoroutinefunction(call)
        else lambda current, args, kwargs: call(current.name, args, kwargs)
    )
