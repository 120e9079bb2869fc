"""The statements about schedules: declare and change them, and record their fire times."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from horsies_django.store.audit import log_lost_record
from horsies_django.store.base import Store
from horsies_django.store.notify import channel_prefix

# followed by a space and the host and process of the scheduler, except for release 0.1.0
SCHEDULER_SESSION = "horsies scheduler"


class Taken(NamedTuple):
    """A due schedule that this transaction holds; ``now`` is the time by the database's clock."""

    name: str
    definition: dict[str, Any]
    since: dt.datetime
    last_fire_at: dt.datetime | None
    rules: int | None
    now: dt.datetime


class Recent(NamedTuple):
    """A fire time, and the task that was sent for it or because of which it was skipped.

    ``status`` is that of the task, None if it has been deleted.
    """

    name: str
    fire_at: dt.datetime
    sent_at: dt.datetime
    task_id: uuid.UUID
    status: str | None
    skipped: bool


class ScheduleStore(Store):
    """The statements about schedules.

    Tests pass ``now`` in place of the database's clock.
    """

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
        """Change the declaration of a schedule or the changes of users, in one statement.

        Columns that depend on them change, too. Return the keys of the definition that changed, or
        None if there is no such schedule.
        """
        changed: list[str] | None
        given = {"declared": declared, "changes": changes}
        texts = {key: None if value is None else json.dumps(value) for key, value in given.items()}
        options = {"declared_in": declared_in, "drop": list(drop), "create": create}
        who = {
            "action": action,
            "actor": actor,
            "reason": reason,
            "channel": channel_prefix(self.connection),
        }

        ((changed, lost),) = self.run(
            "horsies_change_schedule", name=name, **texts, **options, **who
        )
        log_lost_record(lost, action, actor, name, reason)
        return changed

    def delete(self, name: str, actor: str, reason: str | None) -> bool:
        """Delete a schedule that no code declares; return whether there was one."""
        rows = self.run("schedules/delete", name=name, actor=actor, reason=reason)
        for _, lost in rows:
            log_lost_record(lost, "schedule.delete", actor, name, reason)
        return bool(rows)

    def due(self, many: int, but: Collection[str] = ()) -> list[str]:
        """Return the names of up to ``many`` schedules that are due, without those in ``but``."""
        rows = self.run("schedules/due", now=self.now, many=many, but=list(but))
        return [name for (name,) in rows]

    def wait(self, but: Collection[str] = ()) -> float | None:
        """Return the seconds until the next schedule is due, or None if there is none.

        Schedules in ``but`` do not count.
        """
        found: float | None = self.run("schedules/wait", now=self.now, but=list(but))[0][0]
        return found

    def take(self, name: str) -> Taken | None:
        """Lock a schedule until the transaction ends, and return it.

        Return None if it is no longer due, or another scheduler holds it.
        """
        rows = self.run("schedules/take", name=name, now=self.now)
        return Taken(*rows[0][:-1]) if rows else None

    def tick(
        self,
        name: str,
        fire_times: Sequence[dt.datetime],
        task_ids: Sequence[uuid.UUID],
        skip: bool,
    ) -> tuple[set[uuid.UUID], uuid.UUID | None]:
        """Record the task of each fire time; return the tasks of new fire times.

        Fire times that were recorded before are ignored. With ``skip``, for one fire time only, it
        is skipped if the last task that was sent has not finished, and that task is also returned.
        """
        given = {"fire_times": list(fire_times), "task_ids": list(task_ids), "skip": skip}
        rows = self.run("schedules/tick", name=name, now=self.now, **given)
        return {sent for sent, _ in rows if sent}, next(
            (unfinished for _, unfinished in rows), None
        )

    def advance(
        self,
        name: str,
        *,
        last_fire_at: dt.datetime | None,
        next_fire_at: dt.datetime | None,
        next_at: dt.datetime | None,
        rules: int,
        error: str | None = None,
        missed: bool = False,
    ) -> None:
        """Record the last and the next fire time of a schedule.

        ``next_at`` is when it is due next. ``missed`` is True if fire times were missed.
        """
        times = {"last_fire_at": last_fire_at, "next_fire_at": next_fire_at, "next_at": next_at}
        self.execute(
            "schedules/advance", name=name, **times, rules=rules, error=error, missed=missed
        )

    def recent(self, names: Iterable[str], many: int) -> list[Recent]:
        """Return the latest ``many`` fire times of each schedule, newest first."""
        return [Recent(*row) for row in self.run("schedules/recent", names=list(names), many=many)]

    def declared(self, names: Iterable[str]) -> list[str]:
        """Record that schedules are still in the code of a scheduler.

        Return those that had been disabled because they seemed to be gone from the code.
        """
        return [name for (name,) in self.run("schedules/declared", names=list(names))]

    def schedulers(self) -> list[str]:
        """Return the host and process of each scheduler that is connected, as ``web-1:4711``.

        Schedulers of release 0.1.0 do not have them.
        """
        rows = self.run("schedules/schedulers", prefix=SCHEDULER_SESSION)
        return [name.removeprefix(f"{SCHEDULER_SESSION} ") for (name,) in rows]

    def gone(self, after: dt.timedelta, actor: str) -> list[str]:
        """Disable the schedules that no scheduler has had in its code for ``after``.

        Return their names.
        """
        rows = self.run("schedules/gone", after=after, actor=actor)
        for name, lost in rows:
            log_lost_record(lost, "schedule.gone", actor, name)
        return [name for name, _ in rows]


def session_name() -> str:
    """Return the name of the session of a scheduler in this process, which has 63 bytes at most."""
    return f"{SCHEDULER_SESSION} {socket.gethostname()[:37]}:{os.getpid()}"
