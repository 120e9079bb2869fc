"""``manage.py horsies_queue``: list, inspect and change queues."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand

from horsies_django import queues
from horsies_django.conf import config
from horsies_django.core.errors import QueueError
from horsies_django.core.queues import CLUSTER, POLICIES
from horsies_django.management.quantities import actor, moment
from horsies_django.management.refusals import refusing
from horsies_django.management.reports import queue as report
from horsies_django.management.reports.layout import as_json
from horsies_django.models import Queue
from horsies_django.monitoring import overview
from horsies_django.store.queues import DECLARED

UNTIL_EXAMPLES = "2h, 30m, 1d12h, or 2030-01-31T18:00+01:00"
NOT_FOR_LONG = (
    "This lasts until 'migrate' or 'horsies_queue sync' applies the settings: change HORSIES too, or use 'override'."
)


class Command(BaseCommand):
    """Lists queues with their limits and counts; sets, pauses and overrides them."""

    help = "List, inspect and change queues. A change takes effect at once in all running workers, and is audited."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")
        verbs = parser.add_subparsers(dest="verb", metavar="VERB")

        def verb(name: str, help_: str, *, queue: bool = True) -> ArgumentParser:
            made: ArgumentParser = verbs.add_parser(name, help=help_, description=help_)
            made.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
            if queue:
                made.add_argument("queue", nargs="?", metavar="QUEUE", help="the name of the queue")
                made.add_argument("--cluster", action="store_true", help="the whole cluster instead of a queue")
            return made

        def reasoned(made: ArgumentParser) -> ArgumentParser:
            made.add_argument("--reason", metavar="TEXT", help="the reason, recorded in the audit")
            return made

        verb("list", "list the queues (the default)", queue=False)
        verb(
            "show",
            "show a queue: its limits, who holds its permits, its busiest partitions, and what failed tasks stop",
        )
        add_columns(reasoned(verb("set", "change declared values until the settings are next applied")))
        reasoned(verb("pause", "stop starting tasks of a queue; running tasks continue"))
        reasoned(verb("resume", "end a pause"))
        made = reasoned(verb("override", "replace the declared limits temporarily"))
        made.add_argument("--until", type=until, metavar="WHEN", help=f"when the override ends: {UNTIL_EXAMPLES}")
        add_limits(made)
        reasoned(verb("clear", "remove the override, so that the declared limits apply again"))
        made = reasoned(verb("skip", "give up the failed task that stops a key of an ordered queue"))
        made.add_argument(
            "--key", type=argument_value, action="append", default=[], metavar="NAME=VALUE",
            help="a value of the key, as JSON, or else as a text: --key account_id=7 --key region=eu",
        )  # fmt: skip
        made.add_argument("--task", metavar="NAME", help="the name of the task, if the rule is by task")
        verb("sync", "apply the settings to the database, as 'migrate' does", queue=False)

    def handle(self, **options: Any) -> None:
        verb = options["verb"] or "list"
        with refusing("horsies_queue", QueueError):
            getattr(self, f"do_{verb}")(**options)

    def do_list(self, **options: Any) -> None:
        found = overview.queues()
        self.stdout.write(as_json(found) if options["json"] else report.queue_table(found))

    def do_show(self, **options: Any) -> None:
        name = target(options)
        found = overview.queues([name])
        if not found:
            known = ", ".join(queue.name for queue in overview.queues() if queue.name != CLUSTER)
            raise QueueError(f"there is no queue {name!r} in the database; choose from: {known}")
        holders, partitions, stopped = overview.permits(name), overview.partitions(name), overview.keys(name)
        if options["json"]:
            lists = {"permits": holders, "partitions": partitions, "stopped": stopped}
            self.stdout.write(as_json({"queue": found[0], **lists}))
        else:
            self.stdout.write(report.queue_page(found[0], holders, partitions, stopped))

    def do_set(self, **options: Any) -> None:
        name, columns = target(options), chosen(options, DECLARED)
        if not columns:
            raise QueueError(f"nothing to change for {name!r}: give a value, such as --max-concurrency 5")
        if self.tell(options, queues.change, columns) and not options["json"]:
            self.stdout.write(NOT_FOR_LONG)

    def do_pause(self, **options: Any) -> None:
        self.tell(options, queues.pause)

    def do_resume(self, **options: Any) -> None:
        self.tell(options, queues.resume)

    def do_override(self, **options: Any) -> None:
        name, limits = target(options), chosen(options, queues.LIMITS)
        if not limits:
            raise QueueError(f"nothing to change for {name!r}: give a limit, such as --max-concurrency 5")
        if not (options["reason"] or "").strip():
            raise QueueError(f"an override of {name!r} requires --reason TEXT")
        self.tell(options, queues.override, limits, until=options["until"])

    def do_clear(self, **options: Any) -> None:
        self.tell(options, queues.clear)

    def do_skip(self, **options: Any) -> None:
        name, reason = target(options), options["reason"] or ""
        skipped = queues.skip(name, dict(options["key"]), task=options["task"], actor=actor(), reason=reason)
        done = f"Skipped task {skipped}: the next one of its key starts."
        self.stdout.write(as_json({"skipped": skipped}) if options["json"] else done)

    def do_sync(self, **options: Any) -> None:
        before = rows()
        self.print_changes(changes(before, queues.sync(actor=actor())), options)

    def tell(self, options: dict[str, Any], change: Callable[..., list[str]], *given: Any, **how: Any) -> list[str]:
        """Make a change and print it, and warn about partition limits without a partition rule; return the changed columns."""
        name, before = target(options), rows()
        columns = change(name, *given, actor=actor(), reason=options["reason"], **how)
        self.print_changes(changes(before, {name: columns}), options)
        (queue,) = overview.queues([name])
        parts = [
            key for key in ("partition_max_concurrency", "partition_local_limit") if queue.effective[key] is not None
        ]
        if parts and report.rule(queue.effective) == "none":
            self.stderr.write(
                f"{name} has no partitions, so {' and '.join(parts)} has no effect: "
                "see 'set --partition-by-args' and '--partition-by-task'."
            )
        return columns

    def print_changes(self, found: list[report.Change], options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(as_json({"changed": found}))
        else:
            self.stdout.write("\n".join(report.change_lines(found)) or "Nothing changed: the values are the same.")


def add_limits(parser: ArgumentParser) -> None:
    """Add the options for limits. Options that are not given are absent, because None is a value."""
    for name, help_ in (
        ("max-concurrency", "running tasks in the whole cluster; 0 lets none start"),
        ("local-limit", "running tasks in each worker"),
        ("partition-max-concurrency", "running tasks of each partition in the whole cluster"),
        ("partition-local-limit", "running tasks of each partition in each worker"),
    ):
        parser.add_argument(f"--{name}", type=limit, default=argparse.SUPPRESS, metavar="N|none", help=help_)


def add_columns(parser: ArgumentParser) -> None:
    """Add the options for all declared values."""
    parser.add_argument(
        "--priority", type=whole, default=argparse.SUPPRESS, metavar="N", help="1 is served first, 100 last"
    )
    add_limits(parser)
    parser.add_argument(
        "--partition-by-args", type=argument_names, default=argparse.SUPPRESS, metavar="A,B|all|none",
        help="the arguments whose values make a partition",
    )  # fmt: skip
    parser.add_argument(
        "--partition-by-task", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
        help="make a partition for each task name",
    )  # fmt: skip
    parser.add_argument(
        "--partition-policy", type=lambda text: None if text.lower() == "none" else text, default=argparse.SUPPRESS,
        metavar=f"{'|'.join(POLICIES)}|none",
        help="run the tasks of a partition in order, and what a failed one does to the others; or merge equal ones",
    )  # fmt: skip


def target(options: dict[str, Any]) -> str:
    """Return the name of the queue, or of the row of the cluster."""
    if bool(options["queue"]) == options["cluster"]:
        raise QueueError(f"give either a queue, as in 'horsies_queue {options['verb']} mail', or --cluster")
    return CLUSTER if options["cluster"] else str(options["queue"])


def chosen(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: dict(row) for row in Queue.objects.using(config().database).values()}


def changes(before: dict[str, dict[str, Any]], changed: dict[str, list[str]]) -> list[report.Change]:
    """Return the changed columns of queues, with what they were ``before`` and what they are now."""
    now = rows() if any(changed.values()) else {}
    return [
        report.Change(name, column, before.get(name, {}).get(column), now[name][column])
        for name, columns in changed.items()
        for column in columns
    ]


def whole(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None


def limit(text: str) -> int | None:
    return None if text.lower() == "none" else whole(text)


def argument_value(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``; a value that is not JSON is a text."""
    name, found, value = text.partition("=")
    if not (name and found):
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def argument_names(text: str) -> list[str] | None:
    if text.lower() in ("all", "none"):
        return [] if text.lower() == "all" else None
    return [name.strip() for name in text.split(",")]


def until(text: str) -> dt.datetime:
    """Parse a datetime with a time zone, or a duration from now."""
    return moment(text, 1, f"a datetime nor a duration; use {UNTIL_EXAMPLES}")
