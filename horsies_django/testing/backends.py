"""Django's backends for tests, for tasks of ``django.tasks`` that use options of
``HorsiesBackend``.

In Django's own, ``@task(max_attempts=3)`` cannot be imported. These take the options; they neither
retry nor send anything.
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
    """Takes the tasks that ``HorsiesBackend`` takes."""

    task_class = HorsiesTask

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, {"QUEUES": [], **params})

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for a task that cannot be run.

        ``run_after`` may also be a timedelta.
        """
        if isinstance(task.run_after, dt.timedelta):
            task = dataclasses.replace(task, run_after=timezone.now() + task.run_after)
        super().validate_task(task)


class ImmediateBackend(Twin, Immediate):
    """Runs each task in ``enqueue``, once, in the thread of the caller, without the queue."""


class DummyBackend(Twin, Dummy):
    """Runs nothing, and keeps what is enqueued in ``results``, until ``clear()``."""
