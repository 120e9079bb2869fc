"""Django's backends for tests, for tasks of ``django.tasks`` with options of ``HorsiesBackend``.

A module with ``@task(max_attempts=3)`` cannot be imported with Django's own backends. The backends
here accept the options, but neither retry tasks nor send them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

import django
from django.utils import timezone

from horsies_django.backends import HorsiesTask

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.backends.dummy import DummyBackend as Dummy
    from django.tasks.backends.immediate import ImmediateBackend as Immediate
else:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.backends.dummy import DummyBackend as Dummy
    from django_tasks.backends.immediate import ImmediateBackend as Immediate


class Twin(BaseTaskBackend):
    """A backend that accepts the tasks that ``HorsiesBackend`` accepts."""

    task_class = HorsiesTask

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, {"QUEUES": [], **params})

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if a task cannot be run.

        ``run_after`` may also be a timedelta.
        """
        if isinstance(task.run_after, dt.timedelta):
            task = dataclasses.replace(task, run_after=timezone.now() + task.run_after)
        super().validate_task(task)


class ImmediateBackend(Twin, Immediate):
    """A backend that runs each task once in ``enqueue``, in the thread of the caller.

    It does not use the queue.
    """


class DummyBackend(Twin, Dummy):
    """A backend that runs no task, and keeps the enqueued ones in ``results`` until ``clear()``."""
