"""``manage.py horsies_explain``: why a task is not running."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from horsies_django.conf import config
from horsies_django.management.reports.layout import as_json, visible
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
        try:
            found = explain(options["task"] or newest())
        except (LookupError, ValueError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_explain: {error}") from error
        except DatabaseError as error:
            raise CommandError(
                f"horsies_explain: the database refused: {str(error).strip()}. Check that it is running and that 'migrate' has "
                "been run"
            ) from error
        self.stdout.write(as_json(found) if options["json"] else visible(str(found), keep="\n"))


def newest() -> uuid.UUID:
    """Return the id of the task that was sent last. Raises LookupError when there is none."""
    found = Task.objects.using(config().database).order_by("-pk").values_list("pk", flat=True).first()
    if found is None:
        raise LookupError("no task has been sent yet")
    return found
