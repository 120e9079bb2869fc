"""``manage.py horsies_task``: one task, from the shell."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from horsies_django import erasing
from horsies_django.core.errors import HorsiesError
from horsies_django.management.acting import actor


class Command(BaseCommand):
    """Changes a task; ``do_<verb>`` is what a verb does."""

    help = "Do something with one task. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

        def verb(name: str, help_: str) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            made.add_argument("task", metavar="ID", help="the id of the task, a UUID")
            return made

        made = verb("redact", "remove the arguments, the result and all messages of a finished task, for good")
        made.add_argument(
            "--reason", metavar="TEXT", required=True, help="why; goes to the audit, so name nobody in it"
        )

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"do_{options['verb']}")(**options)
        except (HorsiesError, LookupError, ValueError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_task: {error}") from error
        except DatabaseError as error:
            raise CommandError(
                f"horsies_task: the database refused: {str(error).strip()}. Is it up, and did 'migrate' run?"
            ) from error

    def do_redact(self, **options: Any) -> None:
        done = erasing.redact(options["task"], actor=actor(), reason=options["reason"])
        self.stdout.write(
            f"Task {options['task']} is redacted." if done else "Nothing changed: it was redacted before."
        )
