"""The admin pages for schedules: definitions, fire times, the tasks that were sent, and changes."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db import connections
from django.db.models import F, JSONField, Max, Q, QuerySet
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from horsies_django.admin.base.audit import OF_SCHEDULES, last_changes
from horsies_django.admin.base.change_forms import ADD, ChangeMixin
from horsies_django.admin.base.html import (
    FEW,
    LONGEST_CELL,
    MOST_ENTRIES,
    NO_VALUE,
    Table,
    age,
    away,
    badge,
    badge_shape,
    breakable,
    json_block,
    marked,
    moment_field,
    row_field,
    rows_or_none,
    time_and_age,
)
from horsies_django.admin.base.labels import ARGUMENTS_KEY, label_of_key, shown_value
from horsies_django.admin.base.readonly import ChosenFilter, ModelAdmin, NextPageMixin, read_bounded
from horsies_django.admin.schedules.schedule_forms import AddForm, EditForm
from horsies_django.core.patterns import Pattern, PatternError, parse_pattern
from horsies_django.core.schedules import SCHEDULE_KEYS, as_texts, read_definition
from horsies_django.models import Schedule, Task
from horsies_django.models.fields import aware
from horsies_django.monitoring.health import LATE
from horsies_django.monitoring.health.state import MISSED
from horsies_django.monitoring.overview import as_object, changed_keys
from horsies_django.store.schedules import Recent, ScheduleStore
from horsies_django.tasks import registry

REMOVED: str | Promise = gettext_lazy("Removed")
SKIPPED: str | Promise = gettext_lazy("Skipped")
HELD = CombinedExpression(F("declared"), "||", F("changes"), JSONField())  # the definition in force
OFF = Q(held__enabled=False, held__enabled__isnull=False)
SCHEDULE_STATES = {
    "on": (gettext_lazy("On"), Q(gone_at__isnull=True) & ~OFF),
    "off": (gettext_lazy("Off"), Q(gone_at__isnull=True) & OFF),
    "gone": (gettext_lazy("Gone from the code"), Q(gone_at__isnull=False)),
    "error": (gettext_lazy("With an error"), Q(error__isnull=False)),
    "late": (gettext_lazy("Late"), Q(next_at__lt=Now() - LATE, gone_at__isnull=True)),
    "missed": (gettext_lazy("Missed fire times"), Q(missed_at__gt=Now() - MISSED)),
}


class Reading(NamedTuple):
    """The parsed definition of a schedule. ``pattern`` is None if the pattern is invalid."""

    pattern: Pattern | None
    problems: list[tuple[str, str]]

    @property
    def zone(self) -> dt.tzinfo:
        """The time zone of the fire times, which is UTC if the pattern is invalid."""
        return ZoneInfo(self.pattern.zone) if self.pattern else dt.UTC


def read_schedule(schedule: Schedule) -> Reading:
    """Parse the valid parts of a schedule's definition."""
    definition = as_object(schedule.definition)
    found, problems = read_definition(definition)
    if found:
        return Reading(found.pattern, problems)

    try:
        pattern = parse_pattern(str(definition.get("pattern")), definition.get("zone", "UTC"))
    except PatternError:
        pattern = None

    return Reading(pattern, problems)


def next_fire_times(schedule: Any, pattern: Pattern, count: int) -> list[dt.datetime]:
    """Return the next fire times of the pattern after the time when the row was read."""
    return pattern.coming(aware(schedule.read_at), count, aware(schedule.since))


def coming_table(schedule: Any, reading: Reading) -> Table:
    """Return a table of the next fire times, in the zone of the schedule and in UTC."""
    now = aware(schedule.read_at)

    def row(at: dt.datetime) -> list[Any]:
        local = local_fire_time(at, reading.zone)
        offset = at.astimezone(reading.zone).isoformat()[19:]
        there = format_html('{} <span class="horsies-quiet">{}</span>', local, offset)
        utc = f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00")
        return [marked("fire-time", cell) for cell in (there, utc, away(at, now))]

    rows = (
        [row(at) for at in next_fire_times(schedule, reading.pattern, FEW)]
        if reading.pattern
        else []
    )
    note = (
        _("The schedule does not fire. These would be its fire times.")
        if rows and not _fires(schedule)
        else ""
    )
    above = format_html('<p class="horsies-note">{}</p>', note) if note else ""

    return Table(
        "coming",
        _("Next fire times"),
        (marked("zone", reading.zone), "UTC", _("When")),
        rows,
        above=above,
    )


