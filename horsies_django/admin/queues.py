"""The admin pages for queues: counts, limits, permits, partitions, changes and forms.

The forms require the permission ``horsies.configure_queue``.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.db import connections
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.audit import OF_QUEUES, last_changes
from horsies_django.admin.base.change_forms import ChangeForm, ChangeMixin
from horsies_django.admin.base.html import (
    LONGEST_FIELD,
    MOST_ENTRIES,
    MOST_ROWS,
    NO_VALUE,
    Table,
    age,
    badge,
    bars,
    breakable,
    duration_or_dash,
    marked,
    moment_field,
    row_field,
    rows_or_none,
    status_badge,
    worker_links,
)
from horsies_django.admin.base.labels import (
    label_of_limit,
    levels,
    shown_limit,
    shown_policy,
)
from horsies_django.admin.base.readonly import ModelAdmin, NextPageMixin, read_all, read_bounded
from horsies_django.conf import LARGEST_LIMIT, RANGES
from horsies_django.core.patterns import DAY
from horsies_django.core.queues import CLUSTER, CLUSTER_LIMITS, LIMITS, QueueColumn
from horsies_django.models import Queue, Task
from horsies_django.models.tasks import PENDING
from horsies_django.monitoring import history, overview
from horsies_django.store import overviews

NOT_OVERRIDDEN = object()


GIVEN_UP: str | Promise = gettext_lazy(
    "The counts are missing, because counting took longer than three seconds."
)
UNLIMITED_CLUSTER = Q(
    name=CLUSTER, max_concurrency__isnull=True, override__isnull=True, paused_at__isnull=True
)


class LimitField(forms.CharField):
    """A field for a limit.

    An empty field means NOT_OVERRIDDEN. The text ``none`` means None, which is no limit.
    """

    widget = forms.TextInput(
        attrs={"class": "vIntegerField", "inputmode": "numeric", "autocomplete": "off"}
    )

    def __init__(self, column: QueueColumn) -> None:
        super().__init__(required=False, label=label_of_limit(column.name).capitalize())
        self.lowest, highest = RANGES[column.setting]
        self.highest = LARGEST_LIMIT if highest is None else highest

    def clean(self, value: Any) -> Any:
        """Return the limit.

        Raises ValidationError unless the text is a number in range, ``none``, or empty.
        """
        text = super().clean(value).lower()
        if not text:
            return NOT_OVERRIDDEN
        if text == "none":
            return None

        number = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else -1
        if not self.lowest <= number <= self.highest:
            raise forms.ValidationError(
                _(
                    "Enter a whole number from %(low)s to %(high)s, “none” for no limit, or leave "
                    "it empty."
                )
                % {"low": self.lowest, "high": f"{self.highest:,}"}
            )

        return number


class EndField(forms.DateTimeField):
    """A field for a datetime to the second.

    An unchanged value keeps its microseconds and offset, which the input cannot show. ``held`` is
    the value at the time when the form was opened. A hidden field keeps it, because the stored
    value may change meanwhile.
    """

    widget = forms.DateTimeInput(
        {"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"
    )
    held: dt.datetime | None = None

    def clean(self, value: Any) -> Any:
        """Return ``held`` if the input was not changed, else the entered value."""
        return (
            self.held if self.held and _moment(value) == _shown(self.held) else super().clean(value)
        )


def _moment(text: object) -> dt.datetime | None:
    """Return the datetime in a text, or None if there is none.

    Return None also if the datetime may not exist in all other time zones.
    """
    try:
        found = parse_datetime(str(text))
    except ValueError:
        return None
    return found if found and dt.MINYEAR < found.year < dt.MAXYEAR else None


def _shown(moment: dt.datetime) -> dt.datetime:
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.replace(tzinfo=None, microsecond=0, fold=0)


class OverrideForm(ChangeForm):
    """A form that overrides the declared limits. A new override replaces the old one as a whole."""

    until = EndField(label=gettext_lazy("Until"), required=False)
    until_held = forms.Field(required=False, widget=forms.HiddenInput)
    field_order = (*LIMITS, "reason", "until")

    def __init__(self, *args: Any, row: Any, **kwargs: Any) -> None:
        super().__init__(*args, row=row, **kwargs)
        self.add_limits(row)

        until = self.fields["until"]
        zone = timezone.get_current_timezone_name()
        assert isinstance(until, EndField)
        until.held = _moment(self.data.get("until_held"))

        help_text = _(
            "Leave it empty to keep the override until it is cleared. Time zone: %(zone)s."
        )
        until.help_text = help_text % {"zone": zone}

        self.initial["until"] = row.override_until
        self.initial["until_held"] = row.override_until and row.override_until.isoformat()

    def add_limits(self, row: Any) -> None:
        """Add a field for each limit that the queue can have."""
        override = row.override if isinstance(row.override, dict) else {}

        for key, column in (CLUSTER_LIMITS if row.name == CLUSTER else LIMITS).items():
            field = LimitField(column)
            field.help_text = _("Declared: %(limit)s.") % {"limit": shown_limit(getattr(row, key))}
            if field.lowest == 0:
                field.help_text += f" {_('At 0, no task starts.')}"

            self.fields[key] = field
            if key in override:
                self.initial[key] = "none" if override[key] is None else override[key]

        self.order_fields(self.field_order)

    def clean_until(self) -> dt.datetime | None:
        """Raise ValidationError for the last year that Python supports.

        In another time zone, the end could be in the year 10000.
        """
        until: dt.datetime | None = self.cleaned_data["until"]
        if until is not None and until.year >= dt.MAXYEAR:
            raise forms.ValidationError(
                _("The date is too far in the future. Leave the field empty for no end.")
            )
        return until

    def clean(self) -> dict[str, Any]:
        """Raise ValidationError if no limit was entered."""
        if not self.errors and not self._limits():
            raise forms.ValidationError(
                _("Enter at least one limit. To end an override, clear it instead.")
            )
        return self.cleaned_data

    def apply(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and timezone.is_naive(until):  # USE_TZ is off
            until = timezone.make_aware(until)
        return super().apply(self._limits(), until=until)

    def _limits(self) -> dict[str, int | None]:
        given = {key: self.cleaned_data.get(key, NOT_OVERRIDDEN) for key in LIMITS}
        return {key: limit for key, limit in given.items() if limit is not NOT_OVERRIDDEN}


class Shown:
    """The tables of a queue as a user sees them.

    Partition keys contain arguments, so they are shown only if ``visible`` is true.
    """

    def __init__(self, page: Any, request: HttpRequest, queue: Any) -> None:
        self.page = page
        self.request = request
        self.name = queue.name
        self.now = queue.read_at
        self.alias = queue._state.db
        self.visible = (
            page.has_view_payload_permission(request)
            or self.name != CLUSTER
            and queue.partition_by_args is None
        )

    def tables(self, *names: str) -> list[Table]:
        """Return the tables of these names, which are read together.

        The rows of a table are None if reading them took too long.
        """
        found = read_all(self.alias, [getattr(self, f"read_{name}") for name in names])
        return [getattr(self, name)(rows) for name, rows in zip(names, found, strict=True)]

    def key(self, partition: str | None) -> SafeString | str:
        if partition is None:
            return NO_VALUE
        return marked(
            "partition", Truncator(partition).chars(LONGEST_FIELD) if self.visible else _("hidden")
        )

    def read_day(self) -> list[history.TimeStep]:
        return history.of_queue(history.series(connections[self.alias], DAY, 24), self.name)

    def day(self, read: list[history.TimeStep] | None) -> Table:
        """Return a table of the counts of the last 24 hours, with a chart of the hours."""

        def row(whole: history.TimeStep) -> list[Any]:
            long = duration_or_dash(whole.wait(0.95)), duration_or_dash(whole.run(0.95))
            return [f"{whole.completed:,}", f"{whole.failed:,}", *long]

        marks = ("−24 h", "−12 h", _("now"))
        chart = (
            bars(
                [step[:2] for step in read], _("Tasks an hour"), width=720, height=140, marks=marks
            )
            if read
            else ""
        )

        heads = (_("Completed"), _("Failed"), _("Wait, 95 %"), _("Run, 95 %"))
        rows = rows_or_none(read and [history.together(read)], row)
        return Table(
            "day", _("Last 24 hours"), heads, rows, empty=_("Nothing was counted."), above=chart
        )

    def read_permits(self) -> list[overview.PermitHolder]:
        return overview.permits(self.name, MOST_ROWS)

    def permits(self, found: list[overview.PermitHolder] | None) -> Table:
        """Return a table of the tasks that hold permits."""
        workers = worker_links(self.page, self.request, {one.worker_id for one in found or []})

        def row(one: overview.PermitHolder) -> list[Any]:
            dead = "" if one.alive else badge("silent", "✕", _("Dead"))
            task = self.page.link(self.request, Task, one.task_id, one.task_name)
            worker = workers[one.worker_id]
            held = [
                task,
                status_badge(one.status),
                age(one.since, self.now),
                format_html("{} {}", worker, dead),
            ]
            return [*held, one.child_pid or NO_VALUE, self.key(one.partition)]

        heads = (_("Task"), _("Status"), _("Since"), _("Worker"), _("Process"), _("Partition"))
        note = (
            _("Only the 100 oldest permits are shown.") if found and len(found) >= MOST_ROWS else ""
        )
        empty = _("None: no task of this queue is running or claimed.")
        return Table(
            "permits", _("Tasks holding permits"), heads, rows_or_none(found, row), note, empty
        )

    def read_waiting(self) -> list[tuple[str, dt.datetime]]:
        pending = Task.objects.using(self.alias).filter(PENDING, parked=False, queue_name=self.name)
        first = pending.order_by("lane", "priority", "enqueued_at", "id")[: overviews.PENDING_BOUND]
        return list(first.values_list("task_name", F("enqueued_at")))  # F: see Moment

    def waiting(self, found: list[tuple[str, dt.datetime]] | None) -> Table:
        """Return a table of the due tasks that wait, with their number and the oldest one by name.

        Only the first tasks of the queue are counted.
        """
        due = defaultdict(list)
        for name, at in found or []:
            if at <= self.now:
                due[name].append(at)

        most = sorted(due.items(), key=lambda one: -len(one[1]))[:MOST_ENTRIES]
        rows = [
            [breakable(name), f"{len(times):,}", age(min(times), self.now)] for name, times in most
        ]

        note = _(
            "Only the first 10,000 tasks are counted, without tasks that wait for a permit of "
            "their partition."
        )
        heads = (_("Task"), _("Tasks"), _("Oldest due for"))
        return Table(
            "waiting",
            _("Waiting tasks that are due, by name"),
            heads,
            None if found is None else rows,
            note,
        )

    def read_partitions(self) -> list[overview.PartitionLoad]:
        return overview.partitions(self.name, MOST_ENTRIES)

    def partitions(self, found: list[overview.PartitionLoad] | None) -> Table:
        """Return a table of the partitions with most tasks.

        It contains how many of these tasks wait for a permit.
        """

        def row(load: overview.PartitionLoad) -> list[Any]:
            limit = NO_VALUE if load.limit is None else f"{load.limit:,}"
            more = "+" if load.parked_more else ""
            full = load.limit is not None and load.running >= load.limit
            mark = badge("full", "■", _("At its limit")) if full else ""
            return [
                self.key(load.partition),
                f"{load.running:,}",
                format_html("{} {}", limit, mark),
                f"{load.parked:,}{more}",
            ]

        hidden = _(
            "Partition keys contain arguments. The permission %(permission)s is required to see "
            "them."
        )
        note = "" if self.visible else hidden % {"permission": "horsies.view_payload"}

        heads = (_("Partition"), _("Running"), _("Limit"), _("Tasks waiting for a permit"))
        empty = _("No partition holds a permit.")
        return Table(
            "partitions", _("Busiest partitions"), heads, rows_or_none(found, row), note, empty
        )

    def read_stopped(self) -> list[overview.OrderedKey]:
        return overview.keys(self.name, limit=MOST_ROWS)

    def stopped(self, found: list[overview.OrderedKey] | None) -> Table:
        """Return a table of the keys that failed tasks stop."""

        def row(one: overview.OrderedKey) -> list[Any]:
            task = self.page.link(self.request, Task, one.task_id, one.task_name)
            return [
                self.key(one.partition),
                task,
                age(one.since, self.now),
                f"{one.behind:,}" + "+" * one.behind_more,
            ]

        note = _("Retry or skip a failed task on its page. Then the tasks behind it start.")
        if found and len(found) >= MOST_ROWS:
            note = f"{_('Only the 100 keys that stopped first are shown.')} {note}"

        heads = (_("Key"), _("Failed task"), _("Since"), _("Tasks behind it"))
        return Table(
            "stopped", _("Keys stopped by a failed task"), heads, rows_or_none(found, row), note
        )


def with_overviews(alias: str, queues: list[Any]) -> list[Any]:
    """Set ``overview`` of each queue, and return the queues in their effective order.

    ``overview`` is None if reading it took too long.
    """
    found = (
        read_bounded(alias, lambda: overview.queues([queue.name for queue in queues]))
        if queues
        else []
    )

    by_name = {view.name: view for view in found or []}
    for queue in queues:
        queue.overview = by_name.get(queue.name)

    places = {name: place for place, name in enumerate(by_name)}
    return sorted(queues, key=lambda queue: places.get(queue.name, len(places)))


class QueueListMixin(NextPageMixin):
    """The change list of queues.

    The whole cluster is first, if it has a limit, an override or a pause. The queues follow by
    priority.
    """

    def source(self) -> QuerySet[Queue]:
        queues: QuerySet[Queue] = self.queryset.exclude(UNLIMITED_CLUSTER)
        return queues.order_by(
            Case(When(name=CLUSTER, then=Value(0)), default=Value(1)), "priority", "name"
        )

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add the counts, which are read for the whole page at once."""
        queues = with_overviews(self.root_queryset.db, rows)
        if any(queue.overview is None for queue in queues):
            self.note = GIVEN_UP
        return queues


