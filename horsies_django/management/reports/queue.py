"""Queues and schedules as text for a terminal; the JSON output has the same content."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from horsies_django.core.patterns import Pattern
from horsies_django.core.queues import CLUSTER, POLICIES
from horsies_django.management.reports.layout import as_json, bounded, moment, page, table, title
from horsies_django.models.fields import aware
from horsies_django.monitoring.overview import (
    OrderedKey,
    PartitionLoad,
    PermitHolder,
    QueueOverview,
    ScheduleOverview,
)

LIMIT_WORDS = {
    "max_concurrency": "",
    "local_limit": " per worker",
    "partition_max_concurrency": " per partition",
    "partition_local_limit": " per partition and worker",
}
HEADINGS = (
    "QUEUE", "PRIORITY", "DECLARED", "OVERRIDE", "IN FORCE", "RUNNING", "CLAIMED", "PENDING", "FULL PARTITIONS", "WORKERS",
)  # fmt: skip
STATES = {"on": "on", "off": "off", "gone": "gone from the code", "error": "ERROR"}


def queue_table(queues: Iterable[QueueOverview]) -> str:
    rows = (
        (
            title(queue.name),
            "" if queue.name == CLUSTER else queue.effective["priority"],
            limits(queue.declared),
            None if queue.override is None else limits(queue.override),
            "; ".join([in_force(queue), *policy(queue.effective)]),
            queue.running,
            queue.claimed,
            bounded(queue.pending, queue.pending_more),
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
    """Return one queue: its limits, who set them, who holds its permits, its busiest partitions, and what failed tasks stop."""
    rows = [("in force", in_force(queue)), ("declared", limits(queue.declared))]
    if queue.override is not None:
        ends = "" if queue.override_until is None else f", until {moment(queue.override_until)}"
        by = f"by {queue.override_by}, {moment(queue.override_at)}{ends}: {queue.override_reason}"
        rows.append(("override", f"{limits(queue.override)} ({by})"))
    if queue.paused_at is not None:
        why = f": {queue.paused_reason}" if queue.paused_reason else ""
        rows.append(("paused", f"by {queue.paused_by}, {moment(queue.paused_at)}{why}"))
    everywhere, waiting = queue.name == CLUSTER, bounded(queue.pending, queue.pending_more)
    if not everywhere:
        rows += [("priority", str(queue.effective["priority"])), ("partitions", rule(queue.effective))]
    rows += [("running", str(queue.running)), ("claimed", str(queue.claimed)), ("pending", waiting)]
    if not everywhere:
        rows += [("full partitions", str(queue.full_partitions)), ("workers", workers(queue))]
    blocks = [page(title(queue.name), rows)]
    if holders:
        blocks.append(permit_table(holders))
    if partitions:
        headings = ("PARTITION", "RUNNING", "LIMIT", "WAITING")
        counts = ((p.partition, p.running, p.limit, bounded(p.parked, p.parked_more)) for p in partitions)
        blocks.append(table(headings, counts))
    if stopped:
        blocks += [stopped_table(stopped), stopped_advice(queue)]
    return "\n\n".join(blocks)


def stopped_table(stopped: Iterable[OrderedKey]) -> str:
    """Return a line per key that a failed task stops."""
    rows = (
        (one.partition, one.task_id, one.task_name, moment(one.since), bounded(one.behind, one.behind_more))
        for one in stopped
    )
    return table(("STOPPED KEY", "BY TASK", "NAME", "SINCE", "BEHIND"), rows)


def stopped_advice(queue: QueueOverview) -> str:
    """Return how to let stopped keys go on."""
    names, task = queue.effective["partition_by_args"], " --task NAME" if queue.effective["partition_by_task"] else ""
    key = "".join(f" --key {name}=VALUE" for name in (["ARGUMENT"] if names == [] else names or ()))
    return (
        "A failed task stops its key until it is retried ('horsies_task retry ID') or skipped "
        f"('horsies_queue skip {queue.name}{key}{task} --reason TEXT')."
    )


def permit_table(holders: Iterable[PermitHolder]) -> str:
    """Return a line per task that holds a permit."""
    headings = ("TASK", "NAME", "STATUS", "SINCE", "HOST", "PROCESS", "WORKER", "PARTITION")
    rows = (
        (
            one.task_id, one.task_name, one.status, moment(one.since), one.hostname or "-", one.child_pid or "-",
            f"{one.worker_id}{'' if one.alive else ' (dead)'}", one.partition or "-",
        )
        for one in holders
    )  # fmt: skip
    return table(headings, rows)


def limits(columns: Mapping[str, Any]) -> str:
    """Return limits as text; in an override, which has only some limits, None means no limit."""
    whole = "priority" in columns
    found = [
        ("no limit" if columns[key] is None else str(columns[key])) + words
        for key, words in LIMIT_WORDS.items()
        if key in columns and not (whole and columns[key] is None)
    ]
    return ", ".join(found) or "no limit"


def in_force(queue: QueueOverview) -> str:
    return "paused" if queue.effective["max_concurrency"] == 0 else limits(queue.effective)


def rule(columns: Mapping[str, Any]) -> str:
    names = columns["partition_by_args"]
    found = [] if names is None else [", ".join(names) or "all arguments"]
    found += ["task name"] if columns["partition_by_task"] else []
    return "; ".join([f"by {' and '.join(found)}" if found else "none", *policy(columns)])


def policy(columns: Mapping[str, Any]) -> list[str]:
    """Return the policy of partitions in words, [] for none."""
    held = columns["partition_policy"]
    return [] if held is None else [POLICIES.get(held, held)]


def workers(queue: QueueOverview) -> str:
    """Return the number of live workers that serve a queue; "" for the cluster."""
    return "" if queue.name == CLUSTER else str(queue.workers)


class Change(NamedTuple):
    """A changed column of a queue."""

    queue: str
    column: str
    before: Any
    after: Any


def change_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a line per change: old -> new."""
    for change in changes:
        before, after = as_json(change.before, None), as_json(change.after, None)
        yield f"{title(change.queue)}: {change.column}: {before} -> {after}"


