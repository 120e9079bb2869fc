"""``manage.py horsies_schedule``: list, enable, disable and delete schedules, and send their tasks, from the shell."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from horsies_django import schedules
from horsies_django.core.errors import ScheduleError, TaskSendError
from horsies_django.management.quantities import actor, whole
from horsies_django.management.refusals import refusing
from horsies_django.management.reports import queue as report
from horsies_django.management.reports.layout import as_json
from horsies_django.monitoring import overview


class Command(BaseCommand):
    """Lists schedules and their fire times, enables, disables and deletes them, sends a task now."""

    help = "List, enable, disable, delete and run schedules. Changes are audited and reach all schedulers at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, for machines")
        verbs = parser.add_subparsers(dest="verb", metavar="VERB")

        def verb(name: str, help_: str) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            made.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, for machines")
            if name != "list":
                made.add_argument("name", metavar="NAME", help="the name of the schedule")
            return made

        verb("list", "list the schedules (the default)")
        verb("next", "list the next fire times of a schedule, in its zone").add_argument(
            "--count", type=whole(1), default=5, metavar="N", help="how many (5)"
        )
        for name, help_ in (
            ("run-now", "send a schedule's task once, now, enabled or not; its fire times do not change"),
            ("enable", "let a schedule fire from now on"),
            ("disable", "stop a schedule from firing"),
            ("delete", "delete a schedule that no code declares"),
        ):
            verb(name, help_).add_argument("--reason", metavar="TEXT", help="why; goes to the audit")

    def handle(self, **options: Any) -> None:
        verb = (options["verb"] or "list").replace("-", "_")
        with refusing("horsies_schedule", ScheduleError, TaskSendError, advice="Is it up, and did 'migrate' run?"):
            getattr(self, f"do_{verb}")(**options)

    def do_list(self, **options: Any) -> None:
        found = overview.schedules()
        self.stdout.write(as_json(found) if options["json"] else report.schedule_table(found))

    def do_next(self, **options: Any) -> None:
        name = options["name"]
        if (found := overview.coming(name, options["count"])) is None:
            raise ScheduleError(unreadable(name))
        pattern, fire_times = found
        self.stdout.write(
            as_json({"name": name, "zone": pattern.zone, "fire_times": fire_times})
            if options["json"]
            else report.fire_time_table(pattern, fire_times)
        )

    def do_run_now(self, **options: Any) -> None:
        task_id = schedules.run_now(options["name"], actor=actor(), reason=options["reason"])
        self.stdout.write(as_json({"task_id": str(task_id)}) if options["json"] else f"Sent as task {task_id}.")

    def do_enable(self, **options: Any) -> None:
        self.tell(schedules.enable(options["name"], actor=actor(), reason=options["reason"]), "enabled", options)

    def do_disable(self, **options: Any) -> None:
        self.tell(schedules.disable(options["name"], actor=actor(), reason=options["reason"]), "disabled", options)

    def do_delete(self, **options: Any) -> None:
        schedules.delete(options["name"], actor=actor(), reason=options["reason"])
        self.stdout.write(
            as_json({"deleted": options["name"]}) if options["json"] else f"{options['name']} is deleted."
        )

    def tell(self, changed: list[str], state: str, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(as_json({"changed": changed}))
        elif changed:
            self.stdout.write(f"{options['name']} is {state}.")
        else:
            self.stdout.write(f"Nothing changed: {options['name']} is {state} already.")


def unreadable(name: str) -> str:
    """Return why there are no fire times to show."""
    found = overview.schedules([name])
    if found:
        return f"invalid schedule {name!r}: {found[0].error}"
    names = ", ".join(one.name for one in overview.schedules()) or "none"
    return f"there is no schedule {name!r}; there are: {names}"
