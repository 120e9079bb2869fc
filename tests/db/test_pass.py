"""The pass on the real database: order, fencing, expiry, and what other sessions may not disturb."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import Held
from tests.conftest import Claimer, put
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]


def done(claim: Claim, status: str = "COMPLETED", **columns: Any) -> Outcome:
    return Outcome(claim.id, claim.generation, status, '{"ok": 1}', child_pid=42, **columns)


def aware(**delta: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(**delta)


def test_a_claim_starts_the_task_under_a_new_generation(claimer: Claimers) -> None:
    (id_,) = put(kwargs=['{"a": 1}'])
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    task = Task.objects.get(pk=id_)
    assert claim == Claim(id_, 1, "sync", "tests.nothing", '{"a": 1}', queue_name="default")
    assert (task.status, task.claimed_by, task.claim_generation) == ("RUNNING", worker.id, 1)
    assert task.claimed_at == task.started_at is not None


@pytest.mark.promise("S0.35", "S0.37", "S1.42", "S2.7")
def test_claims_come_by_queue_priority_then_task_priority_then_time(claimer: Claimers) -> None:
    late, early = aware(seconds=-1), aware(seconds=-2)
    bulk = put(queue="bulk", priority=1, due_at=early)
    low = put(queue="mail", priority=90, due_at=early)
    second = put(queue="mail", priority=10, due_at=late)
    first = put(queue="mail", priority=10, due_at=early)
    claims = claimer(mail=1, bulk=50).run_pass(sync=10).claims
    assert [claim.id for claim in claims] == first + second + low + bulk


@pytest.mark.promise("S0.1", "S0.2", "S1.1")
def test_tasks_of_one_transaction_keep_the_order_in_which_they_were_sent(claimer: Claimers) -> None:
    ids = put(50)
    assert [claim.id for claim in claimer().run_pass(sync=50).claims] == ids


def test_queues_of_one_priority_share_one_order(claimer: Claimers) -> None:
    third = put(queue="bulk", due_at=aware(seconds=-1))
    first = put(queue="twin", due_at=aware(seconds=-3))
    second = put(queue="bulk", due_at=aware(seconds=-2))
    worker = claimer(bulk=50, twin=50)
    assert [claim.id for claim in worker.run_pass(sync=2).claims] == first + second
    assert [claim.id for claim in worker.run_pass(sync=2).claims] == third


@pytest.mark.promise("S0.21")
def test_each_lane_takes_what_it_has_slots_for(claimer: Claimers) -> None:
    sync, async_ = put(3), put(3, lane="async")
    claims = claimer().run_pass(sync=1, async_=2).claims
    assert {claim.id for claim in claims} == {sync[0], *async_[:2]}


@pytest.mark.promise("S0.36")
def test_a_row_that_somebody_holds_is_skipped_without_waiting(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    held, free = put(2)
    other = connect()
    with other.transaction():
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        assert [claim.id for claim in claimer().run_pass(sync=2).claims] == [free]


@pytest.mark.promise("S2.7")
def test_of_all_tasks_a_claim_takes_only_the_one_that_every_condition_lets_through(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    put(queue="bulk")
    put(due_at=aware(hours=1))
    put(good_until=aware(seconds=-1))
    held, wanted = put(2, good_until=aware(hours=1))
    for status in ("CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"):
        TaskFactory(status=status)
    worker, other = claimer(), connect()
    with other.transaction():
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        (claim,) = worker.run_pass(wanted=Wanted(prefetch=20, lease=dt.timedelta(minutes=1))).prefetched
    task = Task.objects.get(pk=wanted)
    assert (claim.id, task.status, task.claimed_by) == (wanted, "CLAIMED", worker.id)
    assert abs((timezone.now() - task.claimed_at).total_seconds()) < 60


@pytest.mark.promise("S1.48", "S2.22")
def test_two_claimers_never_get_the_same_task(claimer: Claimers) -> None:
    """The second one claims while the transaction of the first one is open, and does not wait for it."""
    ids = put(20)
    first, second = claimer(), claimer()
    second.conn.execute("SET lock_timeout = '5s'")
    with first.conn.transaction():
        mine = [claim.id for claim in first.run_pass(sync=7).claims]
        others = [claim.id for claim in second.run_pass(sync=20).claims]
    assert (mine, others) == (ids[:7], ids[7:])


@pytest.mark.promise("S1.48", "S2.22")
def test_eight_claimers_at_once_get_each_task_once_and_leave_none(claimer: Claimers) -> None:
    ids = put(4_000)
    workers = [claimer() for _ in range(8)]
    barrier = threading.Barrier(len(workers))

    def drain(worker: Claimer) -> list[uuid.UUID]:
        barrier.wait(30)
        got: list[uuid.UUID] = []
        while claims := worker.run_pass(sync=7).claims:
            got += [claim.id for claim in claims]
        return got

    with ThreadPoolExecutor(len(workers)) as threads:
        shares = list(threads.map(drain, workers))
    assert sorted(id_ for share in shares for id_ in share) == sorted(ids)
    assert set(Task.objects.values_list("status", "claim_generation")) == {("RUNNING", 1)}


def test_a_task_due_later_is_not_claimed_and_the_pass_says_when_it_is_due(claimer: Claimers) -> None:
    put(delay=dt.timedelta(hours=1))
    put(priority=5, delay=dt.timedelta(minutes=5))
    passed = claimer().run_pass(sync=5, async_=5)
    assert passed.claims == []
    assert passed.due_in is not None
    assert 290 < passed.due_in <= 300


def test_a_due_time_in_one_queue_is_told_although_another_had_work(claimer: Claimers) -> None:
    put(queue="mail")
    put(queue="bulk", delay=dt.timedelta(minutes=5))
    passed = claimer(mail=1, bulk=50).run_pass(sync=5)
    assert len(passed.claims) == 1
    assert passed.due_in is not None


@pytest.mark.promise("S2.7", "S2.8")
def test_a_task_past_its_good_until_expires_at_the_claim_and_never_runs(claimer: Claimers) -> None:
    (late,) = put(good_until=aware(seconds=-1))
    (fine,) = put(good_until=aware(hours=1))
    passed = claimer().run_pass(sync=5)
    assert [claim.id for claim in passed.claims] == [fine]
    assert passed.expired == [late]
    task = Task.objects.get(pk=late)
    assert (task.status, task.error_code, task.result["err"]["error_code"]) == (
        "EXPIRED",
        "TASK_EXPIRED",
        "TASK_EXPIRED",
    )
    assert not TaskAttempt.objects.filter(task_id=late).exists()


def test_a_task_whose_good_until_passes_while_it_runs_finishes_as_usual(claimer: Claimers) -> None:
    worker = claimer()
    (id_,) = put(1, good_until=aware(days=1))
    (claim,) = worker.run_pass(sync=1).claims
    Task.objects.filter(pk=id_).update(good_until=aware(days=-1))
    worker.run_pass(outcomes=[done(claim)])
    assert Task.objects.get(pk=id_).status == "COMPLETED"


def test_many_expired_tasks_in_front_do_not_hide_the_next_good_one(claimer: Claimers) -> None:
    put(1200, good_until=aware(seconds=-1))
    (fine,) = put()
    passed = claimer().run_pass(sync=1)
    assert [claim.id for claim in passed.claims] == [fine]
    assert len(passed.expired) == 1200


@pytest.mark.promise("S2.10")
def test_settle_writes_result_and_attempt_together(claimer: Claimers) -> None:
    (id_,) = put()
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    assert worker.run_pass(outcomes=[done(claim)]).landed == {id_}
    task, attempt = Task.objects.get(pk=id_), TaskAttempt.objects.get(task_id=id_)
    assert (task.status, task.result, task.error_code) == ("COMPLETED", {"ok": 1}, None)
    assert (attempt.attempt, attempt.outcome, attempt.claim_generation) == (1, "COMPLETED", 1)
    assert (attempt.worker_id, attempt.child_pid) == (worker.id, 42)
    assert attempt.started_at == task.started_at
    assert attempt.finished_at == task.finished_at


@pytest.mark.promise("S2.6")
def test_one_pass_settles_and_claims_the_replacement(claimer: Claimers) -> None:
    first, second = put(2)
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    passed = worker.run_pass(sync=1, outcomes=[done(claim)])
    assert (passed.landed, [item.id for item in passed.claims]) == ({first}, [second])


def test_a_settle_with_another_generation_or_worker_changes_nothing(claimer: Claimers) -> None:
    (id_,) = put()
    worker, zombie = claimer(), claimer()
    (claim,) = worker.run_pass(sync=1).claims
    assert worker.run_pass(outcomes=[done(claim._replace(generation=2))]).landed == set()
    assert zombie.run_pass(outcomes=[done(claim)]).landed == set()
    assert Task.objects.get(pk=id_).status == "RUNNING"
    assert worker.store.unsettled(worker.id, [claim]) == {id_: "held"}
    assert zombie.store.unsettled(zombie.id, [claim]) == {id_: "lost"}


def test_a_settle_that_was_repeated_is_told_from_one_that_was_lost(claimer: Claimers) -> None:
    (id_,) = put()
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    worker.run_pass(outcomes=[done(claim)])
    assert worker.run_pass(outcomes=[done(claim)]).landed == set()
    assert worker.store.unsettled(worker.id, [claim]) == {id_: "settled"}
    assert worker.store.unsettled(claimer().id, [claim]) == {id_: "lost"}  # one that lost a claim of this number
    assert TaskAttempt.objects.filter(task_id=id_).count() == 1


def test_a_settle_never_waits_for_a_row_that_somebody_holds(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    put(2)
    worker = claimer()
    held, free = worker.run_pass(sync=2).claims
    other = connect()
    with other.transaction():
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [held.id])
        assert worker.run_pass(outcomes=[done(held), done(free)]).landed == {free.id}
        assert worker.store.unsettled(worker.id, [held]) == {held.id: "held"}
    assert worker.run_pass(outcomes=[done(held)]).landed == {held.id}


def test_a_release_gives_the_task_back_in_its_old_place_without_an_attempt(claimer: Claimers) -> None:
    first, second = put(2)
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    passed = worker.run_pass(sync=1, releases=[claim])
    assert passed.landed == {first}
    assert [(item.id, item.generation) for item in passed.claims] == [(first, 2)]
    assert not TaskAttempt.objects.exists()
    assert Task.objects.get(pk=second).status == "PENDING"


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


def test_a_release_wakes_the_workers_of_its_queue(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    put(queue="mail")
    worker = claimer(mail=1)
    (claim,) = worker.run_pass(sync=1).claims
    listener = connect()
    listener.execute(f"LISTEN {worker.channel}_new")
    worker.run_pass(releases=[claim])
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    assert heard.payload.split(" ")[1] == "mail"


def test_a_release_ends_a_task_that_somebody_asked_to_end_and_tells_who_waits(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    (id_,) = put()
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    assert worker.store.cancel([id_], worker.channel, terminate=False) == {id_: "REQUESTED"}
    listener = connect()
    listener.execute(f"LISTEN {worker.channel}_done")
    listener.execute(
        "INSERT INTO horsies_waiters (id, expires_at) VALUES (gen_random_uuid(), now() + interval '1 min')"
    )
    passed = worker.run_pass(sync=1, releases=[claim])
    assert (passed.landed, passed.claims) == ({id_}, [])
    task = Task.objects.get(pk=id_)
    assert (task.status, task.error_code, task.claimed_by) == ("CANCELLED", "TASK_CANCELLED", None)
    assert not TaskAttempt.objects.exists()
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    assert heard.payload == str(id_)


def test_the_database_lists_what_a_worker_holds(claimer: Claimers) -> None:
    put(3)
    worker = claimer()
    claims = worker.run_pass(sync=2).claims
    assert worker.store.held(worker.id) == [
        Held(claim.id, 1, running=True, cancelled=False, terminate=False) for claim in claims
    ]
    assert claimer().store.held(uuid.uuid4()) == []


def test_finished_tasks_are_announced_only_while_somebody_waits(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    worker, listener = claimer(), connect()
    listener.execute(f"LISTEN {worker.channel}_done")
    put(450)
    worker.run_pass(outcomes=[done(claim) for claim in worker.run_pass(sync=100).claims])
    with connect() as waiter:
        waiter.execute("INSERT INTO horsies_waiters VALUES (gen_random_uuid(), now() + interval '1 minute')")
    claims = worker.run_pass(sync=350).claims
    worker.run_pass(outcomes=[done(claim) for claim in claims])
    heard = [item.payload.split() for item in listener.notifies(timeout=10, stop_after=2)]
    assert sorted(len(ids) for ids in heard) == [150, 200]
    assert {id_ for ids in heard for id_ in ids} == {str(claim.id) for claim in claims}


def test_a_poisoned_result_fails_its_whole_pass_and_leaves_the_tasks_running(claimer: Claimers) -> None:
    put(2)
    worker = claimer()
    good, bad = worker.run_pass(sync=2).claims
    with pytest.raises(psycopg.DataError):
        worker.run_pass(outcomes=[done(good), done(bad)._replace(result='{"ok": "\\u0000"}')])
    assert set(Task.objects.values_list("status", flat=True)) == {"RUNNING"}


def test_times_come_from_the_database_in_the_order_of_events(claimer: Claimers) -> None:
    put()
    worker = claimer()
    worker.run_pass(outcomes=[done(claim) for claim in worker.run_pass(sync=1).claims])
    task = Task.objects.get()
    moments = [task.enqueued_at, task.sent_at, task.started_at, task.finished_at]
    assert moments == sorted(moments)
    assert abs((timezone.now() - task.finished_at).total_seconds()) < 60
