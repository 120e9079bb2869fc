"""The names under which tasks are stored, for functions that take a task."""

from __future__ import annotations

from typing import Any, Protocol

from horsies_django.tasks import registry
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.definition import TaskDefinition


class DjangoTask(Protocol):
    """A task of ``django.tasks``."""

    @property
    def module_path(self) -> str: ...


AnyTask = Sender[..., Any] | DjangoTask | str  # a task, or the name of one


def definition_of(task: AnyTask) -> TaskDefinition:
    """Return the definition of a task. Raises TypeError for what is none, LookupError for an unknown name."""
    if isinstance(task, Sender):
        return task._task
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    if not isinstance(name, str):
        raise TypeError(f"pass a task or the name of one, not {task!r:.100}")
    found = registry.find_or_import(name)
    if found is None:
        raise LookupError(
            f"there is no task named {name!r}: pass the task itself, or the full name of one in the tasks.py of an installed app"
        )
    return found