class QueueAdminMixin(ChangeMixin):
    """The logic of the queue pages, for any ModelAdmin."""

    subjects = OF_QUEUES
    change_forms: ClassVar = {"override": OverrideForm}
    change_list_mixin = QueueListMixin
    list_display = (
        "shown_name",
        "shown_priority",
        "shown_limit",
        "shown_running",
        "shown_claimed",
        "shown_pending",
        "shown_full",
        "shown_workers",
        "shown_tasks",
    )
    list_display_links = ("shown_name",)
    ordering = ("priority", "name")

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        """Return the fields. Those of a pause or an override are present only if there is one."""
        counts = ("shown_running", "shown_claimed", "shown_pending")
        served = (
            "shown_full",
            "shown_workers",
            *(["shown_tasks"] if self.lists_tasks(request) else []),
        )
        override = (("override_by", "overridden", "override_ends"), "override_reason")
        pause = (("paused_by", "paused"), "paused_reason")

        return (
            (
                None,
                {
                    "fields": (
                        ("shown_name", "shown_limit"),
                        counts,
                        served,
                        ("created", "updated", "served"),
                    )
                },
            ),
            *([(gettext_lazy("Pause"), {"fields": pause})] if obj and obj.paused_at else []),
            *(
                [(gettext_lazy("Override"), {"fields": override})]
                if obj and obj.override is not None
                else []
            ),
        )

    def lists_tasks(self, request: HttpRequest) -> bool:
        """Return whether the site has a list of tasks that the user may view."""
        return self.admin_site.is_registered(Task) and request.user.has_perm("horsies.view_task")

    def get_list_display(self, request: HttpRequest) -> Any:
        return [
            name
            for name in super().get_list_display(request)
            if name != "shown_tasks" or self.lists_tasks(request)
        ]

    def complete(self, request: HttpRequest, row: Any) -> None:
        """Set the counts of a queue."""
        with_overviews(row._state.db, [row])

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the tables of a queue, and the links to its forms.

        The tables are limits, the last day, permits, waiting tasks, partitions, stopped keys and
        changes.
        """
        names = ["day", "permits"]
        if obj.name != CLUSTER:
            names.append("waiting")
            names += (
                ["partitions"] if obj.partition_by_task or obj.partition_by_args is not None else []
            )
            names += ["stopped"] if obj.partition_policy else []

        limits = limit_table(obj, obj.overview.effective if obj.overview else None)
        given_up = "" if obj.overview else format_html('<p class="horsies-note">{}</p>', GIVEN_UP)
        found = Shown(self, request, obj).tables(*names)
        tables = [
            limits._replace(above=given_up),
            *(one for one in found if one.id != "stopped" or one.rows != []),
        ]

        return {
            "tables": [*tables, last_changes(self, request, obj, obj.name, OF_QUEUES)],
            "tools": self.tools(request, obj),
        }

    @admin.display(description=gettext_lazy("priority (1 is served first)"))
    def shown_priority(self, obj: Any) -> Any:
        if obj.name == CLUSTER:
            return NO_VALUE
        return obj.overview.effective["priority"] if obj.overview else obj.priority

    @admin.display(description=gettext_lazy("limit in force"))
    def shown_limit(self, obj: Any) -> SafeString:
        """Return the effective limits, with badges if they are not the declared ones."""
        badges = format_html_join("", " {}", ((one,) for one in state_badges(obj)))
        return format_html(
            "{}{}", levels(obj.overview.effective) if obj.overview else NO_VALUE, badges
        )

    @admin.display(description=gettext_lazy("pending"))
    def shown_pending(self, obj: Any) -> str:
        """Return the number of due tasks that wait, counted up to a bound."""
        return _count(obj, "pending") + ("+" if obj.overview and obj.overview.pending_more else "")

    @admin.display(description=gettext_lazy("partitions at their limit"))
    def shown_full(self, obj: Any) -> str:
        """Return the number of partitions at their limit."""
        return NO_VALUE if obj.name == CLUSTER else _count(obj, "full_partitions")

    @admin.display(description=gettext_lazy("workers"))
    def shown_workers(self, obj: Any) -> SafeString | str:
        """Return the number of living workers that serve the queue.

        It is highlighted if tasks wait and there is no worker.
        """
        if obj.overview and obj.overview.pending and not obj.overview.workers:
            return badge("silent", "✕", _("None"))
        return _count(obj, "workers")

    @admin.display(description=gettext_lazy("tasks"))
    def shown_tasks(self, obj: Queue) -> SafeString:
        """Return a link to the list of the queue's tasks."""
        address = reverse("admin:horsies_task_changelist", current_app=self.admin_site.name)
        query = "" if obj.name == CLUSTER else f"?{urlencode({'queue': obj.name})}"
        return format_html('<a href="{}{}">{}</a>', address, query, _("Show"))

    # The row of the cluster is shown with a text in place of its name.
    shown_name = row_field(gettext_lazy("name"), str)
    shown_running = row_field(gettext_lazy("running"), lambda queue: _count(queue, "running"))
    # Tasks that are claimed, but not started.
    shown_claimed = row_field(gettext_lazy("claimed"), lambda queue: _count(queue, "claimed"))
    created = moment_field(Queue, "created_at")
    updated = moment_field(Queue, "updated_at")
    served = moment_field(Queue, "served_at")
    overridden = moment_field(Queue, "override_at")
    override_ends = moment_field(Queue, "override_until")
    paused = moment_field(Queue, "paused_at")


