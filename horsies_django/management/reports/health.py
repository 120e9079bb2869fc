"""The state of queues, workers and the database as text; the JSON has the same content."""

from __future__ import annotations

import re
from collections.abc import Sequence

from horsies_django.management.reports.layout import moment, table, title
from horsies_django.monitoring.health import (
    DatabaseHealth,
    Health,
    Problem,
    QueueHealth,
    Severity,
    WorkerHealth,
    named,
)

COUNTS = ("lately", "day")  # left out of the JSON: they are the history's to show


def as_text(health: Health, problems: Sequence[Problem]) -> str:
    """Return queues, workers and database, and the problems at the end."""
    blocks = [queue_table(health.queues), worker_table(health.workers), database_page(health), verdict(problems)]
    return "\n\n".join(blocks)


def as_record(health: Health, problems: Sequence[Problem]) -> dict[str, object]:
    """Return the same as a record for JSON."""
    state = {key: value for key, value in health._asdict().items() if key not in COUNTS}
    return {"healthy": is_healthy(problems), "problems": problems, **state}


def is_healthy(problems: Sequence[Problem]) -> bool:
    """Return whether none of the problems is critical."""
    return all(problem.severity != Severity.CRITICAL for problem in problems)


def queue_table(queues: Sequence[QueueHealth]) -> str:
    headings = ("QUEUE", "RUNNING", "CLAIMED", "PENDING", "OLDEST WAITS", "WORKERS", "PAUSED")
    return table(
        headings,
        (
            (
                title(queue.name), queue.running, queue.claimed, f"{queue.pending:,}{'+' if queue.pending_more else ''}",
                span(queue.oldest_seconds), queue.workers, "paused" if queue.paused else "-",
            )
            for queue in queues
        ),
    )  # fmt: skip


def worker_table(workers: Sequence[WorkerHealth]) -> str:
    if not workers:
        return "No worker is running, and none stopped recently."
    headings = (
        "WORKER", "STATE", "LAST SEEN", "VERSION", "PROCESSES", "RUNNING SYNC", "RUNNING ASYNC", "HOLDS", "MEMORY MB",
        "CHILDREN MB",
    )  # fmt: skip
    return table(
        headings,
        (
            (
                f"{one.hostname}:{one.pid}", one.state, f"{span(max(0.0, one.silent_seconds))} ago", one.version, one.processes,
                one.running_sync, one.running_async, one.holds, megabytes(one.memory_mb), megabytes(one.children_memory_mb),
            )
            for one in workers
        ),
    )  # fmt: skip


def database_page(health: Health) -> str:
    """Return lines about the server."""
    database = health.database
    rows = [
        ("server", f"PostgreSQL {database.version}, {role(database)}"),
        ("clock", skew(health.clock_skew_seconds)),
        ("connections", f"{database.connections:,} of {database.max_connections:,}"),
        ("notify queue", f"{database.notify_queue:.1%} used"),
        ("rows of tasks", f"{database.live_rows:,} live, {database.dead_rows:,} dead (estimated)"),
        ("autovacuum", f"last of tasks: {moment(database.last_autovacuum)}"),
    ]
    rows += [
        (
            "xmin held by",
            f"{named(one)}{f' ({one.state})' if one.state else ''}: {one.transactions:,} transactions old, "
            + ("start time not visible" if one.seconds is None else f"for {span(one.seconds)}"),
        )
        for one in database.xmin_holders
    ] or [("xmin held by", "nobody")]
    return "\n".join(["DATABASE", *(f"  {label:<16}{plain(text)}" for label, text in rows)])


def role(database: DatabaseHealth) -> str:
    kind = "a replica" if database.in_recovery else "the primary"
    return f"{kind}, read-only" if database.read_only else f"{kind}, writable"


def skew(seconds: float) -> str:
    """Return the difference of the clocks. Only logs use the clock of this host."""
    text = f"this host is {abs(seconds):.1f} s {'ahead of' if seconds >= 0 else 'behind'} the database"
    return (
        # A smaller difference needs no explanation
        text if abs(seconds) < 5.0 else f"{text}; tasks use the database's clock, logs the clock of this host"
    )


def verdict(problems: Sequence[Problem]) -> str:
    headings = {Severity.CRITICAL: "UNHEALTHY", Severity.WARNING: "WARNINGS"}
    lines = []
    for severity, heading in headings.items():
        found = [one for one in problems if one.severity == severity]
        lines += [heading] * bool(found) + [f"  {one.code}: {plain(one.text)}: {plain(one.advice)}." for one in found]
    return "\n".join(lines) or "Healthy."


def plain(text: str) -> str:
    """Return a text without control characters: sessions choose their own names."""
    return re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]", "?", text)


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def megabytes(count: float | None) -> str:
    """Return an amount of memory; None before the first heartbeat."""
    return "-" if count is None else f"{count:,.0f}"
