"""Schedules as text for a terminal; the JSON output has the same content."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from horsies_django.core.patterns import Pattern
from horsies_django.management.reports.layout import table
from horsies_django.models.moments import aware
from horsies_django.monitoring.overview import ScheduleOverview

STATES = {"on": "on", "off": "off", "gone": "gone from the code", "error": "ERROR"}


def schedule_table(schedules: Sequence[ScheduleOverview]) -> str:
    """Return a line per schedule, and the errors below it."""
    if not schedules:
        return "There are no schedules: 'horsies_scheduler' writes those of the code to the table when it starts."
    headings = ("SCHEDULE", "FIRES", "ZONE", "TASK", "STATE", "NEXT FIRE TIME", "LAST FIRE TIME", "LAST TASK")
    rows = (
        (
            one.name, one.in_words or one.pattern, one.zone, one.task, STATES[one.state], wall(one.next_fire_at, one.zone),
            wall(one.last_fire_at, one.zone), one.last_status or "-",
        )
        for one in schedules
    )  # fmt: skip
    errors = [f"{one.name}: {one.error}" for one in schedules if one.error]
    return "\n\n".join([table(headings, rows), *errors])


def fire_time_table(pattern: Pattern, fire_times: Sequence[dt.datetime]) -> str:
    """Return a line per fire time: in the schedule's zone, and in UTC."""
    if not fire_times:
        return "It will not fire again."
    zone = ZoneInfo(pattern.zone)
    rows = ((f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{one:%Y-%m-%d %H:%M:%S}") for one in fire_times)
    return f"{pattern.in_words}, {pattern.zone}\n\n{table((pattern.zone, 'UTC'), rows)}"


def wall(fire_time: dt.datetime | None, zone: str) -> str:
    """Return a fire time in the local time of a zone, or in UTC if the zone does not exist."""
    if fire_time is None:
        return "-"
    try:
        return f"{aware(fire_time).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
    except (KeyError, ValueError, OSError):
        return f"{aware(fire_time).astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