def schedule_table(schedules: Sequence[ScheduleOverview]) -> str:
    """Return a line per schedule, and the errors below it."""
    if not schedules:
        return "There are no schedules: 'horsies_scheduler' writes those of the code to the table when it starts."
    headings = ("SCHEDULE", "FIRES", "ZONE", "TASK", "STATE", "NEXT FIRE TIME", "LAST FIRE TIME", "LAST TASK")
    rows = (
        (
            one.name, one.in_words or one.pattern, one.zone, one.task, STATES[one.state], wall(one.next_fire_at, one.zone),
            wall(one.last_fire_at, one.zone),
            f"skipped, {one.last_task} had not finished" if one.last_skipped else one.last_status or "-",
        )
        for one in schedules
    )  # fmt: skip
    errors = [f"{one.name}: {one.error}" for one in schedules if one.error]
    return "\n\n".join([table(headings, rows), *errors])


def fire_time_table(pattern: Pattern, fire_times: Sequence[dt.datetime]) -> str:
    """Return a line per fire time: in the schedule's zone, and in UTC."""
    if not fire_times:
        return "It will not fire again."
    zone = ZoneInfo(pattern.zone)
    rows = ((f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{one:%Y-%m-%d %H:%M:%S}") for one in fire_times)
    return f"{pattern.in_words}, {pattern.zone}\n\n{table((pattern.zone, 'UTC'), rows)}"


def wall(fire_time: dt.datetime | None, zone: str) -> str:
    """Return a fire time in the local time of a zone, or in UTC if the zone does not exist."""
    if fire_time is None:
        return "-"
    try:
        return f"{aware(fire_time).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
    except (KeyError, ValueError, OSError):
        return f"{aware(fire_time).astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
