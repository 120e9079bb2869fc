"""The admin pages for queues: counts, limits, permit holders, busy partitions and changes; and the forms on them.

The forms need ``horsies.configure_queue``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Case, Q, QuerySet, Value, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeMixin
from horsies_django.admin.base.history import OF_QUEUES, last_changes
from horsies_django.admin.base.html import (
    LAST,
    LONGEST_NAME,
    MANY,
    NOTHING,
    age,
    badge,
    moment_field,
    status_badge,
    with_workers,
)
from horsies_django.admin.base.limits import levels, limit_rows, states
from horsies_django.admin.base.readonly import NextPageMixin, ReadOnlyAdminMixin, read_bounded
from horsies_django.admin.queues.queue_forms import OverrideForm
from horsies_django.core.queues import CLUSTER
from horsies_django.models import Queue, Task
from horsies_django.monitoring import overview
from horsies_django.monitoring.overview import OrderedKey, PartitionLoad, PermitHolder

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Queue]
else:
    ModelAdmin = admin.ModelAdmin


T = TypeVar("T")

GIVEN_UP: str | Promise = gettext_lazy("The counts are missing, because counting took longer than three seconds.")
SILENT_CLUSTER = Q(name=CLUSTER, max_concurrency__isnull=True, override__isnull=True, paused_at__isnull=True)


class PermitRow:
    """A row of the table of permit holders."""

    shown_worker: SafeString | str  # with_workers sets it

    def __init__(self, task: SafeString | str, holder: PermitHolder, now: dt.datetime, visible: bool) -> None:
        self.task = task
        self.status = status_badge(holder.status)
        self.worker_id = holder.worker_id
        self.silent = "" if holder.alive else badge("silent", "✕", _("Dead"))
        self.child = holder.child_pid or NOTHING
        self.since = age(holder.since, now)
        self.partition = _shown(holder.partition, visible)


class PartitionRow(NamedTuple):
    """A row of the table of partitions; ``parked`` counts the tasks that wait for a permit."""

    partition: str
    running: str
    limit: str
    full: SafeString | str
    parked: str


class KeyRow(NamedTuple):
    """A row of the table of keys that failed tasks stop; ``behind`` counts the tasks that wait."""

    partition: str
    task: SafeString | str
    since: Any
    behind: str


def permit_rows(
    page: Any, request: HttpRequest, holders: list[PermitHolder], now: dt.datetime, visible: bool
) -> list[PermitRow]:
    """Return the tasks that hold permits; partition keys, which contain arguments, only if ``visible``."""
    rows = [PermitRow(page.link(request, Task, one.task_id, one.task_name), one, now, visible) for one in holders]
    return with_workers(page, request, rows, "worker_id")


def partition_rows(loads: list[PartitionLoad], visible: bool) -> list[PartitionRow]:
    """Return the busiest partitions; their keys only if ``visible``."""
    rows = []
    for load in loads:
        full = load.limit is not None and load.running >= load.limit
        rows.append(
            PartitionRow(
                _shown(load.partition, visible),
                f"{load.running:,}",
                NOTHING if load.limit is None else f"{load.limit:,}",
                badge("full", "■", _("At its limit")) if full else "",
                f"{load.parked:,}" + ("+" if load.parked_more else ""),
            )
        )
    return rows


def key_rows(page: Any, request: HttpRequest, keys: list[OrderedKey], now: dt.datetime, visible: bool) -> list[KeyRow]:
    """Return the keys that failed tasks stop; the keys themselves only if ``visible``."""
    return [
        KeyRow(
            _shown(one.partition, visible),
            page.link(request, Task, one.task_id, one.task_name),
            age(one.since, now),
            f"{one.behind:,}" + ("+" if one.behind_more else ""),
        )
        for one in keys
    ]


def _shown(partition: str | None, visible: bool) -> str:
    if partition is None:
        return NOTHING
    return str(Truncator(partition).chars(LONGEST_NAME)) if visible else _("hidden")


def with_overviews(alias: str, queues: list[Any]) -> list[Any]:
    """Set ``overview`` of each queue, None if reading it timed out; return the queues in their effective order."""
    found = read_bounded(alias, lambda: overview.queues([queue.name for queue in queues])) if queues else []
    by_name = {view.name: view for view in found or []}
    for queue in queues:
        queue.overview = by_name.get(queue.name)
    places = {name: place for place, name in enumerate(by_name)}
    return sorted(queues, key=lambda queue: places.get(queue.name, len(places)))


class QueueListMixin(NextPageMixin):
    """The change list of queues: the whole cluster first, if it has a limit or a pause, then by priority."""

    def source(self) -> QuerySet[Queue]:
        queues: QuerySet[Queue] = self.queryset.exclude(SILENT_CLUSTER)
        return queues.order_by(Case(When(name=CLUSTER, then=Value(0)), default=Value(1)), "priority", "name")

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add the counts, read for the whole page at once."""
        queues = with_overviews(self.root_queryset.db, rows)
        if any(queue.overview is None for queue in queues):
            self.note = GIVEN_UP
        return queues


