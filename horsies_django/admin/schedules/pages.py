"""The pages about schedules: when each fires, what it sends, the tasks of its last fire times, and who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import F, JSONField, Q, QuerySet
from django.db.models.expressions import CombinedExpression
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.definitions import definition_rows
from horsies_django.admin.base.history import OF_SCHEDULES, last_changes
from horsies_django.admin.base.html import (
    NOTHING,
    age,
    away,
    badge,
    breakable,
    moment,
    moment_field,
)
from horsies_django.admin.base.readonly import NextPageMixin
from horsies_django.admin.base.sizes import FEW, LAST, LONGEST_CELL
from horsies_django.admin.schedules import fire_times
from horsies_django.admin.schedules.editing import EditMixin
from horsies_django.core.schedules import as_texts
from horsies_django.models import Schedule, Task
from horsies_django.models.moments import aware
from horsies_django.monitoring.health import LATE
from horsies_django.monitoring.overview import as_object, changed_keys

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Schedule]
else:
    ModelAdmin = admin.ModelAdmin

HELD = CombinedExpression(F("declared"), "||", F("changes"), JSONField())  # the definition in force
OFF = Q(held__enabled=False, held__enabled__isnull=False)
STATES = {
    "on": (gettext_lazy("On"), Q(gone_at__isnull=True) & ~OFF),
    "off": (gettext_lazy("Off"), Q(gone_at__isnull=True) & OFF),
    "gone": (gettext_lazy("Gone from the code"), Q(gone_at__isnull=False)),
    "error": (gettext_lazy("With an error"), Q(error__isnull=False)),
}


class StateFilter(admin.SimpleListFilter):
    """Filters schedules by whether they fire, do not, or have an error."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state, text) for state, (text, _rows) in STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> QuerySet[Schedule]:
        """Filter by the state. Raises IncorrectLookupParameters for an unknown one."""
        value = self.value()
        if value is None:
            return queryset
        if value not in STATES:
            raise IncorrectLookupParameters(repr(value))
        return queryset.filter(STATES[value][1])


def with_runs(alias: str, schedules: list[Any]) -> list[Any]:
    """Set ``reading`` and ``runs`` of each schedule, read with one statement; ``runs`` is None if that took too long."""
    found = fire_times.recent(alias, [schedule.name for schedule in schedules], LAST)
    for schedule in schedules:
        schedule.reading = fire_times.read(schedule)
        schedule.runs = None if found is None else found.get(schedule.name, [])
    return schedules


