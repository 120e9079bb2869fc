"""The forms that change one row, made from the table of verbs; shared by the pages of queues, schedules, workflows and tasks.

The last change applies; the user is shown what others changed while the form was open, according to the audit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.history import ACTIONS, changes, entries_of, shown_action
from horsies_django.admin.base.html import LAST, parse_id
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin
from horsies_django.admin.base.refusals import refusal
from horsies_django.admin.base.verbs import ADD, VERBS, Verb
from horsies_django.conf import config
from horsies_django.core.errors import HorsiesError
from horsies_django.core.texts import LONGEST_REASON
from horsies_django.models import AuditEntry, Task


class Tool(NamedTuple):
    """A link from the page of a row to one of its forms."""

    url: str
    text: str | Promise


class OvertakenError(Exception):
    """Nothing was done, because the row has changed since the form was opened; the message says how."""


class ChangeForm(forms.Form):
    """A change of one row. Those with fields of their own pass them on in ``apply``."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Recorded in the audit."),
    )

    def __init__(self, *args: Any, row: Any, request: HttpRequest, verb: Verb, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row, self.request, self.verb = row, request, verb
        self.fields["reason"].required = verb.needs_reason

    @property
    def fieldsets(self) -> list[tuple[Any, dict[str, Any]]]:
        """The fields as ``AdminForm`` takes them."""
        return [(None, {"fields": list(self.fields)})]

    def apply(self, *given: Any, **how: Any) -> Any:
        """Make the change; return what the function of the verb returns. Raises HorsiesError, LookupError, OvertakenError."""
        who = {} if "user" in how else {"actor": self.request.user.get_username()}
        return self.verb.run(self.row.pk, *given, **who, **how, reason=self.cleaned_data["reason"] or None)


class ChangeMixin(ReadOnlyAdminMixin):
    """Adds the change forms of a row to its page."""

    subjects: ClassVar[str]  # prefix of the audit actions on such rows, by which VERBS has theirs
    change_forms: ClassVar[Mapping[str, type[ChangeForm]]] = {}  # of verbs that take more than a reason
    change_form: ClassVar[type[ChangeForm]] = ChangeForm
    guard: Callable[[], AbstractContextManager[Any]] = nullcontext  # what a change is made in

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Whether the user may see such rows, and do this to them."""
        return self.has_view_permission(request) and request.user.has_perms(VERBS[self.subjects][verb].permissions)

    def get_urls(self) -> list[Any]:
        """Add the forms. A change blocks all passes until it commits, so each runs in a transaction of its own."""
        own = []
        for verb in VERBS[self.subjects]:
            view = self.view_of(partial(self.configure_view, name=verb), atomic=False)
            own.append(path(f"{'' if verb == ADD else '<path:object_id>/'}{verb}/", view, name=self._page(verb)))
        return [*own, *super().get_urls()]

    def _page(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    def tools(self, request: HttpRequest, row: Any) -> list[Tool]:
        """Return links to the forms that the state of a row allows and that this user may open."""
        verbs = VERBS[self.subjects].items()
        return [
            Tool(self.url_of(row, name), verb.label)
            for name, verb in verbs
            if self.may(request, name) and verb.when(row)
        ]

    def url_of(self, row: Any, page: str = "change") -> str:
        return reverse(f"admin:{self._page(page)}", args=(quote(row.pk),), current_app=self.admin_site.name)

    def list_url(self) -> str:
        return reverse(f"admin:{self._page('changelist')}", current_app=self.admin_site.name)

    def configure_view(self, request: HttpRequest, object_id: str | None = None, *, name: str) -> HttpResponse:
        """Show a form or make its change; without an id, create a row. Raises PermissionDenied."""
        if not self.may(request, name):
            raise PermissionDenied
        row: Any = self.model()
        if object_id is not None:
            row = self.find(request, unquote(object_id))
            if row is None:
                text = _("There is no %(kind)s “%(name)s”.")
                return self.home(request, text % {"kind": self.opts.verbose_name, "name": unquote(object_id)})
        posted = request.method == "POST"
        seen = parse_id(request.POST.get("seen", "")) if posted else None
        if seen is None:
            seen = self._newest_entry(row)
        made = self.change_forms.get(name, self.change_form)
        form = made(request.POST if posted else None, row=row, request=request, verb=VERBS[self.subjects][name])
        if posted and form.is_valid() and self._made(request, form, seen):
            return HttpResponseRedirect(self.list_url() if form.verb.deletes else self.url_of(form.row))
        return self._form_page(request, form, seen, adds=object_id is None)

    def _made(self, request: HttpRequest, form: ChangeForm, seen: uuid.UUID) -> bool:
        """Make the change and show what it did, or add the error to the form. Return whether the form is done with."""
        try:
            with self.guard():
                found = form.apply()
        except (HorsiesError, LookupError) as error:
            form.add_error(None, str(error))
        except OvertakenError as error:
            self.message_user(request, str(error), messages.WARNING)
            return True
        except DatabaseError as error:  # missing privileges, a read-only database, a lost connection
            form.add_error(None, refusal(error))
        else:
            self.tell(request, form, found, seen)
            return True
        return False

    def tell(self, request: HttpRequest, form: ChangeForm, found: Any, seen: uuid.UUID) -> None:
        """Show what was sent or changed, according to the audit, and what others changed while the form was open."""
        name = {"name": str(form.row), "kind": self.opts.verbose_name, "Kind": capfirst(self.opts.verbose_name)}
        if found is not None and not found:
            text = _("%(Kind)s %(name)s: nothing was changed, because its state did not need or allow it.")
            self.message_user(request, text % name, messages.INFO)
            return
        if isinstance(found, uuid.UUID):
            task = self.link(request, Task, found, str(found))
            text = format_html(_("{} {}: a task was sent, {}."), name["Kind"], form.row, task)
            self.message_user(request, text, messages.SUCCESS)
            return
        since = list(self._entries(form.row).filter(pk__gt=seen).order_by("-pk")[:LAST])
        me, action = request.user.get_username(), form.verb.action
        mine = next((entry for entry in since if (entry.actor, entry.action) == (me, action)), None)
        done = _("%(Kind)s %(name)s: %(did)s.")
        meanwhile = _(
            "While the form was open, %(actor)s also changed %(kind)s %(name)s: %(did)s. The last change applies."
        )
        for entry in reversed(since):
            values = {**name, "actor": entry.actor, "did": "; ".join([shown_action(entry), *changes(entry)])}
            text, level = (done, messages.SUCCESS) if entry is mine else (meanwhile, messages.WARNING)
            self.message_user(request, text % values, level)
        if mine is None:
            did = _("%(action)s, but the audit has no entry of it") % {"action": ACTIONS.get(action, action)}
            self.message_user(request, done % {**name, "did": did}, messages.WARNING)

    def _form_page(self, request: Any, form: ChangeForm, seen: uuid.UUID, adds: bool) -> HttpResponse:
        title = form.verb.label if adds else f"{form.verb.label}: {form.row}"
        context = {
            "add": adds,
            "original": None if adds else form.row,
            "has_view_permission": True,
            "form": form,
            "adminform": AdminForm(form, form.fieldsets, {}),  # type: ignore[arg-type]
            "seen": seen,
            "back_url": self.list_url() if adds else self.url_of(form.row),
        }
        return self.shown(request, "configure", title, context)

    def _entries(self, row: Model) -> QuerySet[AuditEntry]:
        return entries_of(config().database, row.pk, self.subjects)

    def _newest_entry(self, row: Model) -> uuid.UUID:
        """Return the id of the last audit entry about the row; ids ascend with time."""
        return self._entries(row).values_list("pk", flat=True).first() or uuid.UUID(int=0)
