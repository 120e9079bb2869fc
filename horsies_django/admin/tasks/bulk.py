"""The pages about many tasks: acts on all tasks that match, and groups of failures.

The page of an act first shows which tasks match, and how many. Then it retries, cancels or redacts
them, for some seconds in each request. The state of the act travels from request to request as a
signed text: the selection, the place to continue at, and the counts so far. So nothing is stored,
and a user who stops the act or loses the page can continue, or begin again.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections import Counter
from dataclasses import astuple, dataclass, replace
from typing import Any

from django import forms
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_TASKS
from horsies_django.admin.base.change_forms import ADMIN_VERBS
from horsies_django.admin.base.html import absolute, away, parse_id
from horsies_django.admin.base.readonly import (
    ReadOnlyAdminMixin,
    database_refusal,
    patiently,
    read_bounded,
)
from horsies_django.admin.tasks.listing import SelectionForm, address
from horsies_django.conf import config
from horsies_django.core.counts import OTHER
from horsies_django.core.texts import LONGEST_REASON, name_of_user
from horsies_django.models.fields import aware
from horsies_django.monitoring import history
from horsies_django.store import base
from horsies_django.store.selections import NO_SITE
from horsies_django.tasks import selection

SALT = "horsies.act"
ACT_SECONDS = 5.0
SPREADS = {
    "": gettext_lazy("now"),
    "10": gettext_lazy("spread over 10 minutes"),
    "60": gettext_lazy("spread over an hour"),
}
# The label of each act, and the verb for one task whose permissions the act requires.
ACTS = {
    "retry": (gettext_lazy("Retry all"), ADMIN_VERBS[OF_TASKS]["retry"]),
    "cancel": (gettext_lazy("Cancel all"), ADMIN_VERBS[OF_TASKS]["cancel"]),
    "terminate": (
        gettext_lazy("Cancel all, and kill tasks that do not stop"),
        ADMIN_VERBS[OF_TASKS]["kill"],
    ),
    "redact": (gettext_lazy("Redact all"), ADMIN_VERBS[OF_TASKS]["redact"]),
}

GROUPS_SHOWN = 50  # the most groups on a page
SINCE_CHOICES = {
    "hour": (gettext_lazy("an hour"), dt.timedelta(hours=1)),
    "night": (gettext_lazy("last night, 18:00"), None),
    "day": (gettext_lazy("a day"), dt.timedelta(days=1)),
    "week": (gettext_lazy("a week"), dt.timedelta(days=7)),
}


def of_place(place: history.FailurePlace) -> dict[str, str]:
    """Return the fields of the form that select the tasks of a place."""
    return {"site": place.site or NO_SITE, "exception": place.exception or NO_SITE}


class ActReasonForm(forms.Form):
    """A form for the reason of an act, and for the time over which retries are spread."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=gettext_lazy("Recorded in the audit."),
    )
    spread = forms.ChoiceField(
        label=gettext_lazy("Retry the tasks"), required=False, choices=[*SPREADS.items()]
    )


@dataclass(frozen=True)
class ActProgress:
    """The state of an act.

    It contains what is done to which tasks, the reason, the place to continue at, and the counts so
    far.
    """

    user: str
    chosen: selection.Selection
    matched: int
    more: bool
    act_id: str = ""
    verb: str = ""
    reason: str = ""
    spread: str = ""
    after: Any = None
    ended: bool = False
    done: int = 0
    verdicts: dict[str, int] | None = None

    def signed(self) -> str:
        """Return the state as a signed text that only this site can make."""
        chosen = {
            name: str(value) if isinstance(value, dt.datetime | uuid.UUID) else value
            for name, value in self.chosen._asdict().items()
        }
        return signing.dumps([self.user, chosen, *astuple(self)[2:]], salt=SALT, compress=True)

    @classmethod
    def read(cls, text: str, user: str) -> ActProgress:
        """Return the state in a signed text.

        Raises PermissionDenied if the text was signed for another user, or by another site.
        """
        try:
            found, chosen, *rest = signing.loads(text, salt=SALT)
        except signing.BadSignature:
            raise PermissionDenied from None
        if found != user:
            raise PermissionDenied

        for name in ("since", "until"):
            chosen[name] = chosen[name] and parse_datetime(chosen[name])
        return cls(user, selection.Selection(**chosen), *rest)


