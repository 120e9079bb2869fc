"""The actions on tasks in the list: cancel, terminate, run again; for those with ``horsies.operate_task``, and audited."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from horsies_django import acting
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.models import Task

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Task]
else:
    Base = object


class OperateMixin(Base):
    """What may be done to the tasks that are ticked."""

    actions = ("cancel_tasks", "terminate_tasks", "retry_tasks")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel tasks and run them again."""
        return request.user.has_perm("horsies.operate_task")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Offer only our own: Django would add one that deletes. ``action_location`` is passed by Django 6.1 and newer."""
        where = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **where)
        return {name: action for name, action in offered.items() if name in OperateMixin.actions}

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel"))
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel what waits, and ask what runs to end."""
        self._cancel(request, queryset, terminate=False)

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel, and kill the process of what goes on"))
    def terminate_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel what waits, and end what runs."""
        self._cancel(request, queryset, terminate=True)

    @admin.action(permissions=["operate"], description=gettext_lazy("Run again"))
    def retry_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Run again what failed, expired or was cancelled, and at once what waits for its next attempt."""
        done = 0
        for id_ in list(queryset.values_list("pk", flat=True)):
            try:
                acting.retry(id_, actor=request.user.get_username())
                done += 1
            except (TaskNotRetryable, LookupError) as error:
                self.message_user(request, str(error), messages.WARNING)
        if done:
            text = ngettext("%(count)d task runs again.", "%(count)d tasks run again.", done)
            self.message_user(request, text % {"count": done}, messages.SUCCESS)

    def _cancel(self, request: HttpRequest, queryset: QuerySet[Task], *, terminate: bool) -> None:
        ids = list(queryset.values_list("pk", flat=True))
        verdicts = Counter(acting.cancel(ids, terminate=terminate, actor=request.user.get_username()).values())
        text = _("%(cancelled)d cancelled, %(requested)d running and asked to end, %(finished)d over already.")
        counts = {name.lower(): verdicts[name] for name in ("CANCELLED", "REQUESTED", "FINISHED")}
        self.message_user(request, text % counts, messages.SUCCESS)
