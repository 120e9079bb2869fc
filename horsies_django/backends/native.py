"""The backend for Django's own ``django.tasks``, which is part of Django since 6.0."""

from __future__ import annotations

from dataclasses import dataclass

from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskResult

from horsies_django.backends.backend import BackendMixin
from horsies_django.backends.results import Api, ResultMixin
from horsies_django.backends.tasks import TaskMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class HorsiesTask(TaskMixin, Task):  # type: ignore[type-arg]
    """A task of ``HorsiesBackend``.

    An option that is None has its value in the OPTIONS of the backend.
    """


class HorsiesTaskResult(ResultMixin, TaskResult):  # type: ignore[type-arg]
    """The result of a task of ``HorsiesBackend``."""

    __slots__ = ()


class HorsiesBackend(BackendMixin, BaseTaskBackend):
    """A backend that sends tasks of ``django.tasks`` to the workers of horsies_django."""

    api = Api("django.tasks")
    task_class = HorsiesTask
    result_class = HorsiesTaskResult
