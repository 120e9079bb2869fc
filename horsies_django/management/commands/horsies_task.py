"""``manage.py horsies_task``: inspect or change one task."""

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
    "CANCELLED": "cancelled before it started",
    "REQUESTED": "running; asked to stop",
    "FINISHED": "already finished; nothing changed",
}


class Command(BaseCommand):
    """Shows or changes a task; each verb has a method ``do_<verb>``."""

    help = "Inspect or change one task. Every change is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

        def verb(name: str, help_: str) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            made.add_argument("task", metavar="ID", help="the UUID of the task")
            return made

        made = verb("show", "show a task and its attempts")
        made.add_argument("--payload", action="store_true", help="also show the result and error messages")
        made.add_argument("--json", action="store_true", help="print JSON")

        made = verb("cancel", "cancel a waiting task, or ask a running task to stop")
        made.add_argument(
            "--terminate", action="store_true", help="kill the process of a running task that does not stop"
        )
        made.add_argument("--reason", metavar="TEXT", help="the reason, recorded in the audit")

        made = verb("retry", "run a failed, expired or cancelled task again, or make a waiting retry due now")
        made.add_argument("--reason", metavar="TEXT", help="the reason, recorded in the audit")
        made.add_argument("--again", action="store_true", help="do not ask for confirmation if there is a copy already")

        made = verb("redact", "permanently remove the arguments, the result and all messages of a finished task")
        made.add_argument(
            "--reason",
            metavar="TEXT",
            required=True,
            help="the reason, recorded in the audit; it must not contain personal data",
        )

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"do_{options['verb']}")(**options)
        except (HorsiesError, LookupError, ValueError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_task: {error}") from error
        except DatabaseError as error:
            raise CommandError(
                f"horsies_task: the database refused: {str(error).strip()}. Check that it is running and that 'migrate' has "
                "been run"
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
            f"Task {options['task']} is redacted." if done else "Nothing changed: it is already redacted."
        )
