"""Translates the schedules of Celery, such as crontabs, into patterns. Celery itself is not imported."""

from __future__ import annotations

import datetime as dt
from typing import Any

from croniter import CroniterError, croniter

from horsies_django.core.patterns import Cron, Every, Pattern, PatternError

SECOND = dt.timedelta(seconds=1)
# The fields of a crontab in the order of a cron expression, with their least and greatest values.
FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day_of_month", 1, 31), ("month_of_year", 1, 12), ("day_of_week", 0, 6))
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Untranslatable(Exception):
    """A schedule has no counterpart; the message says why, and what to do instead."""


def kinds(schedule: Any) -> set[str]:
    """Return the names of the classes of a schedule that are Celery's."""
    ours = ("celery", "django_celery_beat")
    return {cls.__name__ for cls in type(schedule).__mro__ if cls.__module__.partition(".")[0] in ours}


def pattern_of(schedule: Any, zone: Any) -> Pattern:
    """Return the pattern of a schedule of Celery; ``zone`` None: Celery's own. Raises Untranslatable, PatternError."""
    found = kinds(schedule)
    if "crontab" in found:
        return cron(schedule, zone_name(schedule.tz if zone is None else zone))
    if "clocked" in found:
        when = schedule.clocked_time.isoformat()
        raise Untranslatable(
            f"it fires once, at {when}: send the task with .schedule(datetime.fromisoformat({when!r}), ...)"
        )
    if found & {"solar", "SolarSchedule"}:
        raise Untranslatable(
            "it follows the sun: let a daily task compute the moment and send the task with .schedule(when, ...)"
        )
    length = getattr(schedule, "run_every", schedule)
    if isinstance(length, int | float) and not isinstance(length, bool):
        length = dt.timedelta(seconds=length)
    if not isinstance(length, dt.timedelta):
        raise Untranslatable(f"{type(schedule).__name__} has no counterpart: see the patterns that there are")
    if length % SECOND:
        raise Untranslatable(f"it fires every {length.total_seconds():g} s, and an interval here has whole seconds")
    return Every(seconds=length // SECOND)


def zone_name(zone: Any) -> str:
    """Return the name of a time zone, an IANA name if it has one."""
    return zone if isinstance(zone, str) else str(getattr(zone, "key", zone))


def cron(crontab: Any, zone: str) -> Cron:
    """Return a crontab of Celery as a cron expression. Raises Untranslatable, PatternError.

    In Celery, a day has to match both the day of the month and the day of the week; in a cron expression one of them is enough,
    unless a field begins with a star.
    """
    minute, hour, day_of_month, month, day_of_week = (
        cron_field(crontab, place, *described) for place, described in enumerate(FIELDS)
    )
    if not (day_of_month.startswith("*") or day_of_week.startswith("*")):
        day_of_month, day_of_week = "*", in_weeks(crontab.day_of_month, crontab.day_of_week)
    return Cron(f"{minute} {hour} {day_of_month} {month} {day_of_week}", zone=zone)


def cron_field(crontab: Any, place: int, name: str, least: int, greatest: int) -> str:
    """Return a field as it was written, if that means the same in a cron expression, else as a list of numbers."""
    values = getattr(crontab, name)
    if len(values) == greatest - least + 1:
        return "*"
    written = str(getattr(crontab, f"_orig_{name}", "")).replace(" ", "").lower()
    fields = ["*"] * len(FIELDS)
    fields[place] = written
    try:
        if set(croniter.expand(" ".join(fields))[0][place]) == values:
            return str(Cron(" ".join(fields))).split()[place]
    except (CroniterError, PatternError, ValueError, IndexError):
        pass
    return ",".join(map(str, sorted(values)))


def in_weeks(days_of_month: set[int], days_of_week: set[int]) -> str:
    """Return days that match both as the nth weekdays of the month: 1-7 and mon are mon#1. Raises Untranslatable."""
    weeks = [range(first, min(first + 7, 32)) for first in range(1, 32, 7)]
    whole = [week for week in weeks if days_of_month.issuperset(week)]
    if days_of_month != {day for week in whole for day in week}:
        raise Untranslatable(
            "it fires on days that match both day_of_month and day_of_week; in a cron expression one of them is enough. Fire on "
            "one of them, and let the task look at the other"
        )
    return ",".join(f"{DAYS[day]}#{weeks.index(week) + 1}" for week in whole for day in sorted(days_of_week))
