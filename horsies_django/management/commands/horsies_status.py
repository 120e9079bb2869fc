"""``manage.py horsies_status``: the state of queues, workers and the database.

It is meant for people and for health checks.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error

from horsies_django.management import shared
from horsies_django.management.reports import as_json, as_record, report_text
from horsies_django.management.shared import seconds_type
from horsies_django.monitoring.health import MAX_WAIT_SECONDS, Severity, examine, problems
from horsies_django.monitoring.reading import alias, status_connection

UNHEALTHY_EXIT = 1
UNKNOWN_EXIT = 2
ADVICE_IF_REFUSED = (
    ". Check that 'migrate' has been run, that this role may read the tables, and that no table is "
    "locked"
)


class Command(shared.Command):
    """The command that reads the state once.

    It uses a connection of its own, with a statement timeout.
    """

    help = (
        "Report the state of queues, workers and the database. Exit code: 0 healthy, 1 a critical "
        "problem, 2 the state could not "
        "be read."
    )
    requires_system_checks = []  # it runs often and uses only the database

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--fail-on",
            type=Severity,
            choices=[*Severity],
            default=Severity.CRITICAL,
            metavar="SEVERITY",
            help="the lowest severity that causes exit code 1: critical (default) or warning",
        )
        parser.add_argument(
            "--max-wait",
            type=seconds_type,
            default=MAX_WAIT_SECONDS,
            metavar="SECONDS",
            help="warn if a due task has been waiting for longer (default: 900)",
        )
        parser.add_argument(
            "--timeout",
            type=seconds_type,
            default=3.0,
            metavar="SECONDS",
            help="cancel a statement that takes longer (default: 3); 0 means no limit",
        )

    def handle(self, **options: Any) -> None:
        what = "cannot be reached"
        advice = ""

        try:
            with status_connection(round(options["timeout"] * 1000)) as connection:
                what = "refused"
                advice = ADVICE_IF_REFUSED
                found = examine(connection)
        except ImproperlyConfigured as error:
            raise CommandError(f"horsies_status: {error}", returncode=UNKNOWN_EXIT) from error
        except (psycopg.Error, Error) as error:
            error_text = " ".join(str(error).split())
            raise CommandError(
                f"horsies_status: the database {alias()!r} {what}: {error_text}{advice}",
                returncode=UNKNOWN_EXIT,
            ) from error

        wrong = problems(found, max_wait_seconds=options["max_wait"])
        self.stdout.write(
            as_json(as_record(found, wrong)) if options["json"] else report_text(found, wrong)
        )

        # Severities are compared as texts: "critical" < "warning".
        if any(problem.severity <= options["fail_on"] for problem in wrong):
            sys.exit(UNHEALTHY_EXIT)
