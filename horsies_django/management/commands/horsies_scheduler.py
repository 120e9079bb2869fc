"""``manage.py horsies_scheduler``: send the tasks of schedules until a signal stops it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError

from horsies_django.core.errors import HorsiesError
from horsies_django.management import shared
from horsies_django.worker.api import under_signals_of_scheduler
from horsies_django.worker.main import schedule
from horsies_django.worker.process.options import LOG_LEVELS
from horsies_django.worker.process.shutdown import Shutdown


class Command(shared.Command):
    """The command that runs a scheduler. Any number may run, on any number of machines."""

    _called_from_command_line: bool  # set by Django; True if the process ends with this command

    help = (
        "Send the tasks of schedules at their fire times. Any number of schedulers may run: each "
        "fire time becomes exactly one task."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--loglevel",
            type=str.upper,
            choices=LOG_LEVELS,
            default="INFO",
            help="log level (default: INFO)",
        )

    def execute(self, *args: Any, **options: Any) -> None:
        """Run the command with signal handlers that are in place before the system checks.

        The system checks import all tasks.
        """
        execute = super().execute

        def action(stopping: Shutdown) -> int:
            self.stopping = stopping
            execute(*args, **options)
            return 0

        under_signals_of_scheduler(
            action, options["loglevel"], ends_process=self._called_from_command_line
        )

    def handle(self, **options: Any) -> None:
        try:
            code = schedule(self.stopping, options["loglevel"])
        except (HorsiesError, ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(f"horsies_scheduler: {str(error).strip()}", returncode=1) from error
        if code:
            sys.exit(code)
