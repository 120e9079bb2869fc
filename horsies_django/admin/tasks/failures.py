"""The page of failures: how many there were since when, of which tasks and codes; and where those of one of these failed."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import absolute, away
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin, read_bounded
from horsies_django.admin.tasks.listing import address
from horsies_django.conf import config
from horsies_django.core.counts import OTHER
from horsies_django.models.fields import aware
from horsies_django.monitoring import failures
from horsies_django.store import base

SHOWN = 50  # groups
SPANS = {
    "hour": (gettext_lazy("an hour"), dt.timedelta(hours=1)),
    "night": (gettext_lazy("last night, 18:00"), None),
    "day": (gettext_lazy("a day"), dt.timedelta(days=1)),
    "week": (gettext_lazy("a week"), dt.timedelta(days=7)),
}


class FailuresMixin(ReadOnlyAdminMixin):
    """Adds the page to those of tasks."""

    def get_urls(self) -> list[Any]:
        view = self.view_of(self.failures_view)
        return [path("failures/", view, name="horsies_task_failures"), *super().get_urls()]

    def failures_view(self, request: Any) -> HttpResponse:
        """Show the groups since a moment, and one of them opened. Raises PermissionDenied."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        span = request.GET.get("since") if request.GET.get("since") in SPANS else "night"
        now = aware(base.now(connections[config().database]))
        evening = timezone.localtime(now).replace(tzinfo=None, hour=18, minute=0) - dt.timedelta(days=1)
        length = SPANS[span][1]
        since = failures.counted_from(now - length if length else timezone.make_aware(evening), now)
        task, code = (request.GET.get(name, "").replace("\0", "") for name in ("task", "code"))
        seen = self.has_view_payload_permission(request)
        read = read_bounded(config().database, lambda: (
            failures.groups(since, now), failures.places(task, code, since, payload=seen) if task and code else []
        ))  # fmt: skip
        found, places = read or ([], [])
        pages = ["changelist", *(["all"] if request.user.has_perm("horsies.operate_task") else [])]

        def links(name: str, code: str, site: str = "") -> dict[str, str]:
            fields = {"status": "FAILED", "name": name, "code": code, "site": site, "since": since.isoformat()}
            return {} if OTHER in (name, code) else {page: address(self, page, **fields) for page in pages}

        context = {
            "spans": {key: text for key, (text, _length) in SPANS.items()}, "span": span, "since": absolute(since),
            "late": read is None, "many": f"{sum(one.n for one in found):,}", "task": task, "code": code,
            "groups": [(one.task, one.code, f"{one.n:,}", links(one.task, one.code)) for one in found[:SHOWN]],
            "places": [(place, away(place.at, now), links(task, code, place.site)) for place in places[:SHOWN]],
        }  # fmt: skip
        return self.shown(request, "task/failures", _("Failures"), context)
