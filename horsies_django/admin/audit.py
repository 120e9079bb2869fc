"""The admin pages for the audit: who changed what, when and why."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import (
    ACTIONS,
    OF_SCHEDULES,
    SUBJECTS,
    changes,
    shown_action,
    shown_reason,
    without_arguments,
)
from horsies_django.admin.base.html import (
    LONGEST_CELL,
    NO_VALUE,
    block,
    field,
    json_block,
    moment_field,
    row_field,
)
from horsies_django.admin.base.readonly import (
    ChosenFilter,
    ModelAdmin,
    NextPageMixin,
    ReadOnlyAdminMixin,
)
from horsies_django.conf import config
from horsies_django.models import AuditEntry, Queue, WorkflowRun
from horsies_django.monitoring.reading import DEEPEST_ROW

# The number is that of DEEPEST_ROW. It is part of the text, so that translators can format it.
NEWEST_ENTRIES_SEARCHED: str | Promise = gettext_lazy(
    "Only the newest 100,000 entries were searched."
)


class ActionFilter(ChosenFilter):
    """Filter for entries of one kind."""

    title = gettext_lazy("action")
    parameter_name = "action"
    offered = tuple(ACTIONS.items())  # whether or not there are entries for them


class SubjectFilter(admin.SimpleListFilter):
    """Filter for entries about one queue. In the address, any other subject works too."""

    title = gettext_lazy("subject")
    parameter_name = "subject"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names of the queues.

        The subjects of all entries would need a DISTINCT over the whole table.
        """
        queues = Queue.objects.using(config().database).only("name").order_by("name")
        return [(queue.name, str(queue)) for queue in queues]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry]
    ) -> QuerySet[AuditEntry]:
        """Filter the entries by their subject.

        Raises IncorrectLookupParameters for a name that PostgreSQL cannot store.
        """
        name = self.value()
        if name and "\x00" in name:
            raise IncorrectLookupParameters(repr(name))
        return queryset.filter(subject=name) if name else queryset


class AuditListMixin(NextPageMixin):
    """The change list of the audit, newest first.

    It is read through an index, by subject or by primary key.
    """

    def source(self) -> QuerySet[AuditEntry]:
        """Return the filtered entries in the order of an index.

        They are limited to the newest entries if no index fits the filter.
        """
        entries: QuerySet[AuditEntry] = self.queryset
        if self.query or self.chosen(SubjectFilter):
            return entries.order_by("-at", "-pk")

        if self.chosen(ActionFilter):
            self.note = NEWEST_ENTRIES_SEARCHED
            last = (
                AuditEntry.objects.using(entries.db)
                .order_by("-pk")
                .values("pk")[DEEPEST_ROW - 1 : DEEPEST_ROW]
            )
            entries = entries.filter(pk__gte=Coalesce(Subquery(last), Value(uuid.UUID(int=0))))

        return entries.order_by("-pk")

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add a link to the subject of each entry."""
        return [with_subject(self.model_admin, request, row) for row in rows]


def with_subject(page: Any, request: HttpRequest, entry: Any) -> AuditEntry:
    """Set ``linked_subject`` and ``payload_visible`` of an entry, and return the entry.

    ``linked_subject`` is a link if the user may view that page, else text. ``payload_visible`` is
    true if the user may see payload.
    """
    model = next(
        (model for prefix, model in SUBJECTS.items() if entry.action.startswith(prefix)), None
    )
    text = entry.subject if model in (None, WorkflowRun) else str(model(name=entry.subject))

    entry.linked_subject = page.link(request, model, entry.subject, text) if model else text
    entry.payload_visible = page.has_view_payload_permission(request)
    return entry  # type: ignore[no-any-return]


class AuditAdminMixin(ReadOnlyAdminMixin):
    """The logic of the audit's pages, for any ModelAdmin."""

    change_list_mixin = AuditListMixin
    list_display = (
        "at_",
        "actor",
        "shown_action",
        "shown_subject",
        "shown_changes",
        "shown_reason",
    )
    list_display_links = ("at_",)
    list_filter = (ActionFilter, SubjectFilter)
    search_fields = ("subject",)  # shows the box; searched() does the search
    search_help_text = gettext_lazy(
        "Enter the full name of a queue or schedule, or the full id of a task or workflow run."
    )
    ordering = ("-pk",)
    fieldsets = (
        (None, {"fields": (("at_", "actor"), ("shown_action", "shown_subject"), "whole_reason")}),
        (gettext_lazy("Change"), {"fields": ("shown_before", "shown_after")}),
    )

    def searched(self, rows: QuerySet[AuditEntry], term: str) -> QuerySet[AuditEntry]:
        """Search for the exact subject, which is indexed."""
        return rows.filter(subject=term)

    def complete(self, request: HttpRequest, row: AuditEntry) -> None:
        """Set the subject of an entry, and whether the user may see payload.

        Only users who may see payload see the arguments of a schedule.
        """
        with_subject(self, request, row)

    @admin.display(description=gettext_lazy("reason"))
    def shown_reason(self, obj: Any) -> str:
        return str(
            Truncator(shown_reason(obj, obj.payload_visible) or NO_VALUE).chars(LONGEST_CELL)
        )

    @admin.display(description=gettext_lazy("reason"))
    def whole_reason(self, obj: Any) -> SafeString | str:
        return block(shown_reason(obj, obj.payload_visible)) if obj.reason else NO_VALUE

    at_ = moment_field(AuditEntry, "at")
    shown_action = row_field(gettext_lazy("action"), lambda entry: shown_action(entry))
    shown_subject = field("linked_subject", gettext_lazy("subject"))
    shown_changes = row_field(
        gettext_lazy("changes"), lambda entry: "; ".join(changes(entry)) or NO_VALUE
    )
    shown_before = row_field(gettext_lazy("before"), lambda entry: columns(entry, entry.before))
    shown_after = row_field(gettext_lazy("after"), lambda entry: columns(entry, entry.after))


def columns(entry: Any, found: object) -> SafeString | str:
    """Return the columns of an entry as JSON.

    The arguments of a schedule are hidden unless the user may see payload.
    """
    if (
        isinstance(found, dict)
        and entry.action.startswith(OF_SCHEDULES)
        and not entry.payload_visible
    ):
        found = without_arguments(found)
    return NO_VALUE if found is None else json_block(found)


class AuditAdmin(AuditAdminMixin, ModelAdmin):
    """The audit pages for Django's own admin."""
