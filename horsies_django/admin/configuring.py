"""The pages that change a queue: override, clear, pause, resume; each a form, for those with ``horsies.configure_queue``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from horsies_django.admin.audit import OF_QUEUES, changes, shown_action
from horsies_django.admin.forms import FORMS, ChangeForm
from horsies_django.core.errors import QueueError
from horsies_django.models import AuditEntry, Queue

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Queue]
else:
    Base = object

LARGEST_ID = 2**63 - 1
MOST_SINCE = 20  # entries that others wrote while a form was open


class Tool(NamedTuple):
    """A way from a queue's page to one of its forms."""

    url: str
    text: str | Promise


class ConfigureMixin(Base):
    """The forms of a queue, beside its page."""

    def has_configure_permission(self, request: HttpRequest) -> bool:
        """Whether the user may change limits and pause queues."""
        return request.user.has_perm("horsies.configure_queue")

    def get_urls(self) -> list[Any]:
        """Add one address for each form."""
        own = [
            path(f"<path:object_id>/{verb}/", self._wrapped(verb), name=f"horsies_queue_{verb}")
            for verb in sorted(FORMS)
        ]
        return [*own, *super().get_urls()]

    def _wrapped(self, verb: str) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            return self.configure_view(request, object_id, verb)

        wrapped: Any = self.admin_site.admin_view(view)
        # A change waits for passes, tries again when it has waited too long, and holds every pass up until its commit: so it is a
        # transaction of its own, not part of the request's (ATOMIC_REQUESTS).
        for alias in connections:
            wrapped = transaction.non_atomic_requests(using=alias)(wrapped)
        view_: Callable[..., HttpResponse] = wrapped
        return view_

    def tools(self, request: HttpRequest, queue: Queue) -> list[Tool]:
        """Return the forms that this user may open for the queue as it stands."""
        if not self.has_configure_permission(request):
            return []
        verbs = ["override"] + ["clear"] * (queue.override is not None) + ["resume" if queue.paused_at else "pause"]
        return [Tool(self._url(verb, queue), FORMS[verb].button) for verb in verbs]

    def _url(self, page: str, queue: Queue) -> str:
        return reverse(f"admin:horsies_queue_{page}", args=(quote(queue.pk),), current_app=self.admin_site.name)

    def configure_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        """Show a form, or make the change that it asks for. Raises PermissionDenied."""
        if not (self.has_view_permission(request) and self.has_configure_permission(request)):
            raise PermissionDenied
        name = unquote(object_id)
        queue = None if "\x00" in name else self.get_queryset(request).filter(name=name).first()
        if queue is None:
            self.message_user(request, _("There is no queue “%(name)s”.") % {"name": name}, messages.WARNING)
            return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))
        posted = request.method == "POST"
        seen = _seen(request.POST.get("seen", "")) if posted else None
        if seen is None:
            seen = _newest_entry(queue)
        form = FORMS[verb](request.POST if posted else None, queue=queue)
        if posted and form.is_valid() and self._made(request, form, seen):
            return HttpResponseRedirect(self._url("change", queue))
        return self._form_page(request, form, seen)

    def _made(self, request: HttpRequest, form: ChangeForm, seen: int) -> bool:
        """Make the change and tell what it did; give the form the reason why it could not be made."""
        actor = request.user.get_username()
        try:
            changed = form.apply(actor)
        except QueueError as error:
            form.add_error(None, str(error))
        except DatabaseError as error:  # a role without the rights, a database that only reads, a lost connection
            told = str(error).strip().partition("\n")[0]
            form.add_error(None, _("The database refused this change: %(error)s.") % {"error": told})
        else:
            self._tell(request, form, seen if changed else None)
            return True
        return False

    def _tell(self, request: HttpRequest, form: ChangeForm, seen: int | None) -> None:
        """Say what changed, as the audit has it, and what others changed since the form was opened: the last write holds."""
        name = str(form.queue)
        if seen is None:
            self.message_user(
                request, _("Queue %(queue)s: nothing to change, it is so already.") % {"queue": name}, messages.INFO
            )
            return
        since = list(_entries(form.queue).filter(pk__gt=seen).order_by("-pk")[:MOST_SINCE])
        me = request.user.get_username()
        mine = next((entry for entry in since if (entry.actor, entry.action) == (me, form.action)), None)
        for entry in reversed(since):
            values = {"queue": name, "actor": entry.actor, "did": _did(entry)}
            if entry is mine:
                self.message_user(request, _("Queue %(queue)s: %(did)s.") % values, messages.SUCCESS)
            else:
                text = _(
                    "While the form was open, %(actor)s changed queue %(queue)s too: %(did)s. What was written last holds."
                )
                self.message_user(request, text % values, messages.WARNING)

    def _form_page(self, request: Any, form: Any, seen: int) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": form.title % {"queue": form.queue},
            "opts": self.opts,
            "original": form.queue,
            "has_view_permission": True,
            "media": self.media,
            "form": form,
            "adminform": AdminForm(form, [(None, {"fields": list(form.fields)})], {}),
            "seen": seen,
            "back_url": self._url("change", form.queue),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/horsies/queue/configure.html", context)


def _did(entry: AuditEntry) -> str:
    return "; ".join([shown_action(entry), *changes(entry)])


def _entries(queue: Queue) -> Any:
    entries = AuditEntry.objects.using(queue._state.db)
    return entries.filter(subject=queue.pk, action__startswith=OF_QUEUES)


def _newest_entry(queue: Queue) -> int:
    """Return the id of the last change of the queue: what its form was opened on."""
    newest = _entries(queue).order_by("-at", "-pk").values_list("pk", flat=True).first()
    return int(newest or 0)


def _seen(text: str) -> int | None:
    """Return the id that a form carried, None when somebody wrote another thing there."""
    found = int(text) if re.fullmatch(r"[0-9]{1,19}", text) else -1
    return found if 0 <= found <= LARGEST_ID else None
