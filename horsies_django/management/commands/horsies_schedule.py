"""``manage.py horsies_schedule``: list, enable, disable, delete and run schedules."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from horsies_django import schedules
from horsies_django.core.errors import ScheduleError, TaskSendError
from horsies_django.core.patterns import Pattern
from horsies_django.core.texts import visible
from horsies_django.management import shared
from horsies_django.management.reports import as_json, table
from horsies_django.management.shared import (
    actor,
    add_reason,
    refusing,
    verbs_of,
    whole_number_type,
)
from horsies_django.models.fields import aware
from horsies_django.monitoring import overview
from horsies_django.monitoring.overview import ScheduleOverview

STATE_TEXTS = {"on": "on", "off": "off", "gone": "gone from the code", "error": "ERROR"}


class Command(shared.Command):
    """The command that lists and changes schedules, and sends a task of a schedule now."""

    help = (
        "List, enable, disable, delete and run schedules. Changes are audited and reach all "
        "schedulers at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verb = verbs_of(parser, required=False)

        def of_schedule(name: str, help_: str) -> ArgumentParser:
            made = verb(name, help_)
            made.add_argument("name", metavar="NAME", help="the name of the schedule")
            return made

        verb("list", "list the schedules (the default)")
        made = of_schedule("next", "list the next fire times of a schedule, in its zone")
        made.add_argument(
            "--count",
            type=whole_number_type(1),
            default=5,
            metavar="N",
            help="the number of fire times (default: 5)",
        )

        for name, help_ in (
            (
                "run-now",
                (
                    "send the task of a schedule once now, even if the schedule is disabled; its "
                    "fire times do not change"
                ),
            ),
            ("enable", "enable a schedule, so that it fires from now on"),
            ("disable", "disable a schedule, so that it does not fire"),
            ("delete", "delete a schedule that no code declares"),
        ):
            add_reason(of_schedule(name, help_))

    def handle(self, **options: Any) -> None:
        verb = (options["verb"] or "list").replace("-", "_")
        with refusing("horsies_schedule", ScheduleError, TaskSendError):
            if verb in ("list", "next"):
                getattr(self, f"do_{verb}")(**options)
            else:
                change = getattr(schedules, verb)
                self.print_result(
                    verb, change(options["name"], actor=actor(), reason=options["reason"]), options
                )

    def do_list(self, **options: Any) -> None:
        found = overview.schedules()
        self.stdout.write(as_json(found) if options["json"] else schedule_table(found))

    def do_next(self, **options: Any) -> None:
        name = options["name"]
        if (found := overview.coming(name, options["count"])) is None:
            raise ScheduleError(no_fire_times_reason(name))
        pattern, fire_times = found
        self.stdout.write(
            as_json({"name": name, "zone": pattern.zone, "fire_times": fire_times})
            if options["json"]
            else fire_time_table(pattern, fire_times)
        )

    def print_result(self, verb: str, found: Any, options: dict[str, Any]) -> None:
        """Print the result of a change: the id of the task that was sent, or the changed keys."""
        name = options["name"]
        state = f"{verb}d"
        record: dict[str, object]

        if verb == "run_now":
            record = {"task_id": str(found)}
            text = f"Sent as task {found}."
        elif verb == "delete":
            record = {"deleted": name}
            text = f"{name} is deleted."
        else:
            record = {"changed": found}
            text = (
                f"{name} is {state}." if found else f"Nothing changed: {name} is already {state}."
            )

        self.stdout.write(as_json(record) if options["json"] else text)


def no_fire_times_reason(name: str) -> str:
    """Return the reason why there are no fire times to show."""
    found = overview.schedules([name])
    if found:
        return f"invalid schedule {name!r}: {found[0].error}"
    names = ", ".join(one.name for one in overview.schedules()) or "none"
    return f"there is no schedule {name!r}; the schedules are: {names}"


def schedule_table(schedules: Sequence[ScheduleOverview]) -> str:
    """Return a table with a line for each schedule, and the errors below it."""
    if not schedules:
        return (
            "There are no schedules. 'horsies_scheduler' writes the schedules of the code to the "
            "table when it starts."
        )

    headings = (
        "SCHEDULE",
        "FIRES",
        "ZONE",
        "TASK",
        "STATE",
        "NEXT FIRE TIME",
        "LAST FIRE TIME",
        "LAST TASK",
    )
    rows = (
        (
            one.name,
            one.in_words or one.pattern,
            one.zone,
            one.task,
            STATE_TEXTS[one.state],
            fire_time_text(one.next_fire_at, one.zone),
            fire_time_text(one.last_fire_at, one.zone),
            f"skipped, {one.last_task} had not finished"
            if one.last_skipped
            else one.last_status or "-",
        )
        for one in schedules
    )

    errors = [visible(f"{one.name}: {one.error}") for one in schedules if one.error]
    return "\n\n".join([table(headings, rows), *errors])


def fire_time_table(pattern: Pattern, fire_times: Sequence[dt.datetime]) -> str:
    """Return a table with a line for each fire time, in the schedule's zone and in UTC."""
    if not fire_times:
        return "The schedule will not fire again."
    zone = ZoneInfo(pattern.zone)
    rows = (
        (f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{one:%Y-%m-%d %H:%M:%S}")
        for one in fire_times
    )
    return f"{pattern.in_words}, {pattern.zone}\n\n{table((pattern.zone, 'UTC'), rows)}"


def fire_time_text(fire_time: dt.datetime | None, zone: str) -> str:
    """Return a fire time in the local time of a zone, or in UTC if the zone does not exist."""
    if fire_time is None:
        return "-"
    try:
        return f"{aware(fire_time).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
    except (KeyError, ValueError, OSError):
        return f"{aware(fire_time).astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