def _count(obj: Any, name: str) -> str:
    return f"{getattr(obj.overview, name):,}" if obj.overview else NO_VALUE


def state_badges(queue: Queue) -> list[SafeString]:
    """Return badges for a queue that is paused or overridden."""
    found = [badge("paused", "‖", _("Paused"))] if queue.paused_at else []
    return (
        [*found, badge("overridden", "✎", _("Overridden"))] if queue.override is not None else found
    )


def limit_table(queue: Queue, effective: Mapping[str, Any] | None) -> Table:
    """Return a table of the declared, overridden and effective limits of a queue.

    ``effective`` is None if reading it took too long.
    """
    override = queue.override if isinstance(queue.override, dict) else {}
    rows: list[list[Any]] = []

    for key in CLUSTER_LIMITS if queue.name == CLUSTER else ("priority", *LIMITS):
        origin: SafeString | str = (
            badge("overridden", "✎", _("Overridden")) if key in override else ""
        )
        if key == "max_concurrency" and queue.paused_at:
            origin = badge("paused", "‖", _("Paused"))

        overridden = shown_limit(override[key]) if key in override else NO_VALUE
        held = format_html("{} {}", shown_limit(effective[key]) if effective else NO_VALUE, origin)
        rows.append(
            [capfirst(label_of_limit(key)), shown_limit(getattr(queue, key)), overridden, held]
        )

    if queue.name != CLUSTER:
        rule = _rule(queue)
        policy = shown_policy(queue.partition_policy)
        rows.append([capfirst(_("partitions by")), rule, NO_VALUE, rule])
        rows.append([capfirst(label_of_limit("partition_policy")), policy, NO_VALUE, policy])

    return Table(
        "limits", _("Limits"), (_("Limit"), _("Declared"), _("Override"), _("In force")), rows
    )


def _rule(queue: Queue) -> str:
    parts = [_("task")] if queue.partition_by_task else []
    if isinstance(queue.partition_by_args, list):
        names = ", ".join(str(name) for name in queue.partition_by_args)
        parts.insert(
            0, _("arguments: %(names)s") % {"names": names} if names else _("all arguments")
        )
    return "; ".join(parts) or _("not partitioned")


class QueueAdmin(QueueAdminMixin, ModelAdmin):
    """The queue pages for Django's own admin."""
