"""The fire times of a schedule for display: the next ones in its zone, and the tasks of the last ones."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db import connections
from django.http import HttpRequest
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy, ngettext

from horsies_django.admin.base.html import (
    NOTHING,
    STATUSES,
    away,
    badge,
    moment,
    status_badge,
)
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.core.patterns import Pattern, PatternError, parse
from horsies_django.core.schedules import ScheduleConfig, read_definition
from horsies_django.core.status import Status
from horsies_django.models import Schedule, Task
from horsies_django.models.moments import aware
from horsies_django.monitoring.overview import as_object
from horsies_django.store.schedules import Recent, ScheduleStore

REMOVED = gettext_lazy("Removed")


class Reading(NamedTuple):
    """A parsed definition; ``schedule`` is None if it is invalid, ``pattern`` is None if the pattern is."""

    schedule: ScheduleConfig | None
    pattern: Pattern | None
    problems: list[tuple[str, str]]

    @property
    def zone(self) -> dt.tzinfo:
        """The zone of its fire times; UTC if the pattern is invalid."""
        return ZoneInfo(self.pattern.zone) if self.pattern else dt.UTC


class FireTimeRow(NamedTuple):
    """One line of the table of next fire times."""

    local: str
    offset: str
    utc: str
    away: str


class RunRow(NamedTuple):
    """One line of the table of last fire times."""

    local: str
    sent: SafeString | str
    task: SafeString | str
    status: SafeString


def read(schedule: Schedule) -> Reading:
    """Parse a schedule's definition as far as it is valid."""
    definition = as_object(schedule.definition)
    found, problems = read_definition(definition)
    if found:
        return Reading(found, found.pattern, problems)
    try:
        pattern = parse(str(definition.get("pattern")), definition.get("zone", "UTC"))
    except PatternError:
        pattern = None
    return Reading(None, pattern, problems)


def coming(schedule: Any, pattern: Pattern, count: int) -> list[dt.datetime]:
    """Return the next fire times of the pattern after the row was read."""
    return pattern.coming(aware(schedule.read_at), count, aware(schedule.since))


def coming_rows(schedule: Any, reading: Reading, count: int) -> list[FireTimeRow]:
    """Return the next fire times, in the zone of the schedule and in UTC."""
    now = aware(schedule.read_at)
    fire_times = coming(schedule, reading.pattern, count) if reading.pattern else []
    return [
        FireTimeRow(
            wall(fire_time, reading.zone),
            fire_time.astimezone(reading.zone).isoformat()[19:],
            f"{fire_time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00"),
            away(fire_time, now),
        )
        for fire_time in fire_times
    ]


def wall(fire_time: dt.datetime, zone: dt.tzinfo) -> str:
    """Return a fire time in the local time of a zone: ``Sun 2027-03-28 09:00``; with seconds unless they are zero."""
    local = aware(fire_time).astimezone(zone)
    return f"{date_format(local, 'D')} {local:%Y-%m-%d} {local:%H:%M:%S}".removesuffix(":00")


def recent(alias: str, names: Iterable[str], many: int) -> dict[str, list[Recent]] | None:
    """Return the latest fire times by schedule, read with one statement; None if that took too long."""
    asked = list(names)
    found = read_bounded(alias, lambda: ScheduleStore(connections[alias]).recent(asked, many)) if asked else []
    if found is None:
        return None
    runs = defaultdict(list)
    for run in found:
        runs[run.name].append(run)
    return runs


def run_rows(page: Any, request: HttpRequest, schedule: Any, runs: list[Recent], zone: dt.tzinfo) -> list[RunRow]:
    """Return the lines of the table of last fire times."""
    return [
        RunRow(
            wall(run.fire_at, zone),
            moment(run.sent_at, schedule.read_at),
            page.link(request, Task, run.task_id, str(run.task_id)) if run.status else str(run.task_id),
            shown_status(run.status),
        )
        for run in runs
    ]


def shown_status(status: str | None) -> SafeString:
    """Return the status of a fire time's task."""
    return status_badge(status) if status else badge("unknown", "·", REMOVED)


def bar(runs: list[Recent], zone: dt.tzinfo) -> SafeString | str:
    """Return the last runs as blocks, newest at the right, coloured and shaped by status; screen readers get one sentence."""
    if not runs:
        return NOTHING
    counts = Counter(_name(run.status) for run in runs)
    told = ", ".join(f"{count} {name.lower()}" for name, count in counts.most_common())
    label = ngettext("The last run: %(told)s.", "The last %(count)d runs: %(told)s.", len(runs))
    blocks = ((_kind(run.status), f"{wall(run.fire_at, zone)}: {_name(run.status)}") for run in reversed(runs))
    return format_html(
        '<span class="horsies-runs" role="img" aria-label="{}">{}</span>',
        label % {"count": len(runs), "told": told},
        format_html_join("", '<span class="horsies-run horsies-run-{}" title="{}"></span>', blocks),
    )


def _kind(status: str | None) -> str:
    return status.lower() if status in set(Status) else "unknown"


def _name(status: str | None) -> str:
    if status is None:
        return str(REMOVED)
    return str(STATUSES[Status(status)][1]) if status in set(Status) else status
