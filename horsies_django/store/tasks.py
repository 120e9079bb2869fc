"""The statements about tasks: send them, run the pass, and read their state."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from horsies_django.core.records import Claim, Fence, NewTasks, Outcome, Wanted
from horsies_django.store.audit import log_lost_record
from horsies_django.store.base import Cursor, Store, executed
from horsies_django.store.passes import Passed, claims_json, outcomes_json, passed_of

NOTHING_WANTED = Wanted()
# Rows per INSERT: a compromise of few round trips and statements of moderate size
CHUNK_ROWS = 5_000


class Served:
    """The queues that a worker serves, also as the text of a PostgreSQL array for the pass."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = sorted(queues)
        self.queues_array = "{" + ",".join(map(array_element, self.queues)) + "}"


class Found(NamedTuple):
    """The status of a task and, once final, its result as JSON."""

    status: str
    result: str | None


class Held(NamedTuple):
    """A task in flight of a worker.

    ``terminate`` is True if its process may be killed because it was cancelled.
    """

    id: uuid.UUID
    generation: int
    running: bool
    cancelled: bool
    terminate: bool


class Copied(NamedTuple):
    """The status of a task, whether it was redacted, and whether it was copied."""

    status: str
    redacted: bool
    copied: bool


class SentOnce(NamedTuple):
    """The id of a task and the verdict of ``horsies_send_once``.

    ``table`` is the OID of the table into which the task was sent, None if it was not sent.
    """

    id: uuid.UUID
    verdict: str
    table: int | None


class Sent(NamedTuple):
    """The OID of the table into which a task was sent, when it was sent, and when it is due."""

    table: int
    sent_at: datetime
    enqueued_at: datetime


class StoredAttempt(NamedTuple):
    """A finished attempt of a task of ``django.tasks``."""

    outcome: str
    started_at: datetime
    worker_id: uuid.UUID | None
    error_code: str | None
    error_message: str | None
    exception_class: str | None
    traceback: str | None


class StoredTask(NamedTuple):
    """A task of ``django.tasks`` as it is stored.

    ``kwargs``, ``options`` and ``result`` are JSON texts. ``now`` is the time of the database's
    clock.
    """

    task_name: str
    queue_name: str
    priority: int
    kwargs: str
    options: str | None
    status: str
    sent_at: datetime
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    claimed_by: uuid.UUID | None
    result: str | None
    error_code: str | None
    now: datetime
    attempts: tuple[StoredAttempt, ...] = ()


