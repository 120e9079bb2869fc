"""What the pages of a run besides its change page share: finding the run, and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from horsies_django.admin.base.links import parse_id
from horsies_django.models import WorkflowRun

if TYPE_CHECKING:
    Base = admin.ModelAdmin[WorkflowRun]
else:
    Base = object


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
