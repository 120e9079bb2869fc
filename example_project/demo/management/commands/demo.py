"""The command ``manage.py demo``, which runs the library on real files."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand

from example_project.demo.files import MOST_FILES
from example_project.demo.run import Choices, run

FEWEST_FILES = 4


class Command(BaseCommand):
    """The command that runs the demo.

    It runs no system checks, because they may need the database that the demo creates later.
    """

    help = (
        "Import real files into the example site, with a site, a worker and a PostgreSQL server of "
        "this run."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--exit",
            action="store_true",
            help="end after the work; exit code 1 if it was not as promised",
        )
        parser.add_argument(
            "--database-url",
            metavar="URL",
            help=(
                "use this PostgreSQL database instead of a private server; DATABASE_URL alone is "
                "not looked at"
            ),
        )
        parser.add_argument(
            "--files",
            type=number_of_files,
            default=MOST_FILES,
            metavar="N",
            help=f"import at most N files, {FEWEST_FILES} to {MOST_FILES} ({MOST_FILES})",
        )

    def handle(self, **options: Any) -> None:
        choices = Choices(options["files"], options["exit"], options["database_url"])
        code = run(choices, sys.stdout, sys.stderr)
        if code:
            sys.exit(code)


def number_of_files(text: str) -> int:
    """Return the number of files that an option contains.

    Raises ArgumentTypeError if it is out of range.
    """
    if not text.isdecimal() or not FEWEST_FILES <= int(text) <= MOST_FILES:
        raise ArgumentTypeError(f"{text!r} is not a number from {FEWEST_FILES} to {MOST_FILES}")
    return int(text)
