"""The forms about a node of a run, and what all pages of a run share."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import VERBS, ChangeForm, ChangeMixin
from horsies_django.admin.base.history import OF_WORKFLOWS
from horsies_django.admin.base.html import LONGEST_NAME
from horsies_django.admin.base.readonly import patiently
from horsies_django.admin.workflows.nodes import LARGEST
from horsies_django.models import WorkflowNode
from horsies_django.monitoring.explain import find_node


class SkipForm(ChangeForm):
    """Names the node to skip."""

    node = forms.CharField(
        label=gettext_lazy("Node"),
        max_length=LONGEST_NAME,
        strip=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("Its name or its number."),
    )
    field_order = ("node", "reason")

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.fields["node"].initial = self.request.GET.get("node")

    def apply(self) -> Any:
        return super().apply(find_node(self.row.pk, self.cleaned_data["node"]))


class DecisionForm(ChangeForm):
    """Decides about one opening of a gate, the one that the page of the gate showed: a later one is another decision."""

    node = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=LARGEST)
    opening = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**31 - 1)

    def apply(self) -> Any:
        """Approve or reject the gate, with the permission of the user."""
        return super().apply(self.cleaned_data["node"], self.cleaned_data["opening"], user=self.request.user)


def lacked(request: HttpRequest, gate: WorkflowNode) -> str:
    """Return the permission that the user lacks to approve and reject a gate, "" if none."""
    needed = VERBS[OF_WORKFLOWS]["approve"].permissions + ((gate.permission,) if gate.permission else ())
    return next((one for one in needed if not request.user.has_perm(one)), "")


class RunPagesMixin(ChangeMixin):
    """The change forms of a run; and finds the run of a page."""

    subjects = OF_WORKFLOWS
    change_forms: ClassVar = {"skip": SkipForm, "approve": DecisionForm, "reject": DecisionForm}
    guard = staticmethod(patiently)

    def page_of_run(self, request: Any, run: Any, template: str, title: str, context: dict[str, Any]) -> HttpResponse:
        """Return a page below that of a run."""
        context = {"run": run, "run_url": self.url_of(run), **context}
        return self.shown(request, f"workflowrun/{template}", title, context)

    def find_run(self, request: HttpRequest, object_id: str) -> Any:
        """Return the run of an address, None if there is none. Raises PermissionDenied if the user may not see it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.find(request, unquote(object_id))
