"""The pages that change a schedule: run now, enable, disable, edit, revert, delete, add; with ``horsies.configure_queue``."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import (
    ChangeForm,
    ChangeMixin,
    Words,
)
from horsies_django.admin.base.history import OF_SCHEDULES
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin
from horsies_django.admin.schedules.schedule_forms import FORMS, RunNowForm
from horsies_django.models import Schedule, Task
from horsies_django.monitoring.overview import as_object, changed_keys
from horsies_django.tasks import registry


class EditMixin(ChangeMixin, ReadOnlyAdminMixin):
    """The forms that change a schedule."""

    change_forms = FORMS
    subjects = OF_SCHEDULES
    words = Words(
        gettext_lazy("There is no schedule “%(name)s”."),
        gettext_lazy("Schedule %(name)s: nothing was changed, because it already has these values."),
        gettext_lazy("Schedule %(name)s: %(did)s."),
        gettext_lazy(
            "While the form was open, %(actor)s also changed schedule %(name)s: %(did)s. The last change applies."
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_configure_permission(request)

    def verbs(self, row: Schedule) -> list[str]:
        """Return run now, enable or disable, edit, revert, and delete if no code declares the schedule."""
        off = as_object(row.definition).get("enabled") is False
        verbs = ["run_now", *([] if row.gone_at else ["enable" if off else "disable"]), "edit"]
        undeclared = row.declared_in is None or row.gone_at is not None
        return verbs + ["revert"] * bool(changed_keys(row)) + ["delete"] * undeclared

    def configure_view(self, request: HttpRequest, object_id: str | None, verb: str) -> HttpResponse:
        """Show a form or make its change, after importing the project's tasks, which a web process does only when needed."""
        if self.has_configure_permission(request):
            for problem in registry.autodiscover():
                text = _("The tasks of %(module)s are missing because it cannot be imported: %(error)s")
                values = {"module": problem.module, "error": problem.error}
                self.message_user(request, text % values, messages.WARNING)
        return super().configure_view(request, object_id, verb)

    def tell(self, request: HttpRequest, form: ChangeForm, seen: uuid.UUID | None) -> None:
        """Link to the task that was sent, or say what changed."""
        if not isinstance(form, RunNowForm):
            super().tell(request, form, seen)
            return
        task = self.link(request, Task, form.task_id, str(form.task_id))
        text = format_html(_("Schedule {}: its task was sent, {}."), form.row, task)
        self.message_user(request, text, messages.SUCCESS)