class BulkMixin(ReadOnlyAdminMixin):
    """Mixin that adds the pages about many tasks to those of tasks."""

    def get_urls(self) -> list[Any]:
        # Each part of an act runs in a transaction of its own.
        acts = self.view_of(self.all_view, atomic=False)
        own = [
            path("all/", acts, name="horsies_task_all"),
            path("failures/", self.view_of(self.failures_view), name="horsies_task_failures"),
        ]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Add links to these pages to the list.

        The link to the page of acts contains the fields of the list.
        """
        shown = {name: request.GET.get(name) for name in SelectionForm.base_fields}
        if (searched := request.GET.get("q")) and not parse_id(searched):
            shown["name"] = searched

        more = {"failures_url": address(self, "failures")}
        if request.user.has_perm("horsies.operate_task") and not request.GET.get("workflow"):
            more["all_url"] = address(self, "all", **shown)

        return super().changelist_view(request, {**(extra_context or {}), **more})

    def all_view(self, request: HttpRequest) -> HttpResponse:
        """Show the form, or run a part of the act if the request has a signed text.

        Raises PermissionDenied if the user lacks a permission.
        """
        if not (
            self.has_view_permission(request) and request.user.has_perm("horsies.operate_task")
        ):
            raise PermissionDenied

        if request.method == "POST" and "act" in request.POST:
            return self._acted(
                request, ActProgress.read(request.POST["act"], name_of_user(request.user))
            )

        form = SelectionForm(request, acting=True)
        if not form.is_bound or not form.is_valid():
            return self._shown_act(request, form=form)

        chosen = selection.as_of_now(form.selected)
        found = read_bounded(config().database, lambda: selection.preview(chosen, first=True))
        if found is None:
            form.add_error(
                None,
                _("Counting the tasks took longer than three seconds. Select fewer tasks."),
            )
            return self._shown_act(request, form=form)

        progress = ActProgress(name_of_user(request.user), chosen, found.many, found.more)
        verbs = {
            verb: label
            for verb, (label, _one) in ACTS.items()
            if self._allows(request, verb, chosen.status)
        }

        return self._shown_act(
            request,
            form=form,
            reason_form=ActReasonForm(),
            found=found,
            progress=progress,
            verbs=verbs,
        )

    def _allows(self, request: HttpRequest, verb: str, status: str | None) -> bool:
        return request.user.has_perms(ACTS[verb][1].permissions) and status in selection.VERBS[verb]

    def _acted(self, request: HttpRequest, progress: ActProgress) -> HttpResponse:
        """Run a part of the act, and show its state."""
        if not progress.verb:
            reason_form = ActReasonForm(request.POST)
            verb = request.POST.get("verb", "")
            if (
                verb not in ACTS
                or not self._allows(request, verb, progress.chosen.status)
                or not reason_form.is_valid()
            ):
                raise PermissionDenied

            given = {name: reason_form.cleaned_data[name] for name in ("reason", "spread")}
            progress = replace(progress, verb=verb, act_id=str(uuid.uuid4()), verdicts={}, **given)
        elif not self._allows(request, progress.verb, progress.chosen.status):
            raise PermissionDenied

        progress, error = self._part(progress)
        return self._shown_act(
            request, progress=progress, error=error, stopped="stop" in request.POST
        )

    def _part(self, progress: ActProgress) -> tuple[ActProgress, str]:
        """Act for some seconds, and return the new state and an error.

        The error is "" unless something was refused.
        """
        spread = dt.timedelta(minutes=int(progress.spread)) if progress.spread else None
        until = time.monotonic() + ACT_SECONDS

        try:
            while not progress.ended:
                began = time.monotonic()
                with patiently():
                    step = selection.act(
                        progress.chosen,
                        progress.verb,
                        actor=progress.user,
                        reason=progress.reason or None,
                        after=progress.after,
                        spread=spread,
                        act_id=uuid.UUID(progress.act_id),
                    )

                verdicts = Counter(progress.verdicts) + Counter(step.verdicts)
                ended = step.after is None
                done = progress.done + step.tasks
                progress = replace(
                    progress, after=step.after, ended=ended, done=done, verdicts=dict(verdicts)
                )

                if time.monotonic() >= until:
                    break
                selection.rest(time.monotonic() - began)
        except ValueError as error:
            return progress, str(error)
        except DatabaseError as error:
            return progress, database_refusal(error)

        return progress, ""

    def _shown_act(self, request: HttpRequest, **found: Any) -> HttpResponse:
        return self.shown(request, "task/all", _("Act on all matching tasks"), found)

    def failures_view(self, request: Any) -> HttpResponse:
        """Show the groups of failures since a moment, and one of them opened.

        Raises PermissionDenied if the user may not view tasks.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied

        span = request.GET.get("since") if request.GET.get("since") in SINCE_CHOICES else "night"
        now = aware(base.now(connections[config().database]))
        evening = timezone.localtime(now).replace(tzinfo=None, hour=18, minute=0) - dt.timedelta(
            days=1
        )
        length = SINCE_CHOICES[span][1]
        since = history.counted_from(now - length if length else timezone.make_aware(evening), now)

        task, code = (request.GET.get(name, "").replace("\0", "") for name in ("task", "code"))
        visible = self.has_view_payload_permission(request)
        read = read_bounded(
            config().database,
            lambda: (
                history.groups(since, now),
                history.places(task, code, since, payload=visible) if task and code else [],
            ),
        )

        found, places = read or ([], [])
        pages = ["changelist", *(["all"] if request.user.has_perm("horsies.operate_task") else [])]

        def links(name: str, code: str, **where: str) -> dict[str, str]:
            fields = {
                "status": "FAILED",
                "name": name,
                "code": code,
                "since": since.isoformat(),
                **where,
            }
            return (
                {}
                if OTHER in (name, code)
                else {page: address(self, page, **fields) for page in pages}
            )

        context = {
            "spans": {key: text for key, (text, _length) in SINCE_CHOICES.items()},
            "span": span,
            "since": absolute(since),
            "late": read is None,
            "many": f"{sum(one.n for one in found):,}",
            "task": task,
            "code": code,
            "groups": [
                (one.task, one.code, f"{one.n:,}", links(one.task, one.code))
                for one in found[:GROUPS_SHOWN]
            ],
            "places": [
                (place, away(place.at, now), links(task, code, **of_place(place)))
                for place in places[:GROUPS_SHOWN]
            ],
        }
        return self.shown(request, "task/failures", _("Failures"), context)
