"""``manage.py horsies_scheduler``: send the tasks of schedules until told to stop."""

from __future__ import annotations

import logging
import os
import socket
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from horsies_django.conf import config
from horsies_django.core.errors import HorsiesError
from horsies_django.management.commands.horsies_worker import LEVELS
from horsies_django.worker.logs import configure_logging, relayed_logs
from horsies_django.worker.starting import Start, refuse_unready_project
from horsies_django.worker.stopping import Stopping, StopRequested
from horsies_django.worker.timetable import Timetable

logger = logging.getLogger("horsies.scheduler")

HANGS = "the scheduler hangs and is ended: of what it was about to send nothing is written, and others send it"


class Command(BaseCommand):
    """Runs a scheduler; any number of them may run, on any number of machines."""

    _called_from_command_line: bool  # Django sets it: whether the process ends with this command

    help = "Send the tasks of schedules when their slots come. Any number may run: each slot becomes exactly one task."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--loglevel", type=str.upper, choices=LEVELS, default="INFO", help="level of the log (INFO)"
        )

    def execute(self, *args: Any, **options: Any) -> None:
        """Run with our signal handlers in place from the first check on, which imports all tasks."""
        with Stopping(ends_process=self._called_from_command_line, last_words=HANGS) as self.stopping:
            try:
                with self.stopping.interruptible():
                    super().execute(*args, **options)
            except StopRequested:
                configure_logging(options["loglevel"])
                logger.info("Stopped before it started: nothing was sent")

    def handle(self, **options: Any) -> None:
        configure_logging(options["loglevel"])
        try:
            with relayed_logs():
                actor = f"scheduler on {socket.gethostname()}"
                self.run(Timetable(config(), actor, gives_up=True, wakeup=self.stopping.wakeup))
        except (HorsiesError, ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(f"horsies_scheduler: {str(error).strip()}", returncode=1) from error

    def run(self, timetable: Timetable) -> None:
        """Start when the database is there, and send until a signal comes. Raises HorsiesError and DatabaseError."""
        with self.stopping.interruptible():
            beginning = Start(timetable, timetable.config.resilience, self.stopping)
            beginning.persist(lambda: refuse_unready_project(timetable.config), connected=False)
            beginning.persist(timetable.declare, connected=False)
        self.stopping.on_stop = timetable.stop
        if self.stopping.seen:
            timetable.stop()
        logger.info("Scheduler started: process %s, %s schedules in its code", os.getpid(), len(timetable.names))
        timetable.run()
        logger.info("Scheduler stopped")
