"""The statements about tasks: send, the pass, and the looks at what became of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import NamedTuple

from horsies_django.core.records import Claim, NewTasks, Outcome, Wanted
from horsies_django.store.base import Connection, Cursor, execute, executed, run
from horsies_django.store.passes import Passed, PassRow, claims_json, claims_of, outcomes_json, passed_of

NOTHING = Wanted()


class Served:
    """The queues that a worker serves, as the pass takes them: PostgreSQL's text form of an array, written once."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = sorted(queues)
        self.queues_array = "{" + ",".join(map(array_element, self.queues)) + "}"


class Found(NamedTuple):
    """A task as a waiting caller sees it: its status and, once final, the JSON envelope of its result."""

    status: str
    result: str | None


class Held(NamedTuple):
    """A task in flight of one worker: its claim generation, whether it was cancelled, and whether its process may be killed
    for it."""

    id: uuid.UUID
    generation: int
    cancelled: bool
    terminate: bool


class Copied(NamedTuple):
    """The status of a task that was to be sent once more, its newest copy from before, if any, and whether it was sent."""

    status: str
    copy: uuid.UUID | None
    copy_status: str | None
    copied: bool


class TaskStore:
    """Runs the task statements on the given connection. ``now`` stands in for the database's clock in passes, in tests."""

    def __init__(self, connection: Connection, now: datetime | None = None) -> None:
        self.connection = connection
        self.now = now

    def send(self, tasks: NewTasks, told: int | None = None) -> int:
        """Insert the tasks and return the number of their table; ``told`` as in ``announcing.Turn``."""
        with self._sending(tasks, told) as cursor:
            ((table,),) = cursor.fetchall()
        return int(table)

    def send_on(self, tasks: NewTasks) -> None:
        """Insert the tasks without waiting for that; on a connection in pipeline mode."""
        with self._sending(tasks):
            pass

    def _sending(self, tasks: NewTasks, told: int | None = None) -> AbstractContextManager[Cursor]:
        """Give the cursor that sends.

        Ids and arguments go as one text each: their lists would be quoted element by element, which takes longer than the INSERT.
        """
        ids, kwargs = "{" + ",".join([f"{id_.int:032x}" for id_ in tasks.ids]) + "}", "[" + ",".join(tasks.kwargs) + "]"
        return executed(self.connection, "tasks/send", {**tasks._asdict(), "ids": ids, "kwargs": kwargs, "told": told})

    def announce(self, queue_name: str, table: int) -> None:
        """Wake the workers of a queue of the table with that number."""
        run(self.connection, "tasks/announce", {"queue_name": queue_name, "table": table})

    def run_pass(
        self,
        worker: uuid.UUID,
        channel: str,
        served: Served,
        wanted: Wanted = NOTHING,
        *,
        outcomes: Sequence[Outcome] = (),
        releases: Sequence[Claim] = (),
        starts: Sequence[Claim] = (),
        expired_leases: bool = False,
        max_crashes: int = 0,
        grace: timedelta | None = None,
        cursors: str | None = None,
    ) -> Passed:
        """Settle ``outcomes``, give ``releases`` back, start ``starts``, then claim what is wanted; one transaction.

        ``expired_leases`` also takes back claims whose lease ended, of any worker. A task that took ``max_crashes`` processes
        with it is poison and not retried, 0 never. With ``grace`` nothing is claimed that this worker does not know and that is
        younger. ``cursors`` is the JSON text of where to look, see ``worker/engine/scan_cursors.py``; None: everywhere.
        """
        rows = run(
            self.connection,
            "tasks/pass",
            {
                "worker": worker,
                "channel": channel,
                "outcomes": outcomes_json(outcomes) if outcomes else None,
                "releases": claims_json(releases) if releases else None,
                "starts": claims_json(starts) if starts else None,
                "queues": served.queues_array,
                "expired_leases": expired_leases,
                "max_crashes": max_crashes,
                "grace": grace,
                "cursors": cursors,
                "now": self.now,
                **wanted._asdict(),
            },
        )
        return passed_of(PassRow(*rows[0]), {outcome.id for outcome in outcomes} | {claim.id for claim in releases})

    def run_short_pass(
        self,
        worker: uuid.UUID,
        channel: str,
        served: Served,
        queue: str | None,
        wanted: Wanted,
        outcomes: Sequence[Outcome],
    ) -> Passed | None:
        """Settle ``outcomes``, none of them a failure, and claim for the free slots from ``queue``; one transaction.

        None, and nothing is done, when one of the ``served`` queues has a limit or the worker was declared dead. ``again`` when
        tasks were met that are past their time.
        """
        rows = run(
            self.connection,
            "tasks/short_pass",
            {
                "worker": worker,
                "channel": channel,
                "outcomes": outcomes_json(outcomes) if outcomes else None,
                "queues": served.queues_array,
                "queue": queue,
                "sync": wanted.sync if queue else 0,
                "async_": wanted.async_ if queue else 0,
            },
        )
        fit, again, missed, *claims = rows[0]
        if not fit:
            return None
        landed = {outcome.id for outcome in outcomes}.difference(missed or ())
        return Passed(landed, claims=claims_of(claims), again=again, short=True)

    def unsettled(self, worker: uuid.UUID, claims: Sequence[Outcome | Claim]) -> dict[uuid.UUID, str]:
        """Tell for each write that did not land whether its task is 'held', 'waiting', 'settled', 'retried' or 'lost'."""
        ids, generations = [claim.id for claim in claims], [claim.generation for claim in claims]
        return dict(run(self.connection, "tasks/unsettled", {"worker": worker, "ids": ids, "generations": generations}))

    def held(self, worker: uuid.UUID) -> list[Held]:
        """Return the tasks in flight that the database says ``worker`` holds."""
        return [Held(*row) for row in run(self.connection, "tasks/held", {"worker": worker})]

    def cancel(self, ids: Iterable[uuid.UUID], channel: str, *, terminate: bool) -> dict[uuid.UUID, str]:
        """Cancel tasks and return the verdict on each that exists: "CANCELLED", "REQUESTED" (it runs) or "FINISHED"."""
        params = {"ids": list(ids), "terminate": terminate, "channel": channel}
        return dict(run(self.connection, "tasks/cancel", params))

    def renew(self, worker: uuid.UUID, claims: Sequence[Claim], lease: timedelta) -> int:
        """Let the leases of tasks that wait in the buffer end ``lease`` from now; return how many are still this worker's."""
        return execute(
            self.connection, "tasks/renew", {"worker": worker, "claims": claims_json(claims), "lease": lease}
        )

    def retry_now(self, id_: uuid.UUID, channel: str) -> bool:
        """Make a task due now that waits for its next attempt; return whether it did wait."""
        return bool(run(self.connection, "tasks/retry_now", {"id": id_, "channel": channel}))

    def copy(self, id_: uuid.UUID, new: uuid.UUID, *, again: bool) -> Copied | None:
        """Send a task once more under the id ``new`` if it ended without success; None when there is none.

        Not when there is a copy of it already, unless ``again``. For a transaction; waits for whoever has the task locked.
        """
        run(self.connection, "tasks/lock", {"id": id_})
        rows = run(self.connection, "tasks/copy", {"id": id_, "new": new, "again": again})
        return Copied(*rows[0]) if rows else None

    def note(
        self, subject: uuid.UUID | str, action: str, actor: str, reason: str | None, after: Mapping[str, str]
    ) -> None:
        """Write into the audit what was done to a task, or sent for a schedule."""
        params = {
            "actor": actor,
            "action": action,
            "subject": str(subject),
            "reason": reason,
            "after": json.dumps(after),
        }
        execute(self.connection, "audit/note", params)

    def find(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Found]:
        """Return the tasks among ``ids`` that this connection can see."""
        rows = run(self.connection, "tasks/find", {"ids": list(ids)})
        return {id_: Found(status, result) for id_, status, result in rows}


def array_element(text: str) -> str:
    """Quote a text as an element of an array in PostgreSQL's text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