def local_fire_time(fire_time: dt.datetime, zone: dt.tzinfo) -> str:
    """Return a fire time in the local time of a zone, such as ``Sun 2027-03-28 09:00``.

    The seconds are left out if they are zero.
    """
    local = aware(fire_time).astimezone(zone)
    return f"{date_format(local, 'D')} {local:%Y-%m-%d} {local:%H:%M:%S}".removesuffix(":00")


def last_fire_times_table(page: Any, request: HttpRequest, schedule: Any, zone: dt.tzinfo) -> Table:
    """Return a table of the last fire times and their tasks."""

    def row(run: Recent) -> list[Any]:
        reason = _("because this task had not finished") if run.skipped else ""
        task = (
            page.link(request, Task, run.task_id, str(run.task_id))
            if run.status
            else str(run.task_id)
        )
        sent = NO_VALUE if run.skipped else time_and_age(run.sent_at, schedule.read_at)
        local = marked("fire-time", local_fire_time(run.fire_at, zone))
        return [
            local,
            sent,
            marked("id", task),
            format_html("{} {}", badge(*shown_run(run)), reason),
        ]

    heads = (marked("zone", zone), _("Sent"), _("Task"), _("Status"))
    rows = rows_or_none(schedule.runs, row)
    return Table("runs", _("Last fire times"), heads, rows, empty=_("None so far."))


def shown_run(run: Recent) -> tuple[str, str, str | Promise]:
    """Return the arguments of ``badge`` for the task of a fire time, or for a skipped fire time."""
    if run.skipped:
        return "skipped", "⊘", SKIPPED
    return badge_shape(run.status) if run.status else ("unknown", "·", REMOVED)


def bar(runs: list[Recent], zone: dt.tzinfo) -> SafeString | str:
    """Return the last runs as blocks, the newest at the right, coloured and shaped by status.

    Screen readers read one sentence in place of the blocks.
    """
    if not runs:
        return NO_VALUE

    shapes = [(shown_run(run), run.fire_at) for run in runs]
    counts = Counter(str(name) for (_kind, _shape, name), _at in shapes)
    counted = ", ".join(f"{count} {name.lower()}" for name, count in counts.most_common())
    label = ngettext("The last run: %(told)s.", "The last %(count)d runs: %(told)s.", len(runs))
    blocks = (
        (kind, f"{local_fire_time(at, zone)}: {name}")
        for (kind, _shape, name), at in reversed(shapes)
    )

    return format_html(
        '<span class="horsies-runs" role="img" aria-label="{}">{}</span>',
        label % {"count": len(runs), "told": counted},
        format_html_join("", '<span class="horsies-run horsies-run-{}" title="{}"></span>', blocks),
    )


class ScheduleStateFilter(ChosenFilter):
    """Filter for schedules that fire, that do not fire, or that have an error."""

    title = gettext_lazy("state")
    parameter_name = "state"
    offered = tuple((state, text) for state, (text, _rows) in SCHEDULE_STATES.items())

    def condition(self, value: str) -> Q:
        return SCHEDULE_STATES[value][1]


def with_runs(page: Any, request: HttpRequest, alias: str, schedules: list[Any]) -> list[Any]:
    """Set ``reading``, ``runs`` and ``linked_last`` of each schedule, and return the schedules.

    The runs are read with one statement. ``runs`` is None if that took too long. ``linked_last`` is
    the status of the last task, with a link if the user may view the task.
    """
    names = [schedule.name for schedule in schedules]
    store = ScheduleStore(connections[alias])
    found = read_bounded(alias, lambda: store.recent(names, MOST_ENTRIES)) if names else []

    runs = defaultdict(list)
    for run in found or []:
        runs[run.name].append(run)

    for schedule in schedules:
        schedule.reading = read_schedule(schedule)
        schedule.linked_last = ""
        schedule.runs = None if found is None else runs[schedule.name]

        if last := schedule.runs and schedule.runs[0]:
            status = badge(*shown_run(last))
            schedule.linked_last = (
                page.link(request, Task, last.task_id, status) if last.status else status
            )

    return schedules


