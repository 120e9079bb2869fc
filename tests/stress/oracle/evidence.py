"""What the database knows in a storm and after it: how far the tasks are, who lives, and the limits over time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, connection

from horsies_django.models import AuditEntry, Queue
from tests.stress.oracle.judge import Chronicle

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1
UNFINISHED = """
SELECT (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND NOT parked)
     + (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NULL AND finished_at IS NULL AND parked)
     + (SELECT count(*) FROM horsies_tasks WHERE claimed_by IS NOT NULL AND finished_at IS NULL)
"""
LIVING = """
SELECT count(*) FROM horsies_heartbeats b JOIN horsies_workers w ON w.id = b.id
WHERE b.role = 'claimer' AND b.died_at IS NULL AND w.stopped_at IS NULL AND b.sent_at > clock_timestamp() - interval '3 s'
"""


def steady(ask: Callable[[], T]) -> T:
    """Ask the database until it answers: it goes away now and then. Raises OperationalError when it stays away."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > until:
                raise
            threading.Event().wait(PAUSE_SECONDS)


def rows(query: str, *params: Any) -> list[Any]:
    """Return what a query finds."""
    with connection.cursor() as cursor:
        cursor.execute(query, params)
        return cursor.fetchall()


def clock() -> float:
    """Return the moment by the database's clock."""
    return float(rows("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])


def unfinished() -> int:
    """Return how many tasks are not finished, at a cost that does not grow with those that are."""
    return int(rows(UNFINISHED)[0][0])


def from_now_on() -> Callable[[], dict[str, Chronicle]]:
    """Return a function that tells what has become of the limits of the queues since now."""
    first = {row["name"]: row for row in Queue.objects.values()}
    before = list(AuditEntry.objects.values_list("id", flat=True))

    def chronicles() -> dict[str, Chronicle]:
        changes = defaultdict(list)
        for entry in AuditEntry.objects.exclude(id__in=before).filter(subject__in=list(first)).order_by("at", "id"):
            changes[entry.subject].append((entry.at.timestamp(), entry.after or {}))
        return {name: Chronicle(row, changes[name]) for name, row in first.items()}

    return chronicles


def living() -> int:
    """Return how many workers are there; one that was just killed counts until it is known to be dead."""
    return int(rows(LIVING)[0][0])
