"""Forms that change one row, as the management commands do; shared by the pages of queues, schedules and workflows.

They need the permission ``horsies.configure_queue``, unless the page names another. The last change applies; the user is shown
what others changed while the form was open, according to the audit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.history import ACTIONS, changes, entries_of, shown_action
from horsies_django.admin.base.html import LAST, parse_id
from horsies_django.admin.base.refusals import answered, refusal
from horsies_django.conf import config
from horsies_django.core.errors import HorsiesError
from horsies_django.models import AuditEntry

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = object

LONGEST_REASON = 1_000
ADD = "add"  # the form that creates a row; all other forms change one


class Tool(NamedTuple):
    """A link from the page of a row to one of its forms."""

    url: str
    text: str | Promise


class Words(NamedTuple):
    """Messages about a row: ``name`` is its name, ``did`` the change, ``actor`` another user."""

    missing: str | Promise
    same: str | Promise
    done: str | Promise
    meanwhile: str | Promise


class ChangeForm(forms.Form):
    """A change of one row. ``apply`` calls the function that the management command calls too."""

    action: ClassVar[str]  # its name in the audit
    title: ClassVar[str | Promise]
    button: ClassVar[str | Promise]
    way: ClassVar[str | Promise] = ""  # text of the link to the form, if it differs from the button
    explanation: ClassVar[str | Promise] = ""
    deletes: ClassVar[bool] = False  # then there is no page of the row to return to

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Recorded in the audit."),
    )

    def __init__(self, *args: Any, row: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = row
        self.request = request

    @property
    def fieldsets(self) -> list[tuple[Any, dict[str, Any]]]:
        """The fields as ``AdminForm`` takes them."""
        return [(None, {"fields": list(self.fields)})]

    def apply(self, actor: str) -> list[str]:
        """Make the change; return the names of the changed columns. Raises HorsiesError."""
        raise NotImplementedError

    @property
    def why(self) -> str | None:
        return self.cleaned_data["reason"] or None


class ChangeMixin(Base):
    """Adds the change forms of a row to its page."""

    change_forms: ClassVar[Mapping[str, type[ChangeForm]]]
    subjects: ClassVar[str]  # prefix of the audit actions on such rows
    words: ClassVar[Words]
    change_permission: ClassVar[str] = "horsies.configure_queue"

    def has_configure_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see and change such rows."""
        return self.has_view_permission(request) and request.user.has_perm(self.change_permission)

    def changed_row(self, request: HttpRequest, name: str) -> Model | None:
        return None if "\x00" in name else self.get_queryset(request).filter(pk=name).first()

    def get_urls(self) -> list[Any]:
        own = [
            path(f"{'' if verb == ADD else '<path:object_id>/'}{verb}/", self._wrapped(verb), name=self._page(verb))
            for verb in sorted(self.change_forms)
        ]
        return [*own, *super().get_urls()]

    def _wrapped(self, verb: str) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, object_id: str | None = None) -> HttpResponse:
            return answered(self, request, lambda: self.configure_view(request, object_id, verb))

        wrapped: Any = self.admin_site.admin_view(view)
        # A change blocks all passes until it commits, and may have to be retried, so it runs in a transaction of its own and not
        # in that of the request (ATOMIC_REQUESTS).
        for alias in connections:
            wrapped = transaction.non_atomic_requests(using=alias)(wrapped)
        view_: Callable[..., HttpResponse] = wrapped
        return view_

    def _page(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    def verbs(self, row: Any) -> list[str]:
        """Return the forms that apply to a row in its current state."""
        raise NotImplementedError

    def tools(self, request: HttpRequest, row: Model) -> list[Tool]:
        """Return links to the forms that apply to a row and that this user may open."""
        return [self.tool(verb, row) for verb in self.verbs(row)] if self.has_configure_permission(request) else []

    def tool(self, verb: str, row: Model) -> Tool:
        form = self.change_forms[verb]
        return Tool(self._url(verb, row), form.way or form.button)

    def _url(self, page: str, row: Model | None = None) -> str:
        args = () if row is None else (quote(row.pk),)
        return reverse(f"admin:{self._page(page)}", args=args, current_app=self.admin_site.name)

    def configure_view(self, request: HttpRequest, object_id: str | None, verb: str) -> HttpResponse:
        """Show a form or make its change; without an id, create a row. Raises PermissionDenied."""
        if not self.has_configure_permission(request):
            raise PermissionDenied
        row: Any = self.model()
        if object_id is not None:
            name = unquote(object_id)
            row = self.changed_row(request, name)
            if row is None:
                self.message_user(request, self.words.missing % {"name": name}, messages.WARNING)
                return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))
        posted = request.method == "POST"
        seen = parse_id(request.POST.get("seen", "")) if posted else None
        if seen is None:
            seen = self._newest_entry(row)
        form = self.change_forms[verb](request.POST if posted else None, row=row, request=request)
        if posted and form.is_valid() and self._made(request, form, seen):
            return HttpResponseRedirect(self._url("changelist") if form.deletes else self._url("change", form.row))
        return self._form_page(request, form, seen, adds=object_id is None)

    def _made(self, request: HttpRequest, form: ChangeForm, seen: uuid.UUID) -> bool:
        """Make the change and show what it did, or add the error to the form. Return whether it was made."""
        actor = request.user.get_username()
        try:
            changed = form.apply(actor)
        except HorsiesError as error:
            form.add_error(None, str(error))
        except DatabaseError as error:  # missing privileges, a read-only database, a lost connection
            form.add_error(None, refusal(error))
        else:
            self.tell(request, form, seen if changed else None)
            return True
        return False

    def tell(self, request: HttpRequest, form: ChangeForm, seen: uuid.UUID | None) -> None:
        """Show what changed, according to the audit, and what others changed while the form was open."""
        name = {"name": str(form.row)}
        if seen is None:
            self.message_user(request, self.words.same % name, messages.INFO)
            return
        since = list(self._entries(form.row).filter(pk__gt=seen).order_by("-pk")[:LAST])
        me = request.user.get_username()
        mine = next((entry for entry in since if (entry.actor, entry.action) == (me, form.action)), None)
        for entry in reversed(since):
            values = {**name, "actor": entry.actor, "did": "; ".join([shown_action(entry), *changes(entry)])}
            if entry is mine:
                self.message_user(request, self.words.done % values, messages.SUCCESS)
            else:
                self.message_user(request, self.words.meanwhile % values, messages.WARNING)
        if mine is None:
            did = _("%(action)s, but the audit has no entry of it") % {"action": ACTIONS.get(form.action, form.action)}
            self.message_user(request, self.words.done % {**name, "did": did}, messages.WARNING)

    def _form_page(self, request: Any, form: ChangeForm, seen: uuid.UUID, adds: bool) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": form.title % {"name": form.row},
            "opts": self.opts,
            "add": adds,
            "original": None if adds else form.row,
            "has_view_permission": True,
            "media": self.media,
            "form": form,
            "adminform": AdminForm(form, form.fieldsets, {}),  # type: ignore[arg-type]
            "seen": seen,
            "back_url": self._url("changelist") if adds else self._url("change", form.row),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/horsies/configure.html", context)

    def _entries(self, row: Model) -> QuerySet[AuditEntry]:
        return entries_of(config().database, row.pk, self.subjects)

    def _newest_entry(self, row: Model) -> uuid.UUID:
        """Return the id of the last audit entry about the row; ids ascend with time."""
        return self._entries(row).values_list("pk", flat=True).first() or uuid.UUID(int=0)
