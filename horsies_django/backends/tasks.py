"""Tasks of ``django.tasks`` in this process: their definitions for workers, by the dotted path of the function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from horsies_django.backends.options import retries_of, timeout_of
from horsies_django.backends.retries import hashable
from horsies_django.backends.running import decide, wrapped
from horsies_django.core.errors import OperationalErrorCode, TaskDefinitionError
from horsies_django.core.queues import stored_priority
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define_plain
from horsies_django.tasks.options import SendOptions

# An interrupted process says nothing about the task: it is given back.
INTERRUPTED: Mapping[type[BaseException], str] = {KeyboardInterrupt: OperationalErrorCode.WORKER_CRASHED.value}

declared: dict[str, Any] = {}  # dotted path -> the Task that was declared first


class TaskMixin:
    """What ``HorsiesTask`` adds to the class ``Task`` of either package.

    ``max_attempts``, ``backoff``, ``retry_on`` and ``timeout_ms`` None mean the OPTIONS of the backend.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in ("backoff", "retry_on"):
            object.__setattr__(self, name, hashable(getattr(self, name)))
        super().__post_init__()  # type: ignore[misc]
        if is_ours(self.get_backend()):  # type: ignore[attr-defined]
            declare(self)

    @property
    def definition(self) -> TaskDefinition:
        """The definition for workers, by which workflows take this task."""
        return declare(self)

    @property
    def send_options(self) -> SendOptions:
        """The options of this Task object for workflows."""
        options = sending_options(self)
        return SendOptions(**options, delay=self.run_after)  # type: ignore[attr-defined]


def is_ours(backend: Any) -> bool:
    """Whether a backend of ``settings.TASKS`` is a HorsiesBackend."""
    return hasattr(backend, "horsies_options")


def declare(task: Any) -> TaskDefinition:
    """Register the definition of a task for the workers of this process, unless its function has one; return it.

    Raises InvalidTask for a function that cannot be a task, and if another function has its dotted path.
    """
    name = task.module_path
    known = registry.find(name)
    if known is not None:
        function = getattr(known.function, "__wrapped__", known.function)
        if known.codec is not None and function is task.func:
            return known
        if known.codec is None or not same_place(function, task.func):
            raise task.get_backend().api.invalid_task(
                f"Two functions are tasks named {name}: one in {place(function)} and one in {place(task.func)}. "
                "Workers find a task by that name: give one of them another name."
            )
    try:
        definition = definition_of(task)
    except TaskDefinitionError as error:
        raise task.get_backend().api.invalid_task(str(error)) from error
    registry.register(definition)
    declared[name] = task
    return definition


def definition_of(task: Any) -> TaskDefinition:
    """Return the definition of a task with its own options and those of its backend. Raises TaskDefinitionError."""
    if inspect.isgeneratorfunction(task.func) or inspect.isasyncgenfunction(task.func):
        raise TaskDefinitionError(f"{task.module_path} is a generator: a task returns one value, so it cannot yield")
    definition = define_plain(
        wrapped(task),
        takes_context=task.takes_context,
        decide=decide,
        **sending_options(task),
    )
    return dataclasses.replace(definition, exception_mapper=INTERRUPTED)


def sending_options(task: Any) -> dict[str, Any]:
    return {
        "queue": task.queue_name,
        "priority": stored_priority(int(task.priority)),
        "retry_policy": retries_of(task).policy(),
        "timeout_ms": timeout_of(task),
    }


def same_place(one: Any, other: Any) -> bool:
    """Whether two functions are one that was defined again, as by a reload of its module."""
    return bool(one.__code__.co_filename == other.__code__.co_filename)


def place(function: Any) -> str:
    return f"{function.__code__.co_filename}, line {function.__code__.co_firstlineno}"


def rebuilt(task: Any, **changes: Any) -> Any:
    """Return a copy of a task with other values, without validation: settings may have changed since it was sent."""
    copy = object.__new__(type(task))
    for field in dataclasses.fields(task):
        value = changes[field.name] if field.name in changes else getattr(task, field.name)
        object.__setattr__(copy, field.name, value)
    return copy


def find(name: str, task_class: Any) -> Any:
    """Return the task of that dotted path; one without code if there is none (any more), whose call raises LookupError."""
    if registry.find_or_import(name) is not None and name in declared:
        return declared[name]
    placeholder = object.__new__(task_class)
    values: dict[str, Any] = {"func": gone(name), "backend": "default", "takes_context": False}
    for field in dataclasses.fields(task_class):
        object.__setattr__(placeholder, field.name, values.get(field.name))
    return placeholder


def gone(name: str) -> Any:
    """Return a function that stands for one that does not exist."""

    def missing(*args: Any, **kwargs: Any) -> None:
        raise LookupError(
            f"there is no task {name!r}: its function was renamed or removed, or its module is not imported"
        )

    missing.__module__, _, missing.__qualname__ = name.rpartition(".")
    missing.__name__ = missing.__qualname__
    return missing