class ScheduleListMixin(NextPageMixin):
    """The change list of schedules, by name."""

    def source(self) -> QuerySet[Schedule]:
        schedules: QuerySet[Schedule] = self.queryset
        return schedules.order_by("name")

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Read the last fire times of the whole page at once, and link the task of the latest."""
        page: Any = self.model_admin
        schedules: list[Any] = page.with_last(request, with_runs(self.root_queryset.db, rows))
        return schedules


class ScheduleAdminMixin(EditMixin):
    """The logic of the schedule pages, for any ModelAdmin."""

    change_list_mixin = ScheduleListMixin
    change_form_template = "admin/horsies/schedule/change_form.html"
    list_display = ("shown_name", "shown_pattern", "shown_next", "shown_last", "shown_runs", "shown_declared")
    list_display_links = ("shown_name",)
    list_filter = (StateFilter,)
    search_fields = ("name",)  # shows the box; get_search_results does the search
    search_help_text = gettext_lazy("Part of the name of a schedule or of its task.")
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Have filters and the search look into the definition in force."""
        rows: QuerySet[Schedule] = super().get_queryset(request).alias(held=HELD)
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Schedule], search_term: str
    ) -> tuple[QuerySet[Schedule], bool]:
        """Search by the name and by the name of the task."""
        term = search_term.strip()
        found = Q(name__icontains=term) | Q(held__task__icontains=term)
        return (queryset.filter(found) if term else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        gone = ("gone",) if obj and obj.gone_at else ()
        fields = ("shown_task", "shown_pattern", "following", ("shown_last", "shown_runs"), "shown_declared")
        return ((None, {"fields": (*fields, ("in_force", "last_declared", *gone), ("created", "updated"))}),)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Schedule | None:
        """Return the schedule with its last fire times; None for NUL bytes, which no name and no query can contain."""
        found = [] if "\x00" in object_id else list(self.get_queryset(request).filter(name=object_id))
        return self.with_last(request, with_runs(found[0]._state.db or "", found))[0] if found else None

    def with_last(self, request: HttpRequest, schedules: list[Any]) -> list[Any]:
        """Set ``linked_last`` of each schedule: the status of its last task, as a link if the user may see the task."""
        for schedule in schedules:
            schedule.linked_last = ""
            if schedule.runs:
                last = schedule.runs[0]
                status = fire_times.shown_status(last.status)
                schedule.linked_last = self.link(request, Task, last.task_id, status) if last.status else status
        return schedules

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the definition, the next and the last fire times, the last changes and the change buttons."""
        zone = obj.reading.zone
        visible = request.user.has_perm("horsies.view_payload")
        return {
            "problem": _problem(obj),
            "failed": moment(obj.error_at, obj.read_at) if obj.error else "",
            "definition": definition_rows(obj, visible),
            "from_code": bool(changed_keys(obj)),
            "zone": str(zone),
            "fires": _fires(obj),
            "coming": fire_times.coming_rows(obj, obj.reading, FEW),
            "runs": None if obj.runs is None else fire_times.run_rows(self, request, obj, obj.runs, zone),
            **last_changes(self, request, obj, obj.name, OF_SCHEDULES),
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
        return breakable(str(task)) if task else NOTHING

    @admin.display(description=gettext_lazy("pattern"))
    def shown_pattern(self, obj: Any) -> SafeString:
        """Return the pattern in words, and below that as text with its zone."""
        definition, pattern = as_object(obj.definition), obj.reading.pattern
        text, zone = str(definition.get("pattern", NOTHING)), str(definition.get("zone", "UTC"))
        if pattern is None:
            return format_html("<code>{}</code>", text)
        words, written = pattern.in_words, str(pattern)
        code = format_html("<code>{}</code> · ", written) if words.lower() != written.lower() else ""
        template = '<span title="{} {}">{}</span><br><span class="horsies-quiet horsies-below">{}{}</span>'
        return format_html(template, written, zone, words, code, zone)

    @admin.display(description=gettext_lazy("next fire time"))
    def shown_next(self, obj: Any) -> SafeString | str:
        """Return the next fire time, and the error of the last one."""
        following, problem = self.following(obj), _problem(obj)
        if not problem or not _fires(obj):
            return following
        error = format_html("{} {}", badge("failed", "✕", _("Error")), Truncator(problem).chars(LONGEST_CELL))
        return error if following == NOTHING else format_html("{}<br>{}", following, error)

    @admin.display(description=gettext_lazy("next fire time"))
    def following(self, obj: Any) -> SafeString | str:
        """Return the next fire time in the schedule's zone, or why there is none."""
        if obj.gone_at:
            return badge("stopped", "⊘", _("Gone from the code"))
        if not _fires(obj):
            return badge("stopped", "■", _("Off"))
        reading, now = obj.reading, aware(obj.read_at)
        computed = fire_times.coming(obj, reading.pattern, 1) if reading.pattern and not obj.next_fire_at else []
        fire_time = aware(obj.next_fire_at) if obj.next_fire_at else computed[0] if computed else None
        if fire_time is None:
            return NOTHING
        late = obj.next_at is not None and now - aware(obj.next_at) > LATE
        template = '<time datetime="{}">{}</time><br><span class="horsies-quiet horsies-below">{}, {}</span> {}'
        mark = badge("full", "■", _("Late")) if late else ""
        local = fire_times.wall(fire_time, reading.zone)
        return format_html(template, fire_time.isoformat(), local, reading.zone, away(fire_time, now), mark)

    @admin.display(description=gettext_lazy("last task"))
    def shown_last(self, obj: Any) -> SafeString | str:
        """Return the status of the last task, and how long ago it was sent."""
        if not obj.runs:
            return NOTHING
        ago = format_html('<span class="horsies-quiet horsies-below">{}</span>', age(obj.runs[0].sent_at, obj.read_at))
        return format_html("{}<br>{}", obj.linked_last, ago)

    @admin.display(description=gettext_lazy("last runs"))
    def shown_runs(self, obj: Any) -> SafeString | str:
        return fire_times.bar(obj.runs or [], obj.reading.zone)

    @admin.display(description=gettext_lazy("defined in"))
    def shown_declared(self, obj: Schedule) -> SafeString | str:
        """Return where the schedule is declared, with a mark if changes override that."""
        if obj.declared_in is None:
            return _("the admin")
        mark = badge("overridden", "✎", _("Changed")) if changed_keys(obj) else ""
        return format_html("{} {}", breakable(obj.declared_in), mark)

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


class ScheduleAdmin(ScheduleAdminMixin, ModelAdmin):
    """The schedule pages of Django's own admin."""
