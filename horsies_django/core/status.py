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
# The same as TERMINAL, as plain texts
FINAL_STATUSES = frozenset(status.value for status in TERMINAL)

UNFINISHED_RUNS = ("RUNNING", "PAUSED", "COMPENSATING")
RUN_STATUSES = (*UNFINISHED_RUNS, "COMPLETED", "FAILED", "CANCELLED")
# A node is ADDED by a task that runs, until an advance admits it; PENDING while it waits for other
# nodes; READY if nothing holds it back but the limit of the run; WAITING for a signal, a time or a
# decision; ENQUEUED once its task or child run was sent.
UNFINISHED_NODES = ("ADDED", "PENDING", "READY", "WAITING", "ENQUEUED")
NODE_STATUSES = (*UNFINISHED_NODES, "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "SKIPPED")
