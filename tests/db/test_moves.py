"""What each statement does to rows of every status: it moves those that core/status.py lets it move, and no other row changes.

All rows look as if they were the worker's own and the statement's to change, under the right generation: only the status decides.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.core.retry import RetryPolicy
from horsies_django.core.status import Status
from horsies_django.models import Task
from horsies_django.store.workers import WorkerStore
from tests.conftest import Claimer, limit
from tests.db.conftest import Claimers
from tests.db.test_pass import aware
from tests.support.factories import TaskFactory
from tests.support.models.status import TRANSITIONS

pytestmark = pytest.mark.django_db(transaction=True)

Moves = set[tuple[str, str]]
LEASE = dt.timedelta(minutes=5)
RETRIES: dict[str, Any] = {
    "max_retries": 3,
    "options": {"wire": 1, "retry": RetryPolicy.fixed([60], auto_retry_for=["AGAIN", "WORKER_CRASHED"]).stored()},
}
TAKEN_BACK = {"cancel_requested_at": aware(seconds=-1)}
LATE = {"good_until": aware(seconds=-1)}


def allowed(*events: str) -> set[tuple[str, str]]:
    """Return the moves that these events may be."""
    return {(str(a), str(b)) for event in events for a in TRANSITIONS[event][0] for b in TRANSITIONS[event][1]}


def rows(worker: Claimer, **columns: Any) -> list[Task]:
    """Put a task of every status into the table: the worker's own, but for the one that waits and cannot have an owner."""
    long_ago = aware(hours=-1)
    owned = {
        "claimed_by": worker.id,
        "claimed_at": long_ago,
        "started_at": long_ago,
        "claim_expires_at": aware(minutes=5),
    }
    common = {"claim_generation": 1, "sent_at": aware(minutes=-1), **columns}
    found = [{"status": str(status), **(owned if status != "PENDING" else {}), **common} for status in Status]
    return [TaskFactory(**columns) for columns in found]


def held(tasks: Iterable[Task]) -> list[Claim]:
    return [Claim(task.id, 1, "sync", task.task_name, "{}") for task in tasks]


def outcomes(tasks: Iterable[Task], status: str, **columns: Any) -> list[Outcome]:
    return [Outcome(task.id, 1, status, '{"ok": 1}', **columns) for task in tasks]


# Each puts its rows into the table before it yields, and lets the statement at them afterwards.


def settle(worker: Claimer) -> Iterator[None]:
    failed = {"status": "FAILED", "error_message": "no"}
    ends = [
        *outcomes(rows(worker), "COMPLETED"),
        *outcomes(rows(worker), error_code="NEVER", **failed),
        *outcomes(rows(worker, **RETRIES), error_code="AGAIN", **failed),
        *outcomes(rows(worker), "CANCELLED", error_code="TASK_CANCELLED"),
    ]
    yield
    worker.run_pass(outcomes=ends)


def settle_and_claim_shortly(worker: Claimer) -> Iterator[None]:
    ends = [*outcomes(rows(worker), "COMPLETED"), *outcomes(rows(worker), "CANCELLED", error_code="TASK_CANCELLED")]
    yield
    assert worker.run_pass(sync=9, news="default", outcomes=ends).short


def release(worker: Claimer) -> Iterator[None]:
    claims = held([*rows(worker), *rows(worker, **TAKEN_BACK)])
    yield
    worker.run_pass(releases=claims)


def claim(worker: Claimer) -> Iterator[None]:
    rows(worker)
    rows(worker)
    yield
    worker.run_pass(wanted=Wanted(sync=1, prefetch=9, lease=LEASE))


def claim_too_late(worker: Claimer) -> Iterator[None]:
    rows(worker, **LATE)
    yield
    worker.run_pass(sync=9)


def start(worker: Claimer) -> Iterator[None]:
    limit("default", max_concurrency=3)  # two run already: one more may, and one goes back
    claims = held([*rows(worker), *rows(worker)])
    yield
    worker.run_pass(starts=claims)


def start_too_late(worker: Claimer) -> Iterator[None]:
    claims = held(rows(worker, **LATE))
    yield
    worker.run_pass(starts=claims)


def lapse(worker: Claimer) -> Iterator[None]:
    rows(worker, claim_expires_at=aware(seconds=-1))
    yield
    worker.run_pass(expired_leases=True)


def cancel(worker: Claimer) -> Iterator[None]:
    ids = [task.id for task in rows(worker)]
    yield
    worker.store.cancel(ids, worker.channel, terminate=True)


def rescue(worker: Claimer) -> Iterator[None]:
    rows(worker)
    rows(worker, **RETRIES)
    yield
    WorkerStore(worker.conn).reap(dt.timedelta(seconds=2), judge=True, many=99)


def retry(worker: Claimer) -> Iterator[None]:
    ids = [task.id for task in rows(worker)]
    yield
    for id_ in ids:
        worker.store.retry(id_, worker.channel)


EXPIRED_IN_THE_BUFFER = {("CLAIMED", "EXPIRED")}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (settle, allowed("settle")),
        (settle_and_claim_shortly, {("RUNNING", "COMPLETED"), ("RUNNING", "CANCELLED"), ("PENDING", "RUNNING")}),
        (release, allowed("release")),
        (claim, allowed("claim")),
        (claim_too_late, allowed("expire") - EXPIRED_IN_THE_BUFFER),
        (start, allowed("start", "refuse")),
        (start_too_late, EXPIRED_IN_THE_BUFFER),
        (lapse, allowed("lapse")),
        (cancel, allowed("cancel")),
        (retry, allowed("retry")),
        (rescue, allowed("rescue", "lapse")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_of_tasks_of_every_status_a_statement_moves_those_that_it_may_and_touches_no_other(
    claimer: Claimers, statement: Callable[[Claimer], Iterator[None]], expected: Moves
) -> None:
    steps = statement(claimer())
    next(steps)
    before = table()
    assert next(steps, "over") == "over"
    after = table()
    moved = {id_ for id_, row in before.items() if after[id_]["status"] != row["status"]}
    assert {(before[id_]["status"], after[id_]["status"]) for id_ in moved} == expected
    asked_to_end = {"cancel_requested_at", "terminate"} if statement is cancel else set()
    touched = {name for id_ in before.keys() - moved for name in before[id_] if before[id_][name] != after[id_][name]}
    assert touched == asked_to_end


def table() -> dict[uuid.UUID, dict[str, Any]]:
    return {row["id"]: row for row in Task.objects.values()}