class QueueAdminMixin(ChangeMixin, ReadOnlyAdminMixin):
    """The logic of the queue pages, for any ModelAdmin."""

    subjects = OF_QUEUES
    change_forms: ClassVar = {"override": OverrideForm}
    change_list_mixin = QueueListMixin
    change_form_template = "admin/horsies/queue/change_form.html"
    list_display = (
        "shown_name", "shown_priority", "shown_limit", "shown_running", "shown_claimed", "shown_pending", "shown_full",
        "shown_workers", "shown_tasks",
    )  # fmt: skip
    list_display_links = ("shown_name",)
    ordering = ("priority", "name")

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        """Return the fields; those of a pause or an override only if there is one."""
        counts = ("shown_running", "shown_claimed", "shown_pending")
        served = ("shown_full", "shown_workers", "shown_tasks")
        override = (("override_by", "overridden", "override_ends"), "override_reason")
        pause = (("paused_by", "paused"), "paused_reason")
        return (
            (None, {"fields": (("shown_name", "shown_limit"), counts, served, ("created", "updated", "served"))}),
            *([(gettext_lazy("Pause"), {"fields": pause})] if obj and obj.paused_at else []),
            *([(gettext_lazy("Override"), {"fields": override})] if obj and obj.override is not None else []),
        )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Queue | None:
        queues = [] if "\x00" in object_id else list(self.get_queryset(request).filter(name=object_id))
        return with_overviews(queues[0]._state.db, queues)[0] if queues else None

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return limits, permit holders, busiest partitions, stopped keys, recent changes and links to the change forms."""
        alias, name, now = obj._state.db, obj.name, obj.read_at
        effective = obj.overview.effective if obj.overview else None
        visible = request.user.has_perm("horsies.view_payload") or (name != CLUSTER and obj.partition_by_args is None)
        holders = read_bounded(alias, lambda: overview.permits(name, MANY))
        parts = read_bounded(alias, lambda: overview.partitions(name, LAST))
        stopped = read_bounded(alias, lambda: overview.keys(name, limit=MANY)) if obj.partition_policy else []
        return {
            "given_up": GIVEN_UP if obj.overview is None else "",
            "limits": limit_rows(obj, effective),
            "partitioned": name != CLUSTER and (obj.partition_by_task or obj.partition_by_args is not None),
            "partitions_visible": visible,
            "permits": _or_none(holders, lambda rows: permit_rows(self, request, rows, now, visible)),
            "partitions": _or_none(parts, lambda rows: partition_rows(rows, visible)),
            "stopped": _or_none(stopped, lambda rows: key_rows(self, request, rows, now, visible)),
            **last_changes(self, request, obj, name, OF_QUEUES),
            "tools": self.tools(request, obj),
        }

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, obj: Queue) -> str:
        """Return the name; the row of the cluster has a text instead."""
        return str(obj)

    @admin.display(description=gettext_lazy("priority (1 is served first)"))
    def shown_priority(self, obj: Any) -> Any:
        if obj.name == CLUSTER:
            return NOTHING
        return obj.overview.effective["priority"] if obj.overview else obj.priority

    @admin.display(description=gettext_lazy("limit in force"))
    def shown_limit(self, obj: Any) -> SafeString:
        """Return the effective limits, with badges if they are not the declared ones."""
        badges = format_html_join("", " {}", ((one,) for one in states(obj)))
        return format_html("{}{}", levels(obj.overview.effective) if obj.overview else NOTHING, badges)

    @admin.display(description=gettext_lazy("running"))
    def shown_running(self, obj: Any) -> str:
        return _count(obj, "running")

    @admin.display(description=gettext_lazy("claimed"))
    def shown_claimed(self, obj: Any) -> str:
        """Return the number of tasks that are claimed but not started."""
        return _count(obj, "claimed")

    @admin.display(description=gettext_lazy("pending"))
    def shown_pending(self, obj: Any) -> str:
        """Return the number of due tasks that wait, counted up to a bound."""
        return _count(obj, "pending") + ("+" if obj.overview and obj.overview.pending_more else "")

    @admin.display(description=gettext_lazy("partitions at their limit"))
    def shown_full(self, obj: Any) -> str:
        """Return the number of partitions at their limit."""
        return NOTHING if obj.name == CLUSTER else _count(obj, "full_partitions")

    @admin.display(description=gettext_lazy("workers"))
    def shown_workers(self, obj: Any) -> SafeString | str:
        """Return the number of live workers that serve the queue; highlighted if tasks wait and there is none."""
        if obj.overview and obj.overview.pending and not obj.overview.workers:
            return badge("silent", "✕", _("None"))
        return _count(obj, "workers")

    @admin.display(description=gettext_lazy("tasks"))
    def shown_tasks(self, obj: Queue) -> SafeString | str:
        if not self.admin_site.is_registered(Task):
            return NOTHING
        address = reverse("admin:horsies_task_changelist", current_app=self.admin_site.name)
        query = "" if obj.name == CLUSTER else f"?{urlencode({'queue': obj.name})}"
        return format_html('<a href="{}{}">{}</a>', address, query, _("Show"))

    created = moment_field(Queue, "created_at")
    updated = moment_field(Queue, "updated_at")
    served = moment_field(Queue, "served_at")
    overridden = moment_field(Queue, "override_at")
    override_ends = moment_field(Queue, "override_until")
    paused = moment_field(Queue, "paused_at")


def _count(obj: Any, name: str) -> str:
    return f"{getattr(obj.overview, name):,}" if obj.overview else NOTHING


def _or_none(rows: list[Any] | None, show: Callable[[list[Any]], T]) -> T | None:
    return None if rows is None else show(rows)


class QueueAdmin(QueueAdminMixin, ModelAdmin):
    """The queue pages for Django's own admin."""
