"""Reports that commands print: tables and datetimes as text, and records as JSON.

The report of ``horsies_status``, the state of queues, workers and the database, is also here.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import visible
from horsies_django.core.words import duration
from horsies_django.models.fields import aware
from horsies_django.monitoring.health import (
    Health,
    Problem,
    QueueHealth,
    Severity,
    WorkerHealth,
    holder_name,
)

COUNTS = ("lately", "day")  # left out of the JSON, because they belong to the history


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON, with named tuples as objects and datetimes in ISO 8601.

    If ``indent`` is None, the JSON is on one line.
    """
    return json.dumps(_plain(value), cls=DjangoJSONEncoder, indent=indent)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose columns are as wide as their longest cell, with two spaces between them.

    A cell of None is shown as "-".
    """
    lines = [
        list(headings),
        *([visible("-" if cell is None else str(cell)) for cell in row] for row in rows),
    ]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def page(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a text of a title and a line for each row."""
    return "\n".join([title, *(f"  {label:<16}{visible(value)}" for label, value in rows)])


def bounded_count(count: int, more: bool) -> str:
    """Return a number, with "+" if counting stopped at its bound."""
    return f"{count:,}{'+' if more else ''}"


def title(name: str) -> str:
    """Return the name of a queue, or "whole cluster" for the row of the cluster."""
    return "whole cluster" if name == CLUSTER else name


def timestamp(value: dt.datetime | None) -> str:
    """Return a datetime to the second with its time zone, or "-" for None."""
    return "-" if value is None else aware(value).isoformat(sep=" ", timespec="seconds")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dt.datetime):
        return aware(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def report_text(health: Health, problems: Sequence[Problem]) -> str:
    """Return a report of queues, workers, database and problems as text."""
    blocks = [
        queue_table(health.queues),
        worker_table(health.workers),
        database_page(health),
        problem_lines(problems),
    ]
    return "\n\n".join(blocks)


def as_record(health: Health, problems: Sequence[Problem]) -> dict[str, object]:
    """Return a report of queues, workers, database and problems as a record for JSON."""
    state = {key: value for key, value in health._asdict().items() if key not in COUNTS}
    return {"healthy": is_healthy(problems), "problems": problems, **state}


def is_healthy(problems: Sequence[Problem]) -> bool:
    """Return True if none of the problems is critical."""
    return all(problem.severity != Severity.CRITICAL for problem in problems)


def queue_table(queues: Sequence[QueueHealth]) -> str:
    headings = ("QUEUE", "RUNNING", "CLAIMED", "PENDING", "OLDEST WAITS", "WORKERS", "PAUSED")
    rows = (
        (
            title(queue.name),
            queue.running,
            queue.claimed,
            bounded_count(queue.pending, queue.pending_more),
            duration_or_none(queue.oldest_seconds),
            queue.workers,
            "paused" if queue.paused else None,
        )
        for queue in queues
    )
    return table(headings, rows)


def worker_table(workers: Sequence[WorkerHealth]) -> str:
    if not workers:
        return "No worker is running, and none stopped recently."

    headings = (
        "WORKER",
        "STATE",
        "LAST SEEN",
        "VERSION",
        "PROCESSES",
        "RUNNING SYNC",
        "RUNNING ASYNC",
        "HOLDS",
        "MEMORY MB",
        "CHILDREN MB",
    )

    rows = (
        (
            f"{one.hostname}:{one.pid}",
            one.state,
            f"{duration(one.silent_seconds)} ago",
            one.version,
            process_count(one),
            one.running_sync,
            one.running_async,
            one.holds,
            memory_text(one.memory_mb),
            memory_text(one.children_memory_mb),
        )
        for one in workers
    )
    return table(headings, rows)


def process_count(worker: WorkerHealth) -> str:
    """Return the number of processes of a worker, and how many are ready if that is fewer."""
    if worker.state != "living" or worker.ready >= worker.processes:
        return str(worker.processes)
    return f"{worker.processes} ({worker.ready} ready)"


def database_page(health: Health) -> str:
    """Return lines about the database server.

    Only logs use the clock of this host, so a small difference is not explained.
    """
    database = health.database
    ahead = health.clock_skew_seconds
    role = "a replica" if database.in_recovery else "the primary"
    by = f"{abs(ahead):.1f} s {'ahead of' if ahead >= 0 else 'behind'} the database"
    note = (
        "" if abs(ahead) < 5.0 else "; tasks use the database's clock, logs the clock of this host"
    )

    rows = [
        (
            "server",
            f"PostgreSQL {database.version}, {role}, "
            f"{'read-only' if database.read_only else 'writable'}",
        ),
        ("clock", f"this host is {by}{note}"),
        ("connections", f"{database.connections:,} of {database.max_connections:,}"),
        ("notify queue", f"{database.notify_queue:.1%} used"),
        ("rows of tasks", f"{database.live_rows:,} live, {database.dead_rows:,} dead (estimated)"),
        ("autovacuum", f"last of tasks: {timestamp(database.last_autovacuum)}"),
    ]

    for one in database.xmin_holders:
        state = f" ({one.state})" if one.state else ""
        since = "start time not visible" if one.seconds is None else f"for {duration(one.seconds)}"
        rows.append(
            (
                "xmin held by",
                f"{holder_name(one)}{state}: {one.transactions:,} transactions old, {since}",
            )
        )

    return page("DATABASE", rows if database.xmin_holders else [*rows, ("xmin held by", "nobody")])


def problem_lines(problems: Sequence[Problem]) -> str:
    headings = {Severity.CRITICAL: "UNHEALTHY", Severity.WARNING: "WARNINGS"}
    lines = []
    for severity, heading in headings.items():
        found = [one for one in problems if one.severity == severity]
        lines += [heading] * bool(found)
        lines += [f"  {one.code}: {visible(f'{one.text}: {one.advice}')}." for one in found]

    return "\n".join(lines) or "Healthy."


def duration_or_none(seconds: float | None) -> str | None:
    """Return a duration in its two largest units, or None for None. ``seconds`` is in seconds."""
    return None if seconds is None else duration(seconds)


def memory_text(count: float | None) -> str | None:
    """Return an amount of memory, or None before the first heartbeat. ``count`` is in megabytes."""
    return None if count is None else f"{count:,.0f}"
