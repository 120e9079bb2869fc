"""``manage.py horsies_status``: the state of queues, workers and the database, for people and for health checks."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from horsies_django.conf import config
from horsies_django.management.quantities import seconds
from horsies_django.management.reports import health as report
from horsies_django.management.reports.layout import as_json
from horsies_django.monitoring.health import MAX_WAIT_SECONDS, Severity, examine, problems
from horsies_django.store.health import HealthStore
from horsies_django.store.notify import direct_connection

UNHEALTHY, UNKNOWN = 1, 2


class Command(BaseCommand):
    """Reads the state once, on a connection of its own with a statement timeout."""

    help = (
        "Report the state of queues, workers and the database. Exit code: 0 healthy, 1 a critical problem, 2 the state could not "
        "be read."
    )
    requires_system_checks = []  # it runs often, and is about the database only

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--fail-on", type=Severity, choices=[*Severity], default=Severity.CRITICAL, metavar="SEVERITY",
            help="the least severity for exit code 1: critical (default) or warning",
        )  # fmt: skip
        parser.add_argument(
            "--max-wait", type=seconds, default=MAX_WAIT_SECONDS, metavar="SECONDS",
            help="warn if a due task has been waiting for longer (default: 900)",
        )  # fmt: skip
        parser.add_argument(
            "--timeout", type=seconds, default=3.0, metavar="SECONDS",
            help="cancel a statement that takes longer (default: 3); 0 means no limit",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        try:
            conf = config()
            alias = conf.listen_database or conf.database  # a pooler would not pass on the settings of the session
            with self.connected(alias) as connection:
                HealthStore(connection).bound(options["timeout"])
                found = examine(connection)
        except ImproperlyConfigured as error:
            raise CommandError(f"horsies_status: {error}", returncode=UNKNOWN) from error
        except (psycopg.Error, Error) as error:
            raise CommandError(
                f"horsies_status: the database {alias!r} refused: {one_line(error)}. Check that 'migrate' has been run, that "
                "this role may read the tables, and that no table is locked",
                returncode=UNKNOWN,
            ) from error
        wrong = problems(found, max_wait_seconds=options["max_wait"])
        self.stdout.write(as_json(report.as_record(found, wrong)) if options["json"] else report.as_text(found, wrong))
        if any(problem.severity <= options["fail_on"] for problem in wrong):  # "critical" < "warning"
            sys.exit(UNHEALTHY)

    def connected(self, alias: str) -> psycopg.Connection[Any]:
        """Return a connection. Raises CommandError."""
        try:
            return direct_connection(alias, application_name="horsies status", read_only=True)
        except (psycopg.Error, Error) as error:
            raise CommandError(
                f"horsies_status: the database {alias!r} cannot be reached: {one_line(error)}", returncode=UNKNOWN
            ) from error


def one_line(error: Exception) -> str:
    """Return the text of an error without its line breaks."""
    return " ".join(str(error).split())
