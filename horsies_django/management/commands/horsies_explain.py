"""``manage.py horsies_explain``: why a task is not running."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from horsies_django.conf import config
from horsies_django.management.reports import as_json, visible
from horsies_django.management.shared import refusing
from horsies_django.models import Task
from horsies_django.monitoring.explain import explain


class Command(BaseCommand):
    """Prints the current reasons."""

    help = "Explain why a task is not running, or report what it is doing. Changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "task", metavar="ID", nargs="?", help="the UUID of the task (default: the task that was sent last)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, **options: Any) -> None:
        with refusing("horsies_explain", LookupError, ValueError):
            found = explain(options["task"] or newest())
        self.stdout.write(as_json(found) if options["json"] else visible(str(found), keep="\n"))


def newest() -> uuid.UUID:
    """Return the id of the task that was sent last. Raises LookupError when there is none."""
    found = Task.objects.using(config().database).order_by("-pk").values_list("pk", flat=True).first()
    if found is None:
        raise LookupError("no task has been sent yet")
    return found