class ScheduleListMixin(NextPageMixin):
    """The change list of schedules.

    A note contains the running schedulers, and when one of them last had the schedules in its code.
    """

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Set the last fire times of the schedules, and a link to the latest task of each.

        They are read for the whole page at once.
        """
        alias = self.root_queryset.db
        if rows:
            running = ", ".join(ScheduleStore(connections[alias]).schedulers())
            self.note = (
                _("Schedulers: %(names)s.") % {"names": running}
                if running
                else _("No scheduler is running.")
            )

            declared = Schedule.objects.using(alias).filter(
                declared_in__isnull=False, gone_at__isnull=True
            )
            if last := declared.aggregate(at=Max("declared_at"))["at"]:
                ago = _("The schedules were last declared %(ago)s.") % {
                    "ago": away(last, rows[0].read_at)
                }
                self.note = f"{self.note} {ago}"

        return with_runs(self.model_admin, request, alias, rows)


class ScheduleAdminMixin(ChangeMixin):
    """The logic of the schedule pages, for any ModelAdmin."""

    subjects = OF_SCHEDULES
    change_forms: ClassVar = {"edit": EditForm, ADD: AddForm}
    change_list_mixin = ScheduleListMixin
    change_form_template = "admin/horsies/schedule/change_form.html"
    list_display = (
        "shown_name",
        "shown_pattern",
        "shown_next",
        "shown_last",
        "shown_runs",
        "shown_declared",
    )
    list_display_links = ("shown_name",)
    list_filter = (ScheduleStateFilter,)
    search_fields = ("name",)  # shows the box; searched() does the search
    search_help_text = gettext_lazy("Enter a part of the name of a schedule or of its task.")
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules, so that filters and the search can use the definition in force."""
        rows: QuerySet[Schedule] = super().get_queryset(request).alias(held=HELD)
        return rows

    def searched(self, rows: QuerySet[Schedule], term: str) -> QuerySet[Schedule]:
        """Search by the name of the schedule and by the name of the task."""
        return rows.filter(Q(name__icontains=term) | Q(held__task__icontains=term))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, ADD)

    def configure_view(
        self, request: HttpRequest, object_id: str | None = None, *, name: str
    ) -> HttpResponse:
        """Show a form or make its change, after importing the project's tasks.

        A web process imports the tasks only when they are needed.
        """
        if self.may(request, name):
            for problem in registry.autodiscover():
                text = _(
                    "The tasks of %(module)s are missing because it cannot be imported: %(error)s"
                )
                values = {"module": problem.module, "error": problem.error}
                self.message_user(request, text % values, messages.WARNING)

        return super().configure_view(request, object_id, name=name)

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        gone = ("gone",) if obj and obj.gone_at else ()
        fields = (
            "shown_task",
            "shown_pattern",
            "following",
            ("shown_last", "shown_runs"),
            "shown_declared",
        )
        return (
            (
                None,
                {"fields": (*fields, ("in_force", "last_declared", *gone), ("created", "updated"))},
            ),
        )

    def complete(self, request: HttpRequest, row: Any) -> None:
        """Set the last fire times of a schedule."""
        with_runs(self, request, row._state.db, [row])

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the tables of a schedule, its problem, and the links to its forms.

        The tables are the definition, the next and the last fire times, and the last changes.
        """
        return {
            "problem": _problem(obj),
            "failed": time_and_age(obj.error_at, obj.read_at) if obj.error else "",
            "tables": [
                definition_table(obj, self.has_view_payload_permission(request)),
                coming_table(obj, obj.reading),
                last_fire_times_table(self, request, obj, obj.reading.zone),
                last_changes(self, request, obj, obj.name, OF_SCHEDULES),
            ],
            "tools": self.tools(request, obj),
        }

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, obj: Schedule) -> SafeString:
        """Return the name, and below it the name of the task if that is different."""
        task = as_object(obj.definition).get("task")
        if not task or task == obj.name:
            return breakable(obj.name)
        template = '{}<br><span class="horsies-quiet horsies-below">{}</span>'
        return format_html(template, breakable(obj.name), breakable(str(task)))

    @admin.display(description=gettext_lazy("task"))
    def shown_task(self, obj: Schedule) -> SafeString | str:
        task = as_object(obj.definition).get("task")
        return breakable(str(task)) if task else NO_VALUE

    @admin.display(description=gettext_lazy("pattern"))
    def shown_pattern(self, obj: Any) -> SafeString:
        """Return the pattern in words, and below it as text with its zone."""
        definition = as_object(obj.definition)
        pattern = obj.reading.pattern
        text = str(definition.get("pattern", NO_VALUE))
        zone = str(definition.get("zone", "UTC"))

        if pattern is None:
            return format_html("<code>{}</code>", text)

        description = pattern.in_words
        written = str(pattern)
        code = (
            format_html("<code>{}</code> · ", written)
            if description.lower() != written.lower()
            else ""
        )

        template = (
            '<span title="{} {}">{}</span><br><span class="horsies-quiet horsies-below">{}{}</span>'
        )
        return format_html(template, written, zone, description, code, zone)

    @admin.display(description=gettext_lazy("next fire time"))
    def shown_next(self, obj: Any) -> SafeString | str:
        """Return the next fire time, with marks for missed fire times and for an error."""
        following = self.following(obj)
        problem = _problem(obj)

        if obj.missed_at is not None and obj.read_at - obj.missed_at < MISSED:
            missed = badge("full", "■", _("Missed fire times"))
            following = format_html(
                "{}<br>{} {}", following, missed, age(obj.missed_at, obj.read_at)
            )

        if not problem or not _fires(obj):
            return following

        error = format_html(
            "{} {}", badge("failed", "✕", _("Error")), Truncator(problem).chars(LONGEST_CELL)
        )
        return error if following == NO_VALUE else format_html("{}<br>{}", following, error)

    @admin.display(description=gettext_lazy("next fire time"))
    def following(self, obj: Any) -> SafeString | str:
        """Return the next fire time in the schedule's zone, or the reason why there is none."""
        if obj.gone_at:
            return badge("stopped", "⊘", _("Gone from the code"))
        if not _fires(obj):
            return badge("stopped", "■", _("Off"))
        reading = obj.reading
        fire_time = aware(obj.next_fire_at) if obj.next_fire_at else None
        if fire_time is None and reading.pattern:
            fire_time = next(iter(next_fire_times(obj, reading.pattern, 1)), None)

        if fire_time is None:
            return NO_VALUE

        now = aware(obj.read_at)
        late = obj.next_at is not None and now - aware(obj.next_at) > LATE
        template = (
            '<time datetime="{}">{}</time><br><span class="horsies-quiet horsies-below">{}, '
            "{}</span> {}"
        )
        mark = badge("full", "■", _("Late")) if late else ""
        local = local_fire_time(fire_time, reading.zone)
        return format_html(
            template, fire_time.isoformat(), local, reading.zone, away(fire_time, now), mark
        )

    @admin.display(description=gettext_lazy("last task"))
    def shown_last(self, obj: Any) -> SafeString | str:
        """Return the status of the last task, and how long ago it was sent."""
        if not obj.runs:
            return NO_VALUE
        ago = format_html(
            '<span class="horsies-quiet horsies-below">{}</span>',
            age(obj.runs[0].sent_at, obj.read_at),
        )
        return format_html("{}<br>{}", obj.linked_last, ago)

    @admin.display(description=gettext_lazy("defined in"))
    def shown_declared(self, obj: Schedule) -> SafeString | str:
        """Return where the schedule is declared, with a mark if changes override that."""
        if obj.declared_in is None:
            return _("the admin")
        mark = badge("overridden", "✎", _("Changed")) if changed_keys(obj) else ""
        return format_html("{} {}", breakable(obj.declared_in), mark)

    shown_runs = row_field(
        gettext_lazy("last runs"), lambda row: bar(row.runs or [], row.reading.zone)
    )
    in_force = moment_field(Schedule, "since")
    last_declared = moment_field(Schedule, "declared_at")
    gone = moment_field(Schedule, "gone_at")
    created = moment_field(Schedule, "created_at")
    updated = moment_field(Schedule, "updated_at")


