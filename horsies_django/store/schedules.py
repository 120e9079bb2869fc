"""The statements about schedules: what is declared and changed, which are due, and which slots were sent."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from horsies_django.store.base import Connection, execute, run
from horsies_django.store.notify import channel_prefix


class Taken(NamedTuple):
    """A schedule that is due and that nobody else looks at meanwhile; ``now`` is the moment by the database's clock."""

    name: str
    definition: dict[str, Any]
    since: dt.datetime
    last_slot: dt.datetime | None
    rules: int | None
    now: dt.datetime


class Recent(NamedTuple):
    """A slot that was sent, and what became of its task; ``status`` None: the task was removed since."""

    name: str
    slot: dt.datetime
    sent_at: dt.datetime
    task_id: uuid.UUID
    status: str | None


class ScheduleStore:
    """Runs the schedule statements on the given connection. ``now`` stands in for the database's clock, in tests."""

    def __init__(self, connection: Connection, now: dt.datetime | None = None) -> None:
        self.connection = connection
        self.now = now

    def change(
        self,
        name: str,
        *,
        action: str,
        actor: str,
        reason: str | None = None,
        declared: Mapping[str, Any] | None = None,
        declared_in: str | None = None,
        changes: Mapping[str, Any] | None = None,
        drop: Collection[str] = (),
        create: bool = False,
    ) -> list[str] | None:
        """Change what is declared, or what somebody changed, and all that follows from it, in one statement.

        Returns the keys of the definition that changed, None when there is no such schedule.
        """
        params = {
            "name": name,
            "declared": None if declared is None else json.dumps(declared),
            "declared_in": declared_in,
            "changes": None if changes is None else json.dumps(changes),
            "drop": list(drop),
            "create": create,
            "action": action,
            "actor": actor,
            "reason": reason,
            "channel": channel_prefix(self.connection),
        }
        found: list[str] | None = run(self.connection, "schedules/change", params)[0][0]
        return found

    def due(self, many: int, but: Collection[str] = ()) -> list[str]:
        """Return the names of at most so many schedules that have to be looked at."""
        rows = run(self.connection, "schedules/due", {"now": self.now, "many": many, "but": list(but)})
        return [name for (name,) in rows]

    def wait(self, but: Collection[str] = ()) -> float | None:
        """Return in how many seconds the next schedule has to be looked at, None if none ever has."""
        found: float | None = run(self.connection, "schedules/wait", {"now": self.now, "but": list(but)})[0][0]
        return found

    def take(self, name: str) -> Taken | None:
        """Take a schedule until the transaction ends; None: it is not due any more, or another scheduler has it."""
        rows = run(self.connection, "schedules/take", {"name": name, "now": self.now})
        return Taken(*rows[0][:-1]) if rows else None

    def tick(self, name: str, slots: Sequence[dt.datetime], task_ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        """Note that slots are sent as tasks; return those of the tasks whose slot was not sent before."""
        params = {"name": name, "slots": list(slots), "task_ids": list(task_ids)}
        return {task_id for (task_id,) in run(self.connection, "schedules/tick", params)}

    def advance(
        self,
        name: str,
        *,
        last_slot: dt.datetime | None,
        next_slot: dt.datetime | None,
        next_at: dt.datetime | None,
        rules: int,
        error: str | None = None,
    ) -> None:
        """Note how far a schedule came, and when to look at it again."""
        params = {
            "name": name,
            "last_slot": last_slot,
            "next_slot": next_slot,
            "next_at": next_at,
            "rules": rules,
            "error": error,
        }
        execute(self.connection, "schedules/advance", params)

    def recent(self, names: Iterable[str], many: int) -> list[Recent]:
        """Return the newest slots of schedules, so many of each, the newest first."""
        return [Recent(*row) for row in run(self.connection, "schedules/recent", {"names": list(names), "many": many})]

    def declared(self, names: Iterable[str]) -> list[str]:
        """Note that schedules are still in some scheduler's code; return those that were switched off as gone from it."""
        return [name for (name,) in run(self.connection, "schedules/declared", {"names": list(names)})]

    def gone(self, after: dt.timedelta, actor: str) -> list[str]:
        """Switch off the schedules that were in no scheduler's code for so long; return their names."""
        return [name for (name,) in run(self.connection, "schedules/gone", {"after": after, "actor": actor})]
