"""The forms that change a run, for ``horsies.operate_workflow``; and what all pages of a run share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeForm, ChangeMixin, Words
from horsies_django.admin.base.history import OF_WORKFLOWS
from horsies_django.admin.base.html import LONGEST_NAME, parse_id
from horsies_django.admin.base.refusals import patiently
from horsies_django.admin.workflows.nodes import LARGEST
from horsies_django.core.errors import WorkflowError
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.monitoring.explain import find_node
from horsies_django.workflows import operations

if TYPE_CHECKING:
    Base = admin.ModelAdmin[WorkflowRun]
else:
    Base = object


class RunForm(ChangeForm):
    """A change of one run."""

    row: WorkflowRun
    verb: ClassVar[str]

    def apply(self, actor: str) -> list[str]:
        """Make the change; return ["status"] if it changed anything. Raises WorkflowError."""
        try:
            with patiently():
                return ["status"] if self.change(actor) else []
        except LookupError as error:
            raise WorkflowError(str(error)) from error

    def change(self, actor: str) -> bool:
        """Pause, resume or cancel the run; return whether its status changed."""
        return operations.control(self.row.pk, self.verb, actor=actor, reason=self.why)


class PauseForm(RunForm):
    """Pauses the run."""

    verb = "pause"
    action = "workflow.pause"
    title = gettext_lazy("Pause %(name)s")
    button = gettext_lazy("Pause")
    explanation = gettext_lazy(
        "No other node starts until the run is resumed. Running tasks end; tasks that were not tried yet are withdrawn."
    )


class ResumeForm(RunForm):
    """Resumes the run."""

    verb = "resume"
    action = "workflow.resume"
    title = gettext_lazy("Resume %(name)s")
    button = gettext_lazy("Resume")
    explanation = gettext_lazy("Nodes that are ready start again.")


class CancelForm(RunForm):
    """Cancels the run."""

    verb = "cancel"
    action = "workflow.cancel"
    title = gettext_lazy("Cancel %(name)s")
    button = gettext_lazy("Cancel the run")
    way = gettext_lazy("Cancel")
    explanation = gettext_lazy(
        "Nodes that have not started are cancelled. Running tasks are asked to stop. Nodes that have begun are"
        " undone if they have an undo."
    )


class RetryForm(RunForm):
    """Runs the failed nodes again."""

    action = "workflow.retry"
    title = gettext_lazy("Retry %(name)s")
    button = gettext_lazy("Retry")
    explanation = gettext_lazy(
        "Nodes that failed, expired or were cancelled run again, and so do those that were skipped because of them. What"
        " completed is kept. If nodes were undone, only failed undos run again."
    )

    def change(self, actor: str) -> bool:
        operations.retry(self.row.pk, actor=actor, reason=self.why)
        return True


class NodeForm(RunForm):
    """A change of one node of the run."""

    node = forms.CharField(
        label=gettext_lazy("Node"),
        max_length=LONGEST_NAME,
        strip=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("Its name or its number."),
    )
    field_order = ("node", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["node"].initial = self.request.GET.get("node")

    @property
    def number(self) -> int:
        """The number of the node. Raises LookupError if there is no such node."""
        return find_node(self.row.pk, self.cleaned_data["node"])


class SkipForm(NodeForm):
    """Skips a node."""

    action = "workflow.skip"
    title = gettext_lazy("Skip a node of %(name)s")
    button = gettext_lazy("Skip the node")
    way = gettext_lazy("Skip a node")
    explanation = gettext_lazy(
        "Only a node that has not begun can be skipped. Nodes that depend on it may be skipped, too."
    )

    def change(self, actor: str) -> bool:
        operations.skip(self.row.pk, self.number, actor=actor, reason=self.why)
        return True


class ApproveForm(RunForm):
    """Approves one opening of a gate, the one that the page of the gate showed: a later one is another decision."""

    verb = "approve"
    action = "workflow.approve"
    title = gettext_lazy("Approve a gate of %(name)s")
    button = gettext_lazy("Approve")
    explanation = gettext_lazy("The gate completes, and the nodes that depend on it run.")
    node = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=LARGEST)
    opening = forms.IntegerField(widget=forms.HiddenInput, min_value=0, max_value=2**31 - 1)

    def change(self, actor: str) -> bool:
        """Approve or reject the gate, with the permission of the user."""
        node, opening = self.cleaned_data["node"], self.cleaned_data["opening"]
        user, approved = self.request.user, self.verb == "approve"
        operations.decide_opening(self.row.pk, node, opening, approved=approved, user=user, reason=self.why)
        return True


class RejectForm(ApproveForm):
    """Rejects a gate."""

    verb = "reject"
    action = "workflow.reject"
    title = gettext_lazy("Reject a gate of %(name)s")
    button = gettext_lazy("Reject")
    explanation = gettext_lazy("The gate fails, and so does what depends on it.")


FORMS: Mapping[str, type[ChangeForm]] = {
    "pause": PauseForm,
    "resume": ResumeForm,
    "cancel": CancelForm,
    "retry": RetryForm,
    "skip": SkipForm,
    "approve": ApproveForm,
    "reject": RejectForm,
}
ENDED_BADLY = ("FAILED", "CANCELLED")


class OperateMixin(ChangeMixin):
    """Adds the change forms of a run to its page."""

    change_forms = FORMS
    change_permission = "horsies.operate_workflow"
    subjects = OF_WORKFLOWS
    words = Words(
        gettext_lazy("There is no workflow run “%(name)s”."),
        gettext_lazy("Run %(name)s: nothing was changed, because its status allows nothing to change."),
        gettext_lazy("Run %(name)s: %(did)s."),
        gettext_lazy("While the form was open, %(actor)s also changed run %(name)s: %(did)s."),
    )

    def changed_row(self, request: HttpRequest, name: str) -> Model | None:
        """Return the run of a form, None if there is none."""
        id_ = parse_id(name)
        return None if id_ is None else self.get_queryset(request).filter(pk=id_).first()

    def verbs(self, row: WorkflowRun) -> list[str]:
        """Return the changes that the status of a run allows. A finished child run is retried with its parent."""
        if row.status == "COMPENSATING":
            return ["skip"]
        unfinished = row.finished_at is None
        verbs = (["resume"] if row.status == "PAUSED" else ["pause"]) if unfinished else []
        ended_badly = row.status in ENDED_BADLY and row.parent_id is None and not is_undone(row)
        if row.error_node is not None and unfinished or ended_badly:
            verbs.append("retry")
        return [*verbs, "skip", "cancel"] if unfinished else verbs


def is_undone(row: WorkflowRun) -> bool:
    error = row.result.get("err") if isinstance(row.result, dict) else None
    data = error.get("data") if isinstance(error, dict) else None
    return isinstance(data, dict) and "undone" in data and "not_undone" not in data


def lacked(page: Any, request: HttpRequest, gate: WorkflowNode) -> str:
    """Return the permission that the user lacks to approve and reject a gate, "" if none."""
    if not page.has_configure_permission(request):
        return str(page.change_permission)
    return "" if not gate.permission or request.user.has_perm(gate.permission) else gate.permission


class RunPagesMixin(Base):
    """Finds the run of a page, and gives the addresses of its pages."""

    def find_run(self, request: HttpRequest, object_id: str) -> Any:
        """Return the run of an address, None if there is none. Raises PermissionDenied if the user may not see it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        id_ = parse_id(unquote(object_id))
        return None if id_ is None else self.get_queryset(request).filter(pk=id_).first()

    def home(self, request: HttpRequest, text: str) -> HttpResponse:
        """Return to the index of the admin, and say there why."""
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))

    def no_run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return to the index, because there is no such run."""
        return self.home(request, _("There is no workflow run “%(name)s”.") % {"name": unquote(object_id)})

    def url_of(self, run: WorkflowRun, page: str = "change") -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=(quote(run.pk),), current_app=self.admin_site.name)