def _fires(obj: Schedule) -> bool:
    return obj.gone_at is None and as_object(obj.definition).get("enabled") is not False


def _problem(obj: Any) -> str:
    """Return the error that the scheduler recorded, or the problems of the definition, or ""."""
    return obj.error or "; ".join(as_texts(obj.reading.problems))


def definition_table(schedule: Schedule, visible: bool) -> Table:
    """Return a table of the current definition of a schedule.

    If the definition was changed, the table also contains the declared value of each key that
    differs. Arguments are shown only if ``visible`` is true.
    """
    declared = as_object(schedule.declared)
    held = as_object(schedule.definition)
    changed = changed_keys(schedule)
    mark = badge("overridden", "✎", _("Changed"))

    rows = []
    for key in [*SCHEDULE_KEYS, *(key for key in held if key not in SCHEDULE_KEYS)]:
        differs = key in changed
        row = [
            capfirst(label_of_key(key)),
            format_html("{} {}", _cell(key, held.get(key), visible), mark if differs else ""),
        ]
        if changed:
            row.append(_cell(key, declared.get(key), visible) if differs else "")
        rows.append(row)

    heads = (_("Key"), _("In force"), *([_("In the code")] if changed else []))
    return Table("definition", _("Definition"), heads, rows)


def _cell(key: str, value: object, visible: bool) -> SafeString | str:
    if key == ARGUMENTS_KEY and value:
        return json_block(value) if visible else _("hidden")
    if key in ("task", "pattern"):
        return format_html("<code>{}</code>", shown_value(key, value))
    return shown_value(key, value)


class ScheduleAdmin(ScheduleAdminMixin, ModelAdmin):
    """The schedule pages for Django's own admin."""
