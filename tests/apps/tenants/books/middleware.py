"""Middleware that runs each task in the schema that its metadata names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django_tenants.utils import schema_context

from horsies_django.tasks.context import CurrentTask


def in_schema(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return middleware that runs sync tasks in the schema in which they were sent."""
    if iscoroutinefunction(call):
        return call

    def middleware(current: CurrentTask, args: Any, kwargs: Any) -> Any:
        if (schema := current.metadata.get("schema")) is None:
            return call(current, args, kwargs)
        with schema_context(schema):
            return call(current, args, kwargs)

    return middleware
