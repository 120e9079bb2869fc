"""The statuses of tasks, workflow runs and their nodes. Only SQL statements change them."""

from __future__ import annotations

import enum


class Status(enum.StrEnum):
    """The status of a task. The last four are final."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


TERMINAL: frozenset[Status] = frozenset(
    {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED}
)
FINAL = frozenset(status.value for status in TERMINAL)  # the same as texts, as rows have them

UNFINISHED_RUNS = ("RUNNING", "PAUSED", "COMPENSATING")
RUN_STATUSES = (*UNFINISHED_RUNS, "COMPLETED", "FAILED", "CANCELLED")
UNFINISHED_NODES = ("ADDED", "PENDING", "READY", "WAITING", "ENQUEUED")
NODE_STATUSES = (*UNFINISHED_NODES, "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "SKIPPED")
