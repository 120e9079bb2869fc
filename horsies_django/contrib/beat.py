"""Translation of the schedules of Celery beat and django-celery-beat into definitions of ours.

Celery itself is not imported.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from croniter import CroniterError, croniter
from django.apps import apps
from django.conf import settings

from horsies_django.core.codec import CodecError
from horsies_django.core.patterns import SECOND, Cron, Every, Pattern, PatternError
from horsies_django.core.schedules import as_texts
from horsies_django.schedules import definition_problems, in_wire_form
from horsies_django.tasks import registry

# The fields of a crontab in the order of a cron expression, with their least and greatest values.
CRONTAB_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
CLEANUP = "celery.backend_cleanup"
# Options of a send that do not decide whether, when and with which arguments the task runs.
DROPPED = {
    "priority": "here 1 is first and 100 is last: give the task or the schedule a priority",
    "relative": (
        "an interval here is not rounded to the clock: use a cron string, or a pattern such as "
        "'hourly at :00'"
    ),
    "time_limit": "give the task a timeout_ms",
    "soft_time_limit": "give the task a timeout_ms",
}
ROUTING = (
    "exchange",
    "routing_key",
    "headers",
    "delivery_mode",
    "serializer",
    "compression",
    "retry",
    "retry_policy",
)


class Untranslatable(Exception):
    """Raised if a schedule has no counterpart. The message contains the reason and the remedy."""


def kinds(schedule: Any) -> set[str]:
    """Return the names of those classes of a schedule that are defined by Celery."""
    packages = ("celery", "django_celery_beat")
    return {
        cls.__name__
        for cls in type(schedule).__mro__
        if cls.__module__.partition(".")[0] in packages
    }


def pattern_of(schedule: Any, zone: Any) -> Pattern:
    """Return the pattern of a schedule of Celery.

    If ``zone`` is None, a crontab has the time zone that Celery gave it. Raises Untranslatable or
    PatternError if the schedule has no counterpart.
    """
    found = kinds(schedule)
    if "crontab" in found:
        zone = schedule.tz if zone is None else zone
        # A pattern takes the IANA name of a zone.
        return cron(schedule, zone if isinstance(zone, str) else str(getattr(zone, "key", zone)))

    if "clocked" in found:
        when = schedule.clocked_time.isoformat()
        raise Untranslatable(
            f"it fires once, at {when}: send the task with "
            f".schedule(datetime.fromisoformat({when!r}), ...)"
        )

    if found & {"solar", "SolarSchedule"}:
        raise Untranslatable(
            "it follows the sun: write a daily task that computes the time and sends the task with "
            ".schedule(when, ...)"
        )

    length = getattr(schedule, "run_every", schedule)
    if isinstance(length, int | float) and not isinstance(length, bool):
        length = dt.timedelta(seconds=length)
    if not isinstance(length, dt.timedelta):
        raise Untranslatable(
            f"{type(schedule).__name__} has no counterpart: use a cron string, or a pattern such "
            "as 'hourly at :00'"
        )

    if length % SECOND:
        raise Untranslatable(
            f"it fires every {length.total_seconds():g} s, but an interval here has whole seconds"
        )

    return Every(seconds=length // SECOND)


def cron(crontab: Any, zone: str) -> Cron:
    """Return a crontab of Celery as a cron expression.

    In Celery, a day must match both the day of the month and the day of the week. In a cron
    expression, one of them is enough, unless a field begins with a star. Raises Untranslatable or
    PatternError if the crontab has no counterpart.
    """
    minute, hour, day_of_month, month, day_of_week = (
        cron_field(crontab, place, *described) for place, described in enumerate(CRONTAB_FIELDS)
    )

    if not (day_of_month.startswith("*") or day_of_week.startswith("*")):
        day_of_month = "*"
        day_of_week = in_weeks(crontab.day_of_month, crontab.day_of_week)

    return Cron(f"{minute} {hour} {day_of_month} {month} {day_of_week}", zone=zone)


def cron_field(crontab: Any, place: int, name: str, least: int, greatest: int) -> str:
    """Return a field of a crontab as text for a cron expression.

    The text is the field as it was written if that means the same in a cron expression, else a list
    of numbers.
    """
    values = getattr(crontab, name)
    if len(values) == greatest - least + 1:
        return "*"

    written = str(getattr(crontab, f"_orig_{name}", "")).replace(" ", "").lower()
    fields = ["*"] * len(CRONTAB_FIELDS)
    fields[place] = written
    try:
        if set(croniter.expand(" ".join(fields))[0][place]) == values:
            return str(Cron(" ".join(fields))).split()[place]
    except (CroniterError, PatternError, ValueError, IndexError):
        pass

    return ",".join(map(str, sorted(values)))


def in_weeks(days_of_month: set[int], days_of_week: set[int]) -> str:
    """Return days that match both as the nth weekdays of the month: 1-7 and mon are mon#1.

    Raises Untranslatable if the days of the month are not whole weeks.
    """
    weeks = [range(first, min(first + 7, 32)) for first in range(1, 32, 7)]
    whole = [week for week in weeks if days_of_month.issuperset(week)]
    if days_of_month != {day for week in whole for day in week}:
        raise Untranslatable(
            "it fires on days that match both day_of_month and day_of_week; in a cron expression "
            "one of them is enough. Use one of them in the schedule, and check the other in the "
            "task"
        )

    return ",".join(
        f"{DAYS[day]}#{weeks.index(week) + 1}" for week in whole for day in sorted(days_of_week)
    )


DROPPED |= dict.fromkeys((*ROUTING, "ignore_result"), "there is no such option here")


@dataclass(frozen=True)
class Entry:
    """An entry of Celery beat.

    ``zone`` is the time zone of its crontab, or None if Celery chooses it. ``in_rows`` is true if
    the entry is a row of django-celery-beat. The arguments of a row are JSON values, not Python
    values.
    """

    name: str
    task: str
    schedule: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    zone: Any = None
    in_rows: bool = False
    enabled: bool = True
    one_off: bool = False
    begins: dt.datetime | None = None
    ends: dt.datetime | None = None


@dataclass(frozen=True)
class Translation:
    """The result of translating an entry.

    ``stored`` is the definition in the form that ``schedules.create`` takes, ``declared`` is the
    definition in the form of the settings. Both are None if there are ``problems``, or if there is
    nothing to do. In the latter case, ``done`` is the reason.
    """

    entry: Entry
    pattern: Pattern | None = None
    stored: dict[str, Any] | None = None
    declared: dict[str, Any] | None = None
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    done: str | None = None


def entries(app: Any) -> dict[str, Entry]:
    """Return the entries of Celery beat by name, including the rows of django-celery-beat.

    They are read from the Celery app, or from the settings if ``app`` is None. A row wins over an
    entry of the same name, because beat copies its entries into rows.
    """
    zone = getattr(settings, "CELERY_TIMEZONE", None) if app is None else app.timezone
    found = getattr(settings, "CELERY_BEAT_SCHEDULE", {}) if app is None else app.conf.beat_schedule

    of_settings = {}
    for name, raw in found.items():
        options = {
            **(raw.get("options") or {}),
            **({"relative": True} if raw.get("relative") else {}),
        }
        arguments = raw.get("args") or (), raw.get("kwargs") or {}
        of_settings[name] = Entry(
            name, raw.get("task", ""), raw.get("schedule"), *arguments, options, zone
        )

    return of_settings | {entry.name: entry for entry in of_rows(zone)}


def of_rows(zone: Any) -> Iterator[Entry]:
    """Yield the rows of django-celery-beat, or nothing if it is not installed."""
    if not apps.is_installed("django_celery_beat"):
        return

    aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
    model: Any = apps.get_app_config("django_celery_beat").get_model("PeriodicTask")
    for row in model.objects.order_by("name"):
        given = {key: getattr(row, key) for key in ("queue", "exchange", "routing_key", "priority")}
        given |= {
            "expires": row.expire_seconds,
            "headers": json_or_text(row.headers or "{}") or None,
        }

        yield Entry(
            row.name,
            row.task,
            row.solar or row.schedule,  # Celery's own object for the sun needs a library
            json_or_text(row.args or "[]"),
            json_or_text(row.kwargs or "{}"),
            {key: value for key, value in given.items() if value is not None},
            row.crontab.timezone if row.crontab and aware else zone,
            in_rows=True,
            enabled=row.enabled,
            one_off=row.one_off,
            begins=row.start_time,
            ends=row.expires,
        )


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def translate(entry: Entry, now: dt.datetime) -> Translation:
    """Return the definition for an entry, or the reasons why it has no counterpart."""
    if entry.task == CLEANUP:
        return Translation(entry, done="retention deletes finished tasks")
    if entry.one_off and not entry.enabled:
        return Translation(entry, done="it runs only once, and it is disabled")

    wrong = (
        []
        if not entry.one_off or "clocked" in kinds(entry.schedule)
        else [
            "it runs only once, but a schedule here repeats: send the task with .schedule(when, "
            "...)"
        ]
    )

    definition: dict[str, Any] = {"task": entry.task}
    pattern = None
    try:
        pattern = pattern_of(entry.schedule, entry.zone)
        definition["pattern"] = str(pattern)
        if pattern.zone != "UTC":
            definition["zone"] = pattern.zone
    except (Untranslatable, PatternError) as error:
        wrong.append(str(error))

    if not entry.enabled or (entry.ends and entry.ends <= now):
        definition["enabled"] = False
    if entry.begins and entry.begins > now:
        wrong.append(
            f"it starts to fire at {entry.begins.isoformat()}, but a schedule here fires at once: "
            "import it at that time"
        )
    if entry.ends and entry.ends > now:
        until = entry.ends.isoformat()
        wrong.append(
            f"it stops firing at {until}, but a schedule here has no end: create it, and disable "
            "it at that time"
        )

    options, more, notes = options_of(entry.options)
    definition |= options
    wrong += more

    try:
        if kwargs := arguments_of(entry):
            definition["kwargs"] = kwargs
    except CodecError as error:
        wrong.append(str(error))

    if pattern is not None:
        wrong += as_texts(definition_problems(entry.name, definition, as_json=entry.in_rows))
    if wrong:
        return Translation(entry, pattern, problems=wrong)
    return Translation(entry, pattern, *both_forms(definition, entry.in_rows), notes=notes)


def both_forms(definition: dict[str, Any], in_rows: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a valid definition twice: with its arguments as JSON, and as Python values."""
    if not in_rows:
        return in_wire_form(definition), definition

    task = registry.find_or_import(definition["task"])
    assert task is not None
    values = {
        name: task.arguments.decode_one(name, value)
        for name, value in definition.get("kwargs", {}).items()
    }

    return definition, {**definition, "kwargs": values} if values else definition


