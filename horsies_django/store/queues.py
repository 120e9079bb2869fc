"""The statements about queues: read and change their rows, and sweep them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from horsies_django.core.queues import DECLARED
from horsies_django.store.audit import log_lost_record
from horsies_django.store.base import Store
from horsies_django.store.notify import channel_prefix

NO_OVERRIDE = dict.fromkeys(
    ("override", "override_by", "override_reason", "override_at", "override_until")
)


def read_declared(row: str) -> dict[str, Any]:
    """Return the columns of a queue that settings declare. ``row`` is a row of it as JSON."""
    columns = json.loads(row)
    return {name: columns[name] for name in DECLARED}


class Skipped(NamedTuple):
    """The result of giving up a failed task.

    ``id`` is the task, or None if no failed task stops the partition. Then ``first`` is the head of
    the partition, None if there is none, and ``status`` its status.
    """

    id: uuid.UUID | None
    first: uuid.UUID | None
    status: str | None


class QueueStore(Store):
    """The statements about queues."""

    def configure(
        self,
        name: str,
        changes: Mapping[str, Any],
        *,
        action: str,
        actor: str,
        reason: str | None = None,
        create: bool = False,
    ) -> list[str] | None:
        """Change columns of a queue, and the rows that depend on them, in one statement.

        Return the columns that changed, or None if there is no such queue. Raises the driver's
        OperationalError (SQLSTATE 55P03) if passes keep the limits locked.
        """
        changed: list[str] | None
        who = {
            "action": action,
            "actor": actor,
            "reason": reason,
            "channel": channel_prefix(self.connection),
        }

        text = json.dumps(changes, default=str)
        ((changed, lost),) = self.run(
            "horsies_configure_queue", name=name, changes=text, create=create, **who
        )

        log_lost_record(lost, action, actor, name, reason)
        return changed

    def skip(
        self,
        id_: uuid.UUID | None,
        name: str | None,
        arguments: str | None = None,
        *,
        task: str | None = None,
        actor: str,
        reason: str,
    ) -> Skipped:
        """Give up a failed task that stops its partition.

        The task is named by its id, or by its queue, its arguments as JSON and its name.
        """
        found = {"queue": name, "id": id_, "arguments": arguments, "task": task}
        who = {"actor": actor, "reason": reason, "channel": channel_prefix(self.connection)}
        ((skipped, lost, first, status),) = self.run("horsies_skip_stopped", **found, **who)
        self.report_written()
        log_lost_record(lost, "queue.skip", actor, name or str(id_), reason)
        return Skipped(skipped, first, status)

    def declared(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the declared columns of the existing queues among ``names``."""
        rows = self.run("queues/rows", names=list(names))
        return {name: read_declared(row) for name, row in rows}

    def served(self, names: Iterable[str]) -> None:
        """Record that a living worker serves the queues."""
        self.execute("queues/served", names=list(names))

    def outlived(self, idle: timedelta | None) -> list[tuple[str, bool]]:
        """Return the queues whose override must end, and whether its time is over."""
        return self.run("queues/outlived", idle=idle)

    def sweeps(self) -> list[str]:
        return [row[0] for row in self.run("queues/sweeps")]

    def sweep(self, name: str, many: int) -> bool:
        """Bring up to ``many`` waiting tasks or partitions in line with the limits of a queue.

        Return whether there are more.
        """
        return bool(
            self.run(
                "horsies_sweep", queue=name, many=many, channel=channel_prefix(self.connection)
            )[0][0]
        )

    def request_sweep(self) -> None:
        """Request a sweep of the queues with partitions, to find free permits that were missed."""
        self.execute("queues/request_sweep")
