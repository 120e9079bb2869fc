"""``manage.py horsies_task``: one task, from the shell."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from horsies_django.core.errors import HorsiesError, TaskCopied
from horsies_django.management.actor import actor
from horsies_django.management.reports.task import as_json, as_text
from horsies_django.monitoring import overview
from horsies_django.tasks import operations, redaction
from horsies_django.tasks.handle import get_handle

CANCELLED = {
    "CANCELLED": "cancelled; it never started",
    "REQUESTED": "it runs, and is asked to end",
    "FINISHED": "it was over already; nothing changed",
}


class Command(BaseCommand):
    """Changes a task; ``do_<verb>`` is what a verb does."""

    help = "Do something with one task. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

        def verb(name: str, help_: str) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            made.add_argument("task", metavar="ID", help="the id of the task, a UUID")
            return made

        made = verb("show", "show a task and its attempts")
        made.add_argument("--payload", action="store_true", help="show the result and the messages of errors as well")
        made.add_argument("--json", action="store_true", help="print it as JSON")

        made = verb("cancel", "end a task that waits, and ask one that runs to end")
        made.add_argument("--terminate", action="store_true", help="kill the process of one that runs and does not end")
        made.add_argument("--reason", metavar="TEXT", help="why; goes to the audit")

        made = verb(
            "retry", "run again what failed, expired or was cancelled; make due what waits for its next attempt"
        )
        made.add_argument("--reason", metavar="TEXT", help="why; goes to the audit")
        made.add_argument("--again", action="store_true", help="do not ask if there is a copy of it already")

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

    def do_show(self, **options: Any) -> None:
        info = get_handle(options["task"]).info()
        if info is None:
            raise LookupError(f"there is no task {options['task']}")
        copies = [copy.pk for copy in overview.copies([info.task_id]).get(info.task_id, [])]
        report = as_json if options["json"] else as_text
        self.stdout.write(report(info, options["payload"], copies))

    def do_cancel(self, **options: Any) -> None:
        id_ = get_handle(options["task"]).task_id
        verdicts = operations.cancel([id_], terminate=options["terminate"], actor=actor(), reason=options["reason"])
        if id_ not in verdicts:
            raise LookupError(f"there is no task {id_}")
        self.stdout.write(f"{id_}: {CANCELLED[verdicts[id_]]}")

    def do_retry(self, **options: Any) -> None:
        id_ = get_handle(options["task"]).task_id
        try:
            new = operations.retry(id_, actor=actor(), reason=options["reason"], again=options["again"])
        except TaskCopied as error:
            if not sys.stdin.isatty():
                raise CommandError(f"horsies_task: {error}; add --again to send another copy") from error
            if input(f"{error}. Send another copy? [y/N] ").strip().lower() not in ("y", "yes"):
                raise CommandError("horsies_task: nothing was sent") from error
            new = operations.retry(id_, actor=actor(), reason=options["reason"], again=True)
        self.stdout.write(f"{id_}: due now" if new == id_ else f"{id_}: sent again as {new}")

    def do_redact(self, **options: Any) -> None:
        done = redaction.redact(options["task"], actor=actor(), reason=options["reason"])
        self.stdout.write(
            f"Task {options['task']} is redacted." if done else "Nothing changed: it was redacted before."
        )
