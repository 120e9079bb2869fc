"""Schedules as text for a terminal; the JSON for machines has the same in it."""

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
        return "There are no schedules: 'horsies_scheduler' writes those of the code into the table when it starts."
    headings = ("SCHEDULE", "FIRES", "ZONE", "TASK", "STATE", "NEXT SLOT", "LAST SLOT", "LAST TASK")
    rows = (
        (
            one.name, one.in_words or one.pattern, one.zone, one.task, STATES[one.state], wall(one.next_slot, one.zone),
            wall(one.last_slot, one.zone), one.last_status or "-",
        )
        for one in schedules
    )  # fmt: skip
    errors = [f"{one.name}: {one.error}" for one in schedules if one.error]
    return "\n\n".join([table(headings, rows), *errors])


def slot_table(pattern: Pattern, slots: Sequence[dt.datetime]) -> str:
    """Return a line per slot: in the schedule's zone, and in UTC."""
    if not slots:
        return "No slot will come."
    zone = ZoneInfo(pattern.zone)
    rows = ((f"{slot.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{slot:%Y-%m-%d %H:%M:%S}") for slot in slots)
    return f"{pattern.in_words}, {pattern.zone}\n\n{table((pattern.zone, 'UTC'), rows)}"


def wall(slot: dt.datetime | None, zone: str) -> str:
    """Return a slot as the clock on the wall of its zone shows it; in UTC where there is no such zone."""
    if slot is None:
        return "-"
    try:
        return f"{aware(slot).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
    except (KeyError, ValueError, OSError):
        return f"{aware(slot).astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
