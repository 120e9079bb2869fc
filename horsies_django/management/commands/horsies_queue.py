"""``manage.py horsies_queue``: list, inspect and change queues."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from horsies_django import queues
from horsies_django.conf import config
from horsies_django.core.errors import QueueError
from horsies_django.core.queues import (
    CLUSTER,
    COLUMNS,
    DECLARED,
    LIMITS,
    PARTITION_LIMITS,
    POLICIES,
    QueueColumn,
)
from horsies_django.management import shared
from horsies_django.management.reports import as_json, bounded_count, page, table, timestamp, title
from horsies_django.management.shared import actor, add_reason, read_moment, refusing, verbs_of
from horsies_django.models import Queue
from horsies_django.monitoring import overview
from horsies_django.monitoring.overview import (
    OrderedKey,
    PartitionLoad,
    PermitHolder,
    QueueOverview,
)

UNTIL_EXAMPLES = "2h, 30m, 1d12h, or 2030-01-31T18:00+01:00"
NOT_FOR_LONG = (
    "The change lasts until 'migrate' or 'horsies_queue sync' applies the settings. Change HORSIES "
    "too, or use 'override'."
)

HEADINGS = (
    "QUEUE",
    "PRIORITY",
    "DECLARED",
    "OVERRIDE",
    "IN FORCE",
    "RUNNING",
    "CLAIMED",
    "PENDING",
    "FULL PARTITIONS",
    "WORKERS",
)


class Command(shared.Command):
    """The command that lists queues with limits and counts, and sets, pauses and overrides them."""

    help = (
        "List, inspect and change queues. A change takes effect at once in all running workers, "
        "and is audited."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verb = verbs_of(parser, required=False)

        def of_queue(name: str, help_: str) -> ArgumentParser:
            made = verb(name, help_)
            made.add_argument("queue", nargs="?", metavar="QUEUE", help="the name of the queue")
            made.add_argument(
                "--cluster", action="store_true", help="the whole cluster instead of a queue"
            )
            return made

        def change(name: str, help_: str) -> ArgumentParser:
            return add_reason(of_queue(name, help_))

        verb("list", "list the queues (the default)")
        of_queue(
            "show",
            "show a queue: its limits, the tasks that hold its permits, its busiest partitions, "
            "and the keys that failed tasks stop",
        )

        add_columns(change("set", "change declared values until the settings are next applied"))
        change("pause", "stop starting tasks of a queue; running tasks continue")
        change("resume", "end a pause")

        made = change("override", "replace the declared limits temporarily")
        made.add_argument(
            "--until",
            type=read_until,
            metavar="WHEN",
            help=f"when the override ends: {UNTIL_EXAMPLES}",
        )
        add_limits(made)

        change("clear", "remove the override, so that the declared limits apply again")
        made = change("skip", "skip the failed task that stops a key of an ordered queue")
        made.add_argument(
            "--key",
            type=argument_value,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a value of the key, as JSON or text: --key account_id=7 --key region=eu",
        )
        made.add_argument(
            "--task",
            metavar="NAME",
            help="the name of the task, if each task name has its own partition",
        )

        verb("sync", "apply the settings to the database, as 'migrate' does")

    def handle(self, **options: Any) -> None:
        verb = options["verb"] or "list"
        with refusing("horsies_queue", QueueError):
            if verb in ("pause", "resume", "clear"):
                self.apply_change(options, getattr(queues, verb))
            else:
                getattr(self, f"do_{verb}")(**options)

    def do_list(self, **options: Any) -> None:
        found = overview.queues()
        self.stdout.write(as_json(found) if options["json"] else limits_table(found))

    def do_show(self, **options: Any) -> None:
        name = target_queue(options)
        found = overview.queues([name])
        if not found:
            known = ", ".join(queue.name for queue in overview.queues() if queue.name != CLUSTER)
            raise QueueError(f"there is no queue {name!r} in the database; choose from: {known}")

        holders = overview.permits(name)
        partitions = overview.partitions(name)
        stopped = overview.keys(name)

        if options["json"]:
            lists = {"permits": holders, "partitions": partitions, "stopped": stopped}
            self.stdout.write(as_json({"queue": found[0], **lists}))
        else:
            self.stdout.write(queue_page(found[0], holders, partitions, stopped))

    def do_set(self, **options: Any) -> None:
        name = target_queue(options)
        columns = given_options(options, DECLARED)
        if not columns:
            raise QueueError(
                f"nothing to change for {name!r}: give a value, such as --max-concurrency 5"
            )

        if self.apply_change(options, queues.change, columns) and not options["json"]:
            self.stdout.write(NOT_FOR_LONG)

    def do_override(self, **options: Any) -> None:
        name = target_queue(options)
        limits = given_options(options, LIMITS)
        if not limits:
            raise QueueError(
                f"nothing to change for {name!r}: give a limit, such as --max-concurrency 5"
            )
        if not (options["reason"] or "").strip():
            raise QueueError(f"an override of {name!r} requires --reason TEXT")

        self.apply_change(options, queues.override, limits, until=options["until"])

    def do_skip(self, **options: Any) -> None:
        name = target_queue(options)
        reason = options["reason"] or ""
        skipped = queues.skip(
            name, dict(options["key"]), task=options["task"], actor=actor(), reason=reason
        )
        done = f"Skipped task {skipped}: the next task of its key starts."
        self.stdout.write(as_json({"skipped": skipped}) if options["json"] else done)

    def do_sync(self, **options: Any) -> None:
        before = queue_rows()
        self.print_changes(changed_values(before, queues.sync(actor=actor())), options)

    def apply_change(
        self,
        options: dict[str, Any],
        change: Callable[..., list[str]],
        *given: Any,
        **keywords: Any,
    ) -> list[str]:
        """Make a change, print it, and return the changed columns.

        If a limit of partitions is set without a partition rule, print a warning.
        """
        name = target_queue(options)
        before = queue_rows()
        columns = change(name, *given, actor=actor(), reason=options["reason"], **keywords)
        self.print_changes(changed_values(before, {name: columns}), options)

        (queue,) = overview.queues([name])
        parts = [key for key in PARTITION_LIMITS if queue.effective[key] is not None]

        if parts and not has_partitions(queue.effective):
            self.stderr.write(
                f"{name} has no partitions, so {' and '.join(parts)} has no effect: "
                "add partitions with 'set --partition-by-args' or 'set --partition-by-task'."
            )

        return columns

    def print_changes(self, found: list[dict[str, Any]], options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(as_json({"changed": found}))
        else:
            lines = [
                f"{title(one['queue'])}: {one['column']}: {as_json(one['before'], None)} -> "
                f"{as_json(one['after'], None)}"
                for one in found
            ]
            self.stdout.write("\n".join(lines) or "Nothing changed: the values are the same.")


def add_limits(parser: ArgumentParser) -> None:
    """Add the options for limits.

    Options that are not given are missing from the parsed options, because None is a value.
    """
    for column in LIMITS.values():
        add_option(parser, column, type=limit, metavar="N|none")


def add_columns(parser: ArgumentParser) -> None:
    """Add the options for all declared values."""
    forms: dict[str, dict[str, Any]] = {
        "priority": {"type": whole_number, "metavar": "N"},
        "partition_by_args": {"type": argument_names, "metavar": "A,B|all|none"},
        "partition_by_task": {"action": argparse.BooleanOptionalAction},
        "partition_policy": {
            "type": lambda text: None if text.lower() == "none" else text,
            "metavar": f"{'|'.join(POLICIES)}|none",
        },
    }
    add_limits(parser)
    for column in COLUMNS:
        if column.name not in LIMITS:
            add_option(parser, column, **forms[column.name])


def add_option(parser: ArgumentParser, column: QueueColumn, **form: Any) -> None:
    """Add the option for a column."""
    name = column.name.replace("_", "-")
    parser.add_argument(f"--{name}", default=argparse.SUPPRESS, help=column.help, **form)


def target_queue(options: dict[str, Any]) -> str:
    """Return the name of the queue that the options name, or of the row of the cluster."""
    if bool(options["queue"]) == options["cluster"]:
        raise QueueError(
            f"give either a queue, as in 'horsies_queue {options['verb']} mail', or --cluster"
        )
    return CLUSTER if options["cluster"] else str(options["queue"])


def given_options(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def queue_rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: dict(row) for row in Queue.objects.using(config().database).values()}


def changed_values(
    before: dict[str, dict[str, Any]], changed: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """Return the changed columns of queues, with their values before and after the change."""
    now = queue_rows() if any(changed.values()) else {}
    return [
        {
            "queue": name,
            "column": column,
            "before": before.get(name, {}).get(column),
            "after": now[name][column],
        }
        for name, columns in changed.items()
        for column in columns
    ]


def whole_number(text: str) -> int:
    """Parse an option that takes a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None


