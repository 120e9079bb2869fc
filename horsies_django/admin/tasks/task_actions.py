"""The actions on tasks in the list: cancel, terminate, run again; for those with ``horsies.operate_task``, and audited."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from horsies_django.admin.base.refusals import patiently, refusal
from horsies_django.admin.tasks.copies import ask, copied_rows
from horsies_django.core.errors import TaskNotRetryable
from horsies_django.models import Task
from horsies_django.monitoring import overview
from horsies_django.tasks import operations

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
    def retry_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Run again what failed, expired or was cancelled, and at once what waits for its next attempt.

        Asks before it sends a task once more that was sent once more before.
        """
        others = "again_others" in request.POST  # one of the buttons of the question
        answered = others or "again_all" in request.POST
        asked = set(request.POST.getlist("asked")) if answered else set()
        try:
            ids = list(queryset.values_list("pk", flat=True))
            if not answered and (copied := overview.copies(ids)):
                return ask(self, request, ids, copied_rows(self, request, copied))
        except DatabaseError as error:
            self.message_user(request, refusal(error), messages.ERROR)
            return None
        self._retry(request, [id_ for id_ in ids if not others or str(id_) not in asked], asked)
        return None

    def _retry(self, request: HttpRequest, ids: list[uuid.UUID], asked: set[str]) -> None:
        """Run tasks again; those of which there are copies only where the user was ``asked``."""
        done = 0
        for id_ in ids:
            try:
                with patiently():
                    operations.retry(id_, actor=request.user.get_username(), again=str(id_) in asked)
                done += 1
            except (TaskNotRetryable, LookupError) as error:
                self.message_user(request, str(error), messages.WARNING)
            except DatabaseError as error:  # it would refuse the others too, or keep them waiting one by one
                self.message_user(request, refusal(error), messages.ERROR)
                break
        if done:
            text = ngettext("%(count)d task runs again.", "%(count)d tasks run again.", done)
            self.message_user(request, text % {"count": done}, messages.SUCCESS)

    def _cancel(self, request: HttpRequest, queryset: QuerySet[Task], *, terminate: bool) -> None:
        actor = request.user.get_username()
        try:
            ids = list(queryset.values_list("pk", flat=True))
            with patiently():
                verdicts = Counter(operations.cancel(ids, terminate=terminate, actor=actor).values())
        except DatabaseError as error:
            self.message_user(request, refusal(error), messages.ERROR)
            return
        text = _("%(cancelled)d cancelled, %(requested)d running and asked to end, %(finished)d over already.")
        counts = {name.lower(): verdicts[name] for name in ("CANCELLED", "REQUESTED", "FINISHED")}
        self.message_user(request, text % counts, messages.SUCCESS)
