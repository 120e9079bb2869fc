"""What the page of a task shows below its fields: why it is not running, and its steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import absolute
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.admin.base.reason_lines import Line, reason_line
from horsies_django.admin.base.sizes import MANY, PATIENCE_MS
from horsies_django.core.status import Status
from horsies_django.models import Task, TaskStep
from horsies_django.monitoring.explain import explain


class Panel(NamedTuple):
    """The panel with the reasons; ``lines`` is None if finding them timed out."""

    title: str | Promise
    lines: list[Line] | None


def panel(page: Any, request: HttpRequest, task: Task, visible: bool) -> Panel | None:
    """Return the reasons for an unfinished task, None for a finished one; ``visible``: the user may see its payload."""
    if task.finished_at is not None:
        return None
    title = _("Where is it running?") if task.status == Status.RUNNING else _("Why is it not running?")
    try:
        found = read_bounded(task._state.db or "", lambda: explain(task.pk), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return None
    lines = None if found is None else [reason_line(page, request, reason, visible) for reason in found.reasons]
    return Panel(title, lines)


class StepRow(NamedTuple):
    """A row of the table of steps."""

    name: str
    recorded: SafeString | str


def step_rows(task: Task) -> list[StepRow]:
    """Return the newest steps of a task, the newest first. Results are not read: those of a long task could be a gigabyte."""
    steps = TaskStep.objects.using(task._state.db).filter(task_id=task.pk).order_by("-created_at", "name")
    return [StepRow(name, absolute(at)) for name, at in steps.values_list("name", "created_at")[:MANY]]
