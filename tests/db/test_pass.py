"""The pass on the real database: order, fencing, expiry, and what other sessions may not disturb."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.utils import timezone

from horsies_django.core.options import options_text
from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.core.retry import RetryPolicy
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import Held
from tests.conftest import put
from tests.db.conftest import Claimers, Connect, heard, impatient
from tests.support.factories import TaskAttemptFactory, TaskFactory, error

pytestmark = pytest.mark.django_db(transaction=True)


def done(claim: Claim, status: str = "COMPLETED", **columns: Any) -> Outcome:
    return Outcome(claim.id, claim.generation, status, '{"ok": 1}', child_pid=42, **columns)


def failed(claim: Claim, code: str = "BROKEN", **columns: Any) -> Outcome:
    return Outcome(claim.id, claim.generation, "FAILED", json.dumps(error(code)), code, "broken", **columns)


def aware(**delta: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(**delta)


@pytest.mark.promise("S2.10")
def test_a_claim_starts_a_task_and_a_settle_writes_result_and_attempt(claimer: Claimers) -> None:
    (id_,) = put(kwargs=['{"a": 1}'])
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    task = Task.objects.get(pk=id_)
    assert task.claimed_at is not None
    sent_at, due_in = task.sent_at.timestamp(), (task.enqueued_at - task.claimed_at).total_seconds()
    assert claim == Claim(
        id_, 1, "sync", "tests.nothing", '{"a": 1}', queue_name="default", sent_at=sent_at, due_in=due_in
    )
    assert (task.status, task.claimed_by, task.claim_generation) == ("RUNNING", worker.id, 1)
    assert task.claimed_at == task.started_at is not None
    assert worker.store.held(worker.id) == [Held(id_, 1, running=True, cancelled=False, terminate=False)]
    assert worker.run_pass(outcomes=[done(claim)]).landed == {id_}
    task, attempt = Task.objects.get(pk=id_), TaskAttempt.objects.get(task_id=id_)
    assert (task.status, task.result, task.error_code) == ("COMPLETED", {"ok": 1}, None)
    assert (attempt.attempt, attempt.outcome, attempt.claim_generation) == (1, "COMPLETED", 1)
    assert (attempt.worker_id, attempt.child_pid) == (worker.id, 42)
    assert (attempt.started_at, attempt.finished_at) == (task.started_at, task.finished_at)
    moments = [task.enqueued_at, task.sent_at, task.started_at, task.finished_at]
    assert moments == sorted(moments)
    assert abs((timezone.now() - task.finished_at).total_seconds()) < 60
    assert worker.store.held(worker.id) == []


def test_a_task_that_was_neither_snoozed_nor_retried_nor_ordered_stores_nothing_for_it(claimer: Claimers) -> None:
    """Naive: zeros, which each of its rows writes again."""
    put()
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    worker.run_pass(outcomes=[done(claim)])
    unused = ("snooze_count", "attempts_before", "ordered", "order_stop", "merged_into")
    assert Task.objects.values_list(*unused).get() == (None,) * len(unused)


def test_a_failure_of_an_older_claim_puts_nothing_back_that_the_newest_one_completed(claimer: Claimers) -> None:
    """Naive: what is retried is found by its id, when another task of the batch is retried."""
    options = options_text(RetryPolicy.fixed([60], auto_retry_for=["OH_NO"]), None)
    put(2, max_retries=1, options=options)
    worker = claimer()
    first, second = worker.run_pass(sync=2).claims
    Task.objects.filter(pk=first.id).update(claim_generation=2)
    failed = {"error_code": "OH_NO", "error_message": "it broke"}
    older, newest = done(first, "FAILED", **failed), done(first._replace(generation=2))
    worker.run_pass(outcomes=[older, newest, done(second, "FAILED", **failed)])
    assert dict(Task.objects.values_list("id", "status")) == {first.id: "COMPLETED", second.id: "PENDING"}
    assert sorted(TaskAttempt.objects.values_list("claim_generation", "outcome")) == [(1, "FAILED"), (2, "COMPLETED")]


def test_attempts_belong_to_claims_so_that_two_claims_may_run_the_same_attempt(claimer: Claimers) -> None:
    put()
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    TaskAttemptFactory(task_id=claim.id, attempt=1, claim_generation=claim.generation + 7)
    assert worker.run_pass(outcomes=[done(claim)]).landed == {claim.id}
    assert sorted(TaskAttempt.objects.values_list("attempt", "claim_generation")) == [(1, 1), (1, 8)]


@pytest.mark.promise("S0.35", "S0.37", "S1.42", "S2.7")
def test_claims_come_by_queue_priority_then_task_priority_then_time(claimer: Claimers) -> None:
    late, early = aware(seconds=-1), aware(seconds=-2)
    last = put(queue="bulk", due_at=late)
    twin = put(queue="twin", due_at=early)  # queues of one priority share one order
    bulk = put(queue="bulk", priority=1, due_at=late)
    low = put(queue="mail", priority=90, due_at=early)
    second = put(queue="mail", priority=10, due_at=late)
    first = put(queue="mail", priority=10, due_at=early)
    worker = claimer(mail=1, bulk=50, twin=50)
    assert [claim.id for claim in worker.run_pass(sync=5).claims] == first + second + low + bulk + twin
    assert [claim.id for claim in worker.run_pass(sync=5).claims] == last


@pytest.mark.promise("S0.21")
def test_each_lane_takes_what_it_has_slots_for(claimer: Claimers) -> None:
    sync, async_ = put(3), put(3, lane="async")
    claims = claimer().run_pass(sync=1, async_=2).claims
    assert {claim.id for claim in claims} == {sync[0], *async_[:2]}


def test_a_claim_that_meets_a_late_task_starts_no_more_than_it_has_slots_for(claimer: Claimers) -> None:
    for lane in ("sync", "async"):
        put(lane=lane, good_until=aware(seconds=-1))
        first, _second, _third = put(3, lane=lane)
        slots = {"sync": 0, "async_": 0, "sync" if lane == "sync" else "async_": 1}
        assert [claim.id for claim in claimer().run_pass(**slots).claims] == [first]


@pytest.mark.promise("S0.36", "S2.7")
def test_a_claim_takes_only_what_every_condition_lets_through(claimer: Claimers, connect: Connect) -> None:
    put(queue="bulk")
    put(due_at=aware(hours=1))
    put(good_until=aware(seconds=-1))
    held, wanted = put(2, good_until=aware(hours=1))
    for status in ("CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"):
        TaskFactory(status=status)
    worker, other = impatient(claimer()), connect()
    with other.transaction():
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        (claim,) = worker.run_pass(wanted=Wanted(prefetch=20, lease=dt.timedelta(minutes=1))).prefetched
    task = Task.objects.get(pk=wanted)
    assert (claim.id, task.status, task.claimed_by) == (wanted, "CLAIMED", worker.id)
    assert abs((timezone.now() - task.claimed_at).total_seconds()) < 60


@pytest.mark.promise("S0.1", "S0.2", "S1.1", "S1.48", "S2.22")
def test_two_claimers_never_get_the_same_task_and_keep_the_order_of_sending(claimer: Claimers) -> None:
    """The second one claims while the transaction of the first one is open, and does not wait for it."""
    ids = put(20)
    first, second = claimer(), impatient(claimer())
    with first.conn.transaction():
        mine = [claim.id for claim in first.run_pass(sync=7).claims]
        others = [claim.id for claim in second.run_pass(sync=20).claims]
    assert (mine, others) == (ids[:7], ids[7:])


def test_a_pass_says_when_the_next_task_is_due_although_another_queue_has_work(claimer: Claimers) -> None:
    (now,) = put(queue="mail")
    put(queue="bulk", delay=dt.timedelta(hours=1))
    put(queue="bulk", priority=5, delay=dt.timedelta(minutes=5))
    worker = claimer(mail=1, bulk=50)
    for expected in ([now], []):
        passed = worker.run_pass(sync=5, async_=5)
        assert [claim.id for claim in passed.claims] == expected
        assert 290 < (passed.due_in or 0) <= 300


@pytest.mark.promise("S2.7", "S2.8")
def test_tasks_past_their_good_until_expire_at_the_claim_and_never_run_and_hide_no_good_one(claimer: Claimers) -> None:
    late = put(1_200, good_until=aware(seconds=-1))
    (fine,) = put(good_until=aware(hours=1))
    worker = claimer()
    passed = worker.run_pass(sync=1)
    (claim,) = passed.claims
    assert (claim.id, set(passed.expired)) == (fine, set(late))
    task = Task.objects.get(pk=late[0])
    assert (task.status, task.error_code) == ("EXPIRED", "TASK_EXPIRED")
    assert task.result["err"]["error_code"] == "TASK_EXPIRED"
    assert not TaskAttempt.objects.exists()
    Task.objects.filter(pk=fine).update(good_until=aware(seconds=-1))
    worker.run_pass(outcomes=[done(claim)])
    assert Task.objects.get(pk=fine).status == "COMPLETED", "one that runs by then finishes as usual"


def test_a_settle_counts_once_and_only_under_its_claim_by_its_worker(claimer: Claimers) -> None:
    (id_,) = put()
    worker, zombie = claimer(), claimer()
    (claim,) = worker.run_pass(sync=1).claims
    assert worker.run_pass(outcomes=[done(claim._replace(generation=2))]).landed == set()
    assert zombie.run_pass(outcomes=[done(claim)]).landed == set()
    assert Task.objects.get(pk=id_).status == "RUNNING"
    assert worker.store.unsettled(worker.id, [claim]) == {id_: "held"}
    assert zombie.store.unsettled(zombie.id, [claim]) == {id_: "lost"}
    assert [worker.run_pass(outcomes=[done(claim)]).landed for _ in range(2)] == [{id_}, set()]
    assert worker.store.unsettled(worker.id, [claim]) == {id_: "settled"}
    assert zombie.store.unsettled(zombie.id, [claim]) == {id_: "lost"}  # one that lost a claim of this number
    assert TaskAttempt.objects.filter(task_id=id_).count() == 1


def test_a_release_gives_the_task_back_in_its_place_and_wakes_workers(claimer: Claimers, connect: Connect) -> None:
    first, second = put(2, queue="mail")
    worker, listener = claimer(mail=1), connect()
    (claim,) = worker.run_pass(sync=1).claims
    listener.execute(f"LISTEN {worker.channel}_new")
    passed = worker.run_pass(sync=1, releases=[claim])
    assert passed.landed == {first}
    assert [(item.id, item.generation) for item in passed.claims] == [(first, 2)]
    assert not TaskAttempt.objects.exists()
    assert Task.objects.get(pk=second).status == "PENDING"
    assert [told.split(" ")[1] for told in heard(listener)] == ["mail"]


def test_a_release_under_another_claim_leaves_the_task_to_whom_it_runs(claimer: Claimers) -> None:
    (id_,) = put()
    worker, zombie = claimer(), claimer()
    (older,) = worker.run_pass(sync=1).claims
    (newer,) = worker.run_pass(sync=1, releases=[older]).claims
    assert (newer.id, newer.generation) == (id_, older.generation + 1)
    assert worker.run_pass(releases=[older]).landed == set()
    assert zombie.run_pass(releases=[newer]).landed == set()
    task = Task.objects.get(pk=id_)
    assert (task.status, task.claimed_by, task.claim_generation) == ("RUNNING", worker.id, newer.generation)
    assert worker.run_pass(releases=[newer]).landed == {id_}
