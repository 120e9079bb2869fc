"""The database's side of the lives that ``tests/db/life.py`` models: the sessions of several
workers and of one other client, and the comparison with the model.

Timestamps are moved by plain updates; no test waits for them.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from horsies_django.core.options import options_text
from horsies_django.core.records import SNOOZED, NewTasks, Outcome, Wanted
from horsies_django.core.retry import RetryPolicy
from horsies_django.core.status import TERMINAL
from horsies_django.store.notify import channel_prefix
from horsies_django.store.passes import Passed
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.store.workers import Load, WaiterStore, WorkerStore
from horsies_django.tasks.ids import uuid7
from tests.conftest import Connect, limit, wait_until
from tests.db.life import CAPS, MAX_CRASHES, MAX_SNOOZES, TENANT_CAP, Attempt, Life, Model
from tests.support.factories import error

LEASE = timedelta(hours=1)
THRESHOLD = timedelta(seconds=5)
TABLES = ("task_attempts", "tasks", "heartbeats", "workers", "waiters", "audit", "prunings")

LOOK = """
SELECT t.id, t.status, t.claimed_by, t.claim_generation, t.retry_count, t.error_code,
       t.cancel_requested_at IS NOT NULL, t.terminate, t.redacted_at IS NOT NULL,
       t.enqueued_at <= now.now, coalesce(t.good_until <= now.now, false),
       t.claim_expires_at > now.now,
       coalesce(t.next_retry_at > now.now, false), t.started_at IS NOT NULL,
       coalesce(t.result #>> '{err,error_code}', t.result ->> 'ok'), t.parked,
       horsies_holds_permit(t.status, t.claim_expires_at, true, now.now),
       ARRAY(SELECT row(a.attempt, a.claim_generation, a.outcome, a.will_retry, a.error_code,
                        a.child_pid IS NOT NULL, a.worker_id)
             FROM horsies_task_attempts a WHERE a.task_id = t.id
             ORDER BY a.attempt, a.claim_generation)
FROM horsies_tasks t CROSS JOIN clock_timestamp() AS now (now)
"""
MOVES = {
    # Due from now on, not from earlier: the order of claims must not depend on the speed of the
    # test.
    "due": "UPDATE horsies_tasks SET enqueued_at = now(), "
    "next_retry_at = CASE WHEN next_retry_at IS NOT NULL THEN now() END WHERE id = %s",
    "late": "UPDATE horsies_tasks SET good_until = now() - interval '1 s' WHERE id = %s",
    "lapsed": "UPDATE horsies_tasks SET claim_expires_at = now() - interval '1 s' WHERE id = %s",
    "silent": "UPDATE horsies_heartbeats SET sent_at = now() - interval '1 h' WHERE id = %s",
    "missing": "UPDATE horsies_tasks SET claimed_at = now() - interval '1 h' WHERE claimed_by = %s",
}


def enlist(
    conn: psycopg.Connection[Any], worker: uuid.UUID, *queues: str, slots: int = 9, **columns: Any
) -> None:
    """Write the row of a worker and its first heartbeat."""
    serving: dict[str, Any] = {
        "queues": [*queues],
        "processes": 1,
        "threads": slots,
        "async_concurrency": slots,
    }
    WorkerStore(conn).register(worker, hostname="h", pid=1, version="0", **serving, **columns)


def failed(code: str, **columns: Any) -> dict[str, Any]:
    """Return the columns of an outcome that failed."""
    return {"status": "FAILED", "error_code": code, "error_message": "no", **columns}


ENDS: dict[str, dict[str, Any]] = {
    "completed": {"status": "COMPLETED"},
    "listed": failed("LISTED"),
    "not listed": failed("OTHER"),
    "asks": failed("OTHER", retry=True),
    "asks for now": failed("OTHER", retry=0),
    "asks for later": failed("OTHER", retry=10_800),
    "crashed": failed("WORKER_CRASHED", crashed=True),
    "snoozes for now": {
        "status": SNOOZED,
        "error_code": SNOOZED,
        "retry": {"seconds": 0, "most": MAX_SNOOZES},
    },
    "snoozes": {
        "status": SNOOZED,
        "error_code": SNOOZED,
        "retry": {"seconds": 10_800, "most": MAX_SNOOZES},
    },
    "cancelled": {"status": "CANCELLED", "error_code": "TASK_CANCELLED"},
}


def outcome(id_: uuid.UUID, generation: int, end: str) -> Outcome:
    """Return an outcome of one of the kinds in ``ENDS``."""
    code = ENDS[end].get("error_code")
    return Outcome(
        id_,
        generation,
        result=json.dumps(error(code) if code else {"ok": 1}),
        child_pid=1,
        **ENDS[end],
    )


@dataclass
class Seat:
    """The session of a worker, and its current worker: a worker that is given up gets a successor
    with a new id.
    """

    conn: psycopg.Connection[Any]
    worker: uuid.UUID


class Lives:
    """Several sessions on one database: workers, a client with transactions of its own, and one
    that only reads.
    """

    def __init__(self, connect: Connect) -> None:
        self.seats = [Seat(connect(), uuid.uuid4()) for _ in range(3)]
        self.somebody = connect()
        self.looker = connect()
        self.channel = channel_prefix(self.looker)
        self.served = Served(CAPS)
        self.heard: set[uuid.UUID] = set()

        for conn in (*(seat.conn for seat in self.seats), self.somebody, self.looker):
            # Nothing here may wait for a row: it would wait for ever.
            conn.execute("SET lock_timeout = '5s'")

        limit("plain")
        limit("capped", max_concurrency=CAPS["capped"])
        limit("tenants", partition_by_args=["t"], partition_max_concurrency=TENANT_CAP)

        self.looker.execute(f'LISTEN "{self.channel}_done"')
        self.looker.add_notify_handler(
            lambda told: self.heard.update(map(uuid.UUID, told.payload.split()))
        )

        old_enough = "SELECT pg_postmaster_start_time() < clock_timestamp() - %s"
        wait_until(
            lambda: self.looker.execute(old_enough, [THRESHOLD]).fetchall()[0][0],
            "the server is no new one",
        )

    def begin(self) -> None:
        """Remove all earlier rows and the open transaction of a failed example, and register a
        waiter for results.
        """
        self.somebody.rollback()
        with self.looker.transaction():
            for table in TABLES:
                self.looker.execute(f"DELETE FROM horsies_{table}")

        for seat in self.seats:
            self.sit(seat)

        WaiterStore(self.looker).register(uuid.uuid4(), LEASE)
        self.heard.clear()

    def sit(self, seat: Seat) -> None:
        """Start a new worker in a seat."""
        seat.worker = uuid.uuid4()
        enlist(seat.conn, seat.worker, *CAPS)

    def beat(self, seat: Seat) -> bool:
        """Send the heartbeat of the worker in a seat; return whether it counts."""
        return (
            WorkerStore(seat.conn)
            .beat(seat.worker, [], Load(0, 0, 0, 0), timedelta(seconds=5))
            .alive
        )

    def run_pass(
        self, seat: Seat, worker: uuid.UUID, wanted: Wanted, *, short: bool = False, **owed: Any
    ) -> Passed:
        """Run a pass; ``short``: a short one, for the queue without limits."""
        news = "plain" if short else None
        store = TaskStore(seat.conn)
        return store.run_pass(
            worker, self.channel, self.served, wanted, news, max_crashes=MAX_CRASHES, **owed
        )

    def send(self, conn: psycopg.Connection[Any], life: Life) -> None:
        """Send the task of a life that begins."""
        TaskStore(conn).send(
            NewTasks(
                "tests.nothing",
                life.queue,
                "sync",
                100,
                [life.id],
                [f'{{"t": {life.tenant}}}'],
                delay=None if life.due else timedelta(hours=1),
                good_until=None,
                max_retries=0 if life.policy is None else life.policy.max_retries,
                options=options_text(life.policy, None),
            )
        )

        if life.until is not None:
            until = timedelta(seconds=life.until)
            conn.execute(
                "UPDATE horsies_tasks SET good_until = now() + %s WHERE id = %s", [until, life.id]
            )

    def move(self, moment: str, id_: uuid.UUID) -> None:
        """Move a timestamp so that a moment has come."""
        self.looker.execute(MOVES[moment], [id_])

    def compare(self, model: Model) -> None:
        """Compare every row with the model."""
        rows = {row[0]: row[1:] for row in self.looker.execute(LOOK)}
        assert rows.keys() == model.tasks.keys()

        for id_, life in model.tasks.items():
            (
                status,
                owner,
                generation,
                retries,
                code,
                cancelled,
                terminate,
                redacted,
                due,
                late,
                lease,
                pausing,
                started,
                result,
                parked,
                holds,
                attempts,
            ) = rows[id_]

            assert (status, owner, generation, retries, code) == (
                life.status,
                life.owner,
                life.generation,
                life.retry_count,
                life.code,
            ), life
            assert (cancelled, terminate, redacted) == (
                life.cancelled,
                life.terminate,
                life.redacted,
            ), life

            assert (late, holds) == (life.late, life.holds), life
            expected: str | None = None
            if life.final:
                expected = life.code or ("RESULT_REDACTED" if life.redacted else "1")
            assert result == expected, life

            assert [told(*columns) for columns in attempts] == life.attempts, life

            if not life.final:
                assert (lease, started) == (life.lease, status == "RUNNING"), life
            if status == "PENDING":
                assert (due, pausing) == (life.due, life.pausing), life
            assert not parked or (status, life.queue) == ("PENDING", "tenants"), life


def told(
    number: Any, generation: Any, ended: str, again: Any, code: str | None, child: Any, worker: Any
) -> Attempt:
    """Return the attempt of a row, whose columns are texts or values."""
    yes = (True, "t")
    return Attempt(
        int(number),
        int(generation),
        ended,
        again in yes,
        code,
        child in yes,
        uuid.UUID(str(worker)),
    )


POLICIES = (
    None,
    RetryPolicy.fixed([0] * 5, auto_retry_for=["LISTED", "WORKER_CRASHED"], jitter=False),
    RetryPolicy.fixed([3600, 0], auto_retry_for=["LISTED"], jitter=False),
)


def born(queue: str, tenant: int, policy: int, *, due: bool, until: int | None) -> Life:
    """Return a task that is about to be sent."""
    return Life(uuid7(), queue, tenant, POLICIES[policy], due, until)


def finals(model: Model) -> set[uuid.UUID]:
    """Return the finished tasks."""
    return {id_ for id_, life in model.tasks.items() if life.status in TERMINAL}