def arguments_of(entry: Entry) -> dict[str, Any]:
    """Return the arguments of an entry by name.

    Raises CodecError if they have the wrong types, or if the positional ones do not fit the task.
    """
    if not isinstance(entry.args, list | tuple) or not isinstance(entry.kwargs, dict):
        raise CodecError(
            f"expected a list and an object, not {entry.args!r:.80} and {entry.kwargs!r:.80}",
            subject="args",
        )

    task = registry.find_or_import(entry.task)
    if task is None or not entry.args:
        return dict(entry.kwargs)
    return dict(task.arguments.bind(tuple(entry.args), dict(entry.kwargs)))


def options_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the keys of a definition for the options of a send, problems, and notes.

    The notes are about options that are dropped.
    """
    definition: dict[str, Any] = {}
    wrong = []
    notes = []

    for key, value in given.items():
        if key == "queue":
            definition["queue"] = getattr(value, "name", value)
        elif key == "expires" and isinstance(value, dt.timedelta | int | float):
            span = value if isinstance(value, dt.timedelta) else dt.timedelta(seconds=value)
            definition["good_for_ms"] = span // dt.timedelta(milliseconds=1)
        elif key == "expires":
            wrong.append(
                f"its tasks expire at {value}, which is the same time for all fire times: give the "
                "number of seconds after a fire time"
            )
        elif key in DROPPED:
            notes.append(f"dropped {key}={value!r}: {DROPPED[key]}")
        else:
            wrong.append(f"the option {key}={value!r} has no counterpart")

    return definition, wrong, notes
