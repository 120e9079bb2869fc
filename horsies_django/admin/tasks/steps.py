"""The recorded steps of a task, by name; their results are not read, because those of a long task could be a gigabyte."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.safestring import SafeString

from horsies_django.admin.base.html import absolute
from horsies_django.models import Task, TaskStep

MOST = 100  # on the page of a task


class StepRow(NamedTuple):
    """A row of the table of steps."""

    name: str
    recorded: SafeString | str


def step_rows(task: Task) -> list[StepRow]:
    """Return the newest steps of a task, the newest first."""
    steps = TaskStep.objects.using(task._state.db).filter(task_id=task.pk).order_by("-created_at", "name")
    return [StepRow(name, absolute(at)) for name, at in steps.values_list("name", "created_at")[:MOST]]