def limit(text: str) -> int | None:
    return None if text.lower() == "none" else whole_number(text)


def argument_value(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``. A value that is not JSON is returned as a text."""
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


def read_until(text: str) -> dt.datetime:
    """Parse an option that takes a datetime with a time zone, or a duration from now."""
    return read_moment(text, 1, f"a datetime nor a duration; use {UNTIL_EXAMPLES}")


def limits_table(queues: Iterable[QueueOverview]) -> str:
    rows = (
        (
            title(queue.name),
            "" if queue.name == CLUSTER else queue.effective["priority"],
            limits(queue.declared),
            None if queue.override is None else limits(queue.override),
            "; ".join([in_force(queue), *policy(queue.effective)]),
            queue.running,
            queue.claimed,
            bounded_count(queue.pending, queue.pending_more),
            queue.full_partitions,
            workers(queue),
        )
        for queue in queues
    )
    return table(HEADINGS, rows)


def queue_page(
    queue: QueueOverview,
    holders: Sequence[PermitHolder],
    partitions: Sequence[PartitionLoad],
    stopped: Sequence[OrderedKey],
) -> str:
    """Return a report about one queue.

    It contains the limits and who set them, the tasks that hold permits, the busiest partitions,
    and the keys that failed tasks stop.
    """
    rows = [("in force", in_force(queue)), ("declared", limits(queue.declared))]
    if queue.override is not None:
        ends = "" if queue.override_until is None else f", until {timestamp(queue.override_until)}"
        by = (
            f"by {queue.override_by}, {timestamp(queue.override_at)}{ends}: {queue.override_reason}"
        )
        rows.append(("override", f"{limits(queue.override)} ({by})"))

    if queue.paused_at is not None:
        reason = f": {queue.paused_reason}" if queue.paused_reason else ""
        rows.append(("paused", f"by {queue.paused_by}, {timestamp(queue.paused_at)}{reason}"))

    everywhere = queue.name == CLUSTER
    waiting = bounded_count(queue.pending, queue.pending_more)
    if not everywhere:
        rows += [
            ("priority", str(queue.effective["priority"])),
            ("partitions", rule(queue.effective)),
        ]

    rows += [("running", str(queue.running)), ("claimed", str(queue.claimed)), ("pending", waiting)]
    if not everywhere:
        rows += [("full partitions", str(queue.full_partitions)), ("workers", workers(queue))]

    blocks = [page(title(queue.name), rows)]
    if holders:
        blocks.append(permit_table(holders))

    if partitions:
        headings = ("PARTITION", "RUNNING", "LIMIT", "WAITING")
        counts = (
            (p.partition, p.running, p.limit, bounded_count(p.parked, p.parked_more))
            for p in partitions
        )
        blocks.append(table(headings, counts))

    if stopped:
        keys = (
            (
                one.partition,
                one.task_id,
                one.task_name,
                timestamp(one.since),
                bounded_count(one.behind, one.behind_more),
            )
            for one in stopped
        )
        blocks += [
            table(("STOPPED KEY", "BY TASK", "NAME", "SINCE", "BEHIND"), keys),
            stopped_advice(queue),
        ]

    return "\n\n".join(blocks)


def stopped_advice(queue: QueueOverview) -> str:
    """Return advice on how to start stopped keys again."""
    names = queue.effective["partition_by_args"]
    task = " --task NAME" if queue.effective["partition_by_task"] else ""
    key = "".join(f" --key {name}=VALUE" for name in (["ARGUMENT"] if names == [] else names or ()))
    return (
        "A failed task stops its key until it is retried ('horsies_task retry ID') or skipped "
        f"('horsies_queue skip {queue.name}{key}{task} --reason TEXT')."
    )


def permit_table(holders: Iterable[PermitHolder]) -> str:
    """Return a table with a line for each task that holds a permit."""
    headings = ("TASK", "NAME", "STATUS", "SINCE", "HOST", "PROCESS", "WORKER", "PARTITION")
    rows = (
        (
            one.task_id,
            one.task_name,
            one.status,
            timestamp(one.since),
            one.hostname or "-",
            one.child_pid or "-",
            f"{one.worker_id}{'' if one.alive else ' (dead)'}",
            one.partition or "-",
        )
        for one in holders
    )
    return table(headings, rows)


def limits(columns: Mapping[str, Any]) -> str:
    """Return limits as text. In an override, which has only some limits, None means no limit."""
    whole = "priority" in columns  # the row of a queue, not an override
    found = [
        column.words % {"n": "no limit" if columns[key] is None else columns[key]}
        for key, column in LIMITS.items()
        if key in columns and not (whole and columns[key] is None)
    ]
    return ", ".join(found) or "no limit"


def in_force(queue: QueueOverview) -> str:
    return "paused" if queue.effective["max_concurrency"] == 0 else limits(queue.effective)


def has_partitions(columns: Mapping[str, Any]) -> bool:
    return columns["partition_by_args"] is not None or columns["partition_by_task"]


def rule(columns: Mapping[str, Any]) -> str:
    """Return the partition rule and its policy in words. No names mean all arguments."""
    names = columns["partition_by_args"]
    found = [] if names is None else [", ".join(names) or "all arguments"]
    found += ["task name"] if columns["partition_by_task"] else []
    return "; ".join([f"by {' and '.join(found)}" if found else "none", *policy(columns)])


def policy(columns: Mapping[str, Any]) -> list[str]:
    """Return the policy of partitions in words, in a list that is empty if there is no policy."""
    name = columns["partition_policy"]
    return [] if name is None else [POLICIES.get(name, name)]


def workers(queue: QueueOverview) -> str:
    """Return the number of living workers that serve a queue, or "" for the cluster."""
    return "" if queue.name == CLUSTER else str(queue.workers)
