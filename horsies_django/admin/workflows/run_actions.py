"""Actions on selected runs in the list: pause, resume, cancel, retry. They need ``horsies.operate_workflow`` and are audited."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy, ngettext

from horsies_django.admin.base.change_forms import LONGEST_REASON
from horsies_django.admin.base.refusals import patiently, refusal
from horsies_django.core.errors import WorkflowError
from horsies_django.models import WorkflowRun
from horsies_django.workflows import operations

if TYPE_CHECKING:
    Base = admin.ModelAdmin[WorkflowRun]
else:
    Base = object


class ReasonForm(ActionForm):
    """The bar of actions, with a field for the reason."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class RunActionsMixin(Base):
    """Adds the actions on selected runs."""

    actions = ("pause_runs", "resume_runs", "cancel_runs", "retry_runs")
    action_form = ReasonForm

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may change runs."""
        return request.user.has_perm("horsies.operate_workflow")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return only these actions, without Django's delete. Django 6.1 and newer pass ``action_location``."""
        where = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **where)
        return {name: action for name, action in offered.items() if name in RunActionsMixin.actions}

    @admin.action(permissions=["operate"], description=gettext_lazy("Pause"))
    def pause_runs(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> None:
        """Start no other nodes of these runs."""
        self._control(request, queryset, "pause")

    @admin.action(permissions=["operate"], description=gettext_lazy("Resume"))
    def resume_runs(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> None:
        self._control(request, queryset, "resume")

    @admin.action(permissions=["operate"], description=gettext_lazy("Cancel"))
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> None:
        self._control(request, queryset, "cancel")

    @admin.action(permissions=["operate"], description=gettext_lazy("Retry"))
    def retry_runs(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> None:
        """Run the failed nodes of runs again."""

        def retry(run: uuid.UUID, **who: Any) -> bool:
            operations.retry(run, **who)
            return True

        self._each(request, queryset, retry)

    def _control(self, request: HttpRequest, queryset: QuerySet[WorkflowRun], verb: str) -> None:
        self._each(request, queryset, lambda run, **who: operations.control(run, verb, **who))

    def _each(self, request: HttpRequest, queryset: QuerySet[WorkflowRun], change: Callable[..., bool]) -> None:
        """Change the selected runs one by one, and say how many of them changed."""
        who = {
            "actor": request.user.get_username(),
            "reason": request.POST.get("reason", "").strip()[:LONGEST_REASON] or None,
        }
        done = same = 0
        try:
            for run in list(queryset.values_list("pk", flat=True)):
                try:
                    with patiently():
                        changed = change(run, **who)
                except (WorkflowError, LookupError) as error:
                    self.message_user(request, str(error), messages.WARNING)
                    continue
                done, same = done + changed, same + (not changed)
        except DatabaseError as error:  # the other runs would fail in the same way
            self.message_user(request, refusal(error), messages.ERROR)
        if done:
            text = ngettext("%(count)d run was changed.", "%(count)d runs were changed.", done)
            self.message_user(request, text % {"count": done}, messages.SUCCESS)
        if same:
            text = ngettext(
                "%(count)d run was left as it is, because of its status.",
                "%(count)d runs were left as they are, because of their status.",
                same,
            )
            self.message_user(request, text % {"count": same}, messages.INFO)
