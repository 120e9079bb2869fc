"""``manage.py horsies_explain``: print why a task is not running."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from horsies_django.conf import config
from horsies_django.management import shared
from horsies_django.management.reports import as_json
from horsies_django.management.shared import refusing
from horsies_django.models import Task
from horsies_django.monitoring.explain import explain


class Command(shared.Command):
    """The command that prints the current reasons why a task is not running."""

    help = "Explain why a task is not running, or report what it is doing. Changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "task",
            metavar="ID",
            nargs="?",
            help="the UUID of the task (default: the task that was sent last)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, **options: Any) -> None:
        with refusing("horsies_explain", LookupError, ValueError):
            last = (
                Task.objects.using(config().database).order_by("-pk").values_list("pk", flat=True)
            )
            if (task := options["task"] or last.first()) is None:
                raise LookupError("no task has been sent yet")
            found = explain(task)
        self.stdout.write(as_json(found) if options["json"] else str(found))
