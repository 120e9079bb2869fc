"""``manage.py horsies_status``: how queues, workers and database do, for people, and for probes by its exit code."""

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
from horsies_django.monitoring.health import examine, problems
from horsies_django.store.health import HealthStore
from horsies_django.store.notify import direct_connection

UNHEALTHY, UNKNOWN = 1, 2


class Command(BaseCommand):
    """Looks at everything once, on a connection of its own that cannot hang for long."""

    help = "Say how queues, workers and database do. Exit code: 0 all is well, 1 something needs somebody, 2 no answer was had."
    requires_system_checks = []  # a probe runs often, and speaks of the database only

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, for machines")
        parser.add_argument(
            "--max-wait", type=seconds, metavar="SECONDS",
            help="a due task that waits longer is a problem (default: however long it waits)",
        )  # fmt: skip
        parser.add_argument(
            "--timeout", type=seconds, default=10.0, metavar="SECONDS",
            help="give up on a statement that takes longer (10); 0 waits for ever",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        try:
            conf = config()
            alias = conf.listen_database or conf.database  # what bounds the session does not pass through a pooler
            with self.connected(alias) as connection:
                HealthStore(connection).bound(options["timeout"])
                found = examine(connection)
        except ImproperlyConfigured as error:
            raise CommandError(f"horsies_status: {error}", returncode=UNKNOWN) from error
        except (psycopg.Error, Error) as error:
            raise CommandError(
                f"horsies_status: the database {alias!r} refused: {one_line(error)}. Did 'migrate' run, may this role "
                "read, is a table locked?",
                returncode=UNKNOWN,
            ) from error
        wrong = problems(found, max_wait_seconds=options["max_wait"])
        self.stdout.write(as_json(report.as_record(found, wrong)) if options["json"] else report.as_text(found, wrong))
        if wrong:
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