class TaskStore(Store):
    """The statements about tasks.

    Tests pass ``now`` in place of the database's clock in passes.
    """

    def send(self, tasks: NewTasks, notified: int | None = None) -> int:
        """Insert the tasks and return the OID of their table.

        ``notified`` is that of ``notify_throttle.Turn``.
        """
        with self._sending(tasks, notified) as cursor:
            ((table,),) = cursor.fetchall()
        self.report_written(tasks)
        return int(table)

    def send_timed(self, task: NewTasks, notified: int | None = None) -> Sent:
        (row,) = self.run("tasks/send_timed", **sending(task, notified))
        self.report_written(task)
        return Sent(*row)

    def send_once(self, task: NewTasks, notified: int | None, once: Mapping[str, Any]) -> SentOnce:
        """Insert a task unless another one has its digest.

        ``once`` are the first parameters of ``horsies_send_once``.
        """
        (row,) = self.run("tasks/send_once", **once, **sending(task, notified))
        found = SentOnce(*row)
        if found.table is not None:
            self.report_written(task)
        return found

    def send_on(self, tasks: NewTasks) -> None:
        """Insert the tasks without waiting for the result, on a connection in pipeline mode."""
        with self._sending(tasks):
            pass
        self.report_written(tasks)

    def _sending(
        self, tasks: NewTasks, notified: int | None = None
    ) -> AbstractContextManager[Cursor]:
        return executed(self.connection, "tasks/send", sending(tasks, notified))

    def pass_on(
        self, worker: uuid.UUID, channel: str, lane: str, queues: Sequence[str]
    ) -> int | None:
        """Wake workers that have free slots for tasks of a lane; return how many.

        Return None if no task of these queues waits.
        """
        ((woken,),) = self.run(
            "horsies_pass_on", worker=worker, channel=channel, lane=lane, queues=list(queues)
        )
        return None if woken is None else int(woken)

    def waits(self, lane: str, queues: Sequence[str]) -> bool:
        """Return whether a task of a lane of these queues is due and waits."""
        ((due,),) = self.run(
            "horsies_count_due",
            queues=list(queues),
            lanes=[lane],
            most=1,
            cursors=None,
            behind=None,
        )
        return bool(due)

    def unpark_stalled(
        self, tasks: Sequence[uuid.UUID], queues: Sequence[str], channel: str
    ) -> None:
        """Unpark the next tasks in the partitions of the given tasks.

        Tasks of other queues than ``queues`` are ignored.
        """
        self.run("horsies_unpark_stalled", tasks=list(tasks), queues=list(queues), channel=channel)

    def announce(self, queue_name: str, table: int) -> None:
        """Wake the workers of a queue; ``table`` is the OID of its table of tasks."""
        self.run("tasks/announce", queue_name=queue_name, table=table)

    def run_pass(
        self,
        worker: uuid.UUID,
        channel: str,
        served: Served,
        wanted: Wanted = NOTHING_WANTED,
        news: str | None = None,
        *,
        outcomes: Sequence[Outcome] = (),
        releases: Sequence[Claim] = (),
        starts: Sequence[Claim] = (),
        expired_leases: bool = False,
        max_crashes: int = 0,
        grace: timedelta | None = None,
        cursors: str | None = None,
        max_bytes: int | None = None,
    ) -> Passed:
        """Settle outcomes, release and start claims, and claim the wanted tasks.

        All of this is one transaction. ``news`` is the only queue that may have due tasks, None for
        any. If there are no limits, only this queue is read. With ``expired_leases``, claims of any
        worker whose lease ended are released, too. A task that ended ``max_crashes`` processes is
        poison and not retried; 0 means never. With ``grace``, unknown tasks that have been due for
        less are not claimed. ``cursors`` is a JSON text with the ranges to scan, see
        ``worker/engine/scan_cursors.py``; None means everything. ``max_bytes`` limits the arguments
        of tasks that are sent to continue a workflow; if it is None, ``Advancer`` sends them.
        """
        params = {
            "worker": worker,
            "channel": channel,
            "outcomes": outcomes_json(outcomes) if outcomes else None,
            "releases": claims_json(releases) if releases else None,
            "starts": claims_json(starts) if starts else None,
            "queues": served.queues_array,
            "news": news,
            "expired_leases": expired_leases,
            "max_crashes": max_crashes,
            "grace": grace,
            "cursors": cursors,
            "max_bytes": max_bytes if any(outcome.in_run for outcome in outcomes) else None,
            "now": self.now,
            **wanted._asdict(),
            "durable": wanted.durable or bool(outcomes or releases or expired_leases),
        }
        with executed(self.connection, "tasks/pass", params) as cursor:
            return passed_of(
                cursor, {outcome.id for outcome in outcomes} | {claim.id for claim in releases}
            )

    def unsettled(
        self, worker: uuid.UUID, claims: Sequence[Outcome | Claim]
    ) -> dict[uuid.UUID, str]:
        """Return for each write that had no effect the state of its task, by id.

        The state is 'held', 'waiting', 'settled', 'retried' or 'lost'.
        """
        ids = [claim.id for claim in claims]
        generations = [claim.generation for claim in claims]
        return dict(self.run("tasks/unsettled", worker=worker, ids=ids, generations=generations))

    def held(self, worker: uuid.UUID) -> list[Held]:
        """Return the tasks in flight that ``worker`` holds according to the database."""
        return [Held(*row) for row in self.run("tasks/held", worker=worker)]

    def cancel(
        self, ids: Iterable[uuid.UUID], channel: str, *, terminate: bool
    ) -> dict[uuid.UUID, str]:
        """Cancel tasks, and return a verdict for each task that exists.

        It is "CANCELLED", "REQUESTED" (the task is running) or "FINISHED".
        """
        rows = self.run("horsies_cancel", ids=list(ids), terminate=terminate, channel=channel)
        self.report_written()
        return dict(rows)

    def renew(self, worker: uuid.UUID, claims: Sequence[Claim], lease: timedelta) -> int:
        """Set the end of the leases of prefetched tasks to ``lease`` from now.

        Return how many of them still belong to this worker.
        """
        return self.execute("tasks/renew", worker=worker, claims=claims_json(claims), lease=lease)

    def retry(
        self, id_: uuid.UUID, channel: str, patience: str
    ) -> tuple[str | None, uuid.UUID | None]:
        """Set a task back, so that it runs again; return a verdict and an id.

        The verdict is None if there is no such task. The id is that of its run, or of the task that
        it duplicates. It waits for open transactions for ``patience``, a time with its unit. Raises
        the driver's OperationalError (SQLSTATE 55P03) if one keeps the row of the task locked for
        longer.
        """
        ((verdict, other),) = self.run("horsies_retry", id=id_, channel=channel, patience=patience)
        self.report_written()
        return verdict, other

    def copy(self, id_: uuid.UUID, new: uuid.UUID) -> Copied | None:
        """Send a copy of a finished task with the id ``new``.

        Return None if there is no such task.
        """
        rows = self.run("horsies_copy", id=id_, new=new)
        self.report_written()
        return Copied(*rows[0]) if rows else None

    def note(
        self,
        subject: uuid.UUID | str,
        action: str,
        actor: str,
        reason: str | None,
        after: Mapping[str, str],
    ) -> None:
        """Write an audit entry about a task, a task sent for a schedule, or a workflow run."""
        who = {"actor": actor, "action": action, "reason": reason}
        ((lost,),) = self.run(
            "horsies_note", **who, subject=str(subject), before=None, after=json.dumps(after)
        )
        log_lost_record(lost, action, actor, subject, reason)

    def find(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Found]:
        """Return the tasks among ``ids`` that are visible to this connection.

        A task that was merged into another one has the outcome of that one. If that one was
        deleted, the outcome is that the task was merged.
        """
        rows = self.run("tasks/find", ids=list(ids))
        found = {id_: Found(status, result) for id_, status, result, _ in rows}
        if merged := [id_ for id_, *_, merged in rows if merged]:
            found |= {row[0]: Found(*row[1:]) for row in self.run("tasks/find_merged", ids=merged)}
        return found

    def with_attempts(self, id_: uuid.UUID) -> StoredTask | None:
        """Return a task of ``django.tasks`` with its attempts, or None if there is no such task."""
        rows = self.run("tasks/with_attempts", id=id_)
        if not rows:
            return None

        columns = len(StoredTask._fields) - 1
        attempts = [StoredAttempt(*row[columns:]) for row in rows if row[columns] is not None]
        return StoredTask._make((*rows[0][:columns], tuple(attempts)))

    def step_names(self, task: uuid.UUID) -> set[str]:
        return {name for (name,) in self.run("tasks/step_names", task=task)}

    def step(self, task: uuid.UUID, name: str) -> tuple[str, str] | None:
        """Return the digest of the arguments of a recorded step, and its result as JSON text.

        Return None if there is no such step.
        """
        rows = self.run("tasks/step", task=task, name=name)
        return rows[0] if rows else None

    def record_step(self, fence: Fence, name: str, digest: str, result: str) -> bool:
        """Record a step of a running task.

        Return False if the task no longer belongs to the claim of ``fence``.
        """
        ((recorded,),) = self.run(
            "horsies_record_step", **fence._asdict(), name=name, digest=digest, result=result
        )
        return bool(recorded)


def sending(tasks: NewTasks, notified: int | None) -> dict[str, Any]:
    """Return the parameters of a statement that sends.

    Ids and arguments are passed as one text each, because the driver would quote lists element by
    element, which takes longer than the INSERT. Numbers are texts, too, because PostgreSQL does not
    accept the integer 100 in a statement as a smallint.
    """
    ids = "{" + ",".join([f"{id_.int:032x}" for id_ in tasks.ids]) + "}"
    kwargs = "[" + ",".join(tasks.kwargs) + "]"
    numbers = {
        "priority": str(tasks.priority),
        "max_retries": str(tasks.max_retries),
        "notified": notified and str(notified),
    }
    return {**tasks._asdict(), "ids": ids, "kwargs": kwargs, **numbers}


def array_element(text: str) -> str:
    """Return a text quoted as an element of a PostgreSQL array in text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
