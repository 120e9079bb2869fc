"""Cancel meets passes, settles and other cancels: exactly one takes effect, nobody deadlocks, and what is over stays as it is."""

from __future__ import annotations

import random
import uuid
from typing import Any

import psycopg
import pytest

from horsies_django.core.records import Wanted
from horsies_django.core.status import TERMINAL
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import operations
from tests.conftest import Claimer, put
from tests.db.conftest import Aside, Claimers, Connect, impatient, wait_for_waiting
from tests.db.test_caps_soft import LEASE
from tests.db.test_pass import done
from tests.support.factories import FINISHED, TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(claimer: Claimers) -> Claimer:
    return impatient(claimer())


def row(id_: uuid.UUID) -> Task:
    return Task.objects.get(pk=id_)


def test_a_cancel_amid_a_claim_waits_and_finds_a_task_running(worker: Claimer, connect: Connect, aside: Aside) -> None:
    (id_,) = put()
    other, watcher = connect(), connect()
    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        cancel = aside(TaskStore(other).cancel, [id_], worker.channel, terminate=False)
        wait_for_waiting(watcher, other)
    assert cancel.result() == {id_: "REQUESTED"}
    assert worker.run_pass(outcomes=[done(claim)]).landed == {id_}
    assert row(id_).status == "COMPLETED"


def test_a_cancel_that_waits_ends_the_task_after_it_got_the_row_and_not_when_it_asked_for_it(
    connect: Connect, aside: Aside, worker: Claimer
) -> None:
    (id_,) = put()
    somebody, other, watcher = connect(), connect(), connect()
    with somebody.transaction():
        somebody.execute("SELECT FROM horsies_tasks WHERE id = %s FOR NO KEY UPDATE", [id_])
        cancel = aside(TaskStore(other).cancel, [id_], worker.channel, terminate=False)
        wait_for_waiting(watcher, other)
        (unlocked,) = watcher.execute("SELECT clock_timestamp()").fetchall()[0]
    assert cancel.result() == {id_: "CANCELLED"}
    query = "SELECT finished_at, cancel_requested_at FROM horsies_tasks WHERE id = %s"
    finished, requested = watcher.execute(query, [id_]).fetchall()[0]
    assert finished >= unlocked
    assert requested == finished


@pytest.mark.parametrize("how", ["waits", "is claimed ahead"])
def test_a_cancel_ends_what_has_not_started_and_its_claim_starts_nothing(worker: Claimer, how: str) -> None:
    (id_,) = put()
    ahead = []
    if how == "is claimed ahead":
        ahead = worker.run_pass(wanted=Wanted(prefetch=1, lease=LEASE)).prefetched
    assert operations.cancel([id_]) == {id_: "CANCELLED"}
    passed = worker.run_pass(sync=1, starts=ahead)
    assert (passed.started, passed.claims) == ([], [])
    task = row(id_)
    assert (task.status, task.error_code) == ("CANCELLED", "TASK_CANCELLED")
    assert task.result
    assert task.result["err"]["error_code"] == "TASK_CANCELLED"
    assert task.finished_at == task.cancel_requested_at is not None


def test_a_cancel_of_what_is_over_changes_nothing() -> None:
    ids = {TaskFactory(status=status).pk for status in FINISHED}
    before = list(Task.objects.order_by("id").values())
    assert operations.cancel(ids, terminate=True) == dict.fromkeys(ids, "FINISHED")
    assert list(Task.objects.order_by("id").values()) == before


def test_cancels_of_the_same_tasks_in_any_order_never_deadlock(worker: Claimer, connect: Connect, aside: Aside) -> None:
    """Naive: rows locked in the order in which they were named. Two that name them the other way round deadlock."""
    ids = put(60)

    def cancel(conn: psycopg.Connection[Any], seed: int) -> None:
        order = random.Random(seed)
        for _ in range(40):
            TaskStore(conn).cancel(order.sample(ids, 30), worker.channel, terminate=False)

    cancels = [aside(cancel, connect(), seed) for seed in range(3)]
    claims = worker.run_pass(sync=5).claims
    while claims or not all(one.done() for one in cancels):
        passed = worker.run_pass(sync=5, outcomes=[done(claim) for claim in claims])
        claims = [claim for claim in claims if claim.id not in passed.landed] + passed.claims
    for one in cancels:
        one.result()
    assert {task.status for task in Task.objects.filter(pk__in=ids)} <= TERMINAL
    assert TaskAttempt.objects.count() == Task.objects.filter(status="COMPLETED").count()
