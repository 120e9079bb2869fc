"""Actions on tasks in the list: cancel, terminate, run again. They need ``horsies.operate_task`` and are audited."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, gettext_lazy, ngettext

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
    """Adds the actions on selected tasks."""

    actions = ("cancel_tasks", "terminate_tasks", "retry_tasks")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel tasks and run them again."""
        return request.user.has_perm("horsies.operate_task")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return only these actions, without Django's delete. Django 6.1 and newer pass ``action_location``."""
        where = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **where)
        return {name: action for name, action in offered.items() if name in OperateMixin.actions}

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel"))
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel waiting tasks, and ask running tasks to stop."""
        self._cancel(request, queryset, terminate=False)

    @admin.action(
        permissions=["operate"], description=gettext_lazy("Cancel, and kill the processes of tasks that do not stop")
    )
    def terminate_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel waiting tasks, and terminate running tasks."""
        self._cancel(request, queryset, terminate=True)

    @admin.action(permissions=["operate"], description=gettext_lazy("Run again"))
    def retry_tasks(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Run failed, expired and cancelled tasks again, and make waiting retries due now.

        Asks for confirmation if a task has already been run again.
        """
        others = "again_others" in request.POST  # a button of the confirmation page
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
        """Run tasks again; those that have copies only if the user was ``asked`` about them."""
        done = 0
        for id_ in ids:
            try:
                with patiently():
                    operations.retry(id_, actor=request.user.get_username(), again=str(id_) in asked)
                done += 1
            except (TaskNotRetryable, LookupError) as error:
                self.message_user(request, str(error), messages.WARNING)
            except DatabaseError as error:  # the other tasks would fail in the same way
                self.message_user(request, refusal(error), messages.ERROR)
                break
        if done:
            text = ngettext("%(count)d task will run again.", "%(count)d tasks will run again.", done)
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
        text = gettext(
            "%(cancelled)d cancelled, %(requested)d running and asked to stop, %(finished)d already finished."
        )
        counts = {name.lower(): verdicts[name] for name in ("CANCELLED", "REQUESTED", "FINISHED")}
        self.message_user(request, text % counts, messages.SUCCESS)
