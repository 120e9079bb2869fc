"""The forms of a task's buttons: each acts once, and only on the task as its user saw it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _

from horsies_django.admin.base.change_forms import ChangeForm, ChangeMixin, OvertakenError
from horsies_django.admin.base.history import OF_TASKS, entries_of, shown_action
from horsies_django.admin.base.readonly import patiently
from horsies_django.models import Task


class TaskForm(ChangeForm):
    """Does something to one task, unless somebody has done something to it since, or it has ended or begun again."""

    state = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        if not self.is_bound:
            self.fields["state"].initial = self.state_of(self.row)

    def state_of(self, task: Any) -> str:
        self.last = entries_of(task._state.db, task.pk, OF_TASKS).first()
        return f"{self.last and self.last.pk} {task.finished_at and task.finished_at.isoformat()}"

    def apply(self, *given: Any, **how: Any) -> Any:
        """Act in the open transaction. The lock keeps the second of two clicks waiting, until it sees what the first one did."""
        rows = Task.objects.using(self.row._state.db).select_for_update(no_key=True).filter(pk=self.row.pk)
        task = rows.only("status", "finished_at").first()
        if task is not None and self.state_of(task) != self.cleaned_data["state"]:
            text = _("Nothing was done, because the task has changed since the form was opened: it is %(status)s now.")
            last = f" {self.last.actor}: {shown_action(self.last)}." if self.last else ""
            raise OvertakenError(text % {"status": task.status} + last)
        return super().apply(*given, **how)


class TaskChangeMixin(ChangeMixin):
    """Adds the buttons of a task and their forms."""

    subjects = OF_TASKS
    change_form = TaskForm
    guard = staticmethod(patiently)
