"""Soft mode: tasks taken ahead wait CLAIMED under a lease, and are looked at again before they start."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.models import Task
from horsies_django.worker.engine.capacity import capacity
from horsies_django.worker.process.options import WorkerOptions
from tests.conftest import Claimer, limit, put
from tests.db.test_pass import aware, done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
LEASE = dt.timedelta(minutes=5)


def ahead(worker: Claimer, count: int = 1) -> list[Claim]:
    """Take tasks ahead."""
    return worker.run_pass(wanted=Wanted(prefetch=count, lease=LEASE)).prefetched


def change(**columns: Any) -> None:
    """Change all claimed tasks, as time or somebody else would have."""
    Task.objects.filter(status="CLAIMED").update(**columns)


def status(claim: Claim) -> str:
    return str(Task.objects.get(pk=claim.id).status)


@pytest.mark.promise("S2.7")
def test_a_task_taken_ahead_is_claimed_under_a_lease_and_has_not_started(claimer: Claimers) -> None:
    put(3)
    worker = claimer()
    passed = worker.run_pass(wanted=Wanted(sync=1, prefetch=1, lease=LEASE))
    (claim,) = passed.prefetched
    task = Task.objects.get(pk=claim.id)
    assert (len(passed.claims), status(passed.claims[0])) == (1, "RUNNING")
    assert (task.status, task.claimed_by, task.claim_generation, task.started_at) == ("CLAIMED", worker.id, 1, None)
    assert task.claim_expires_at - task.claimed_at == LEASE


def test_a_start_runs_what_is_still_ours_in_the_order_in_which_it_is_asked(claimer: Claimers) -> None:
    put(3)
    worker = claimer()
    first, second, third = ahead(worker, 3)
    assert worker.run_pass(starts=[third, first]).started == [third.id, first.id]
    task = Task.objects.get(pk=first.id)
    assert (task.status, task.claim_expires_at) == ("RUNNING", None)
    assert task.started_at is not None
    assert status(second) == "CLAIMED"
    assert worker.run_pass(outcomes=[done(first)]).landed == {first.id}


@pytest.mark.promise("S0.4", "S1.4")
@pytest.mark.parametrize("lost", ["another owner", "another generation", "the lease", "the task"])
def test_a_claim_that_is_not_ours_any_more_never_starts(claimer: Claimers, lost: str) -> None:
    put()
    worker, other = claimer(), claimer()
    (claim,) = ahead(worker)
    if lost == "another owner":
        change(claimed_by=other.id)
    elif lost == "another generation":
        change(claim_generation=2)
    elif lost == "the lease":
        change(claim_expires_at=aware(seconds=-1))
    else:
        Task.objects.all()._raw_delete("default")
    passed = worker.run_pass(starts=[claim])
    assert (passed.started, passed.returned, passed.expired) == ([], [], [])
    assert not Task.objects.exclude(status="CLAIMED").exists()


@pytest.mark.promise("S2.8")
def test_a_task_that_its_good_until_overtook_in_the_buffer_expires(claimer: Claimers) -> None:
    put(2)
    worker = claimer()
    late, fine = ahead(worker, 2)
    Task.objects.filter(pk=late.id).update(good_until=aware(seconds=-1))
    passed = worker.run_pass(starts=[late, fine])
    assert (passed.expired, passed.started, passed.returned) == ([late.id], [fine.id], [])
    assert (status(late), Task.objects.get(pk=late.id).error_code) == ("EXPIRED", "TASK_EXPIRED")


@pytest.mark.promise("S0.3", "S0.26", "S1.3", "S1.44")
def test_a_cap_counts_what_runs_and_the_start_gives_back_what_has_no_room(claimer: Claimers) -> None:
    worker, other = claimer(), claimer()
    limit("default", max_concurrency=2)
    put(8)
    mine, others = ahead(worker, 2), ahead(other, 2)
    assert (len(mine), len(others)) == (2, 2)  # more than the cap, for as long as none of them runs
    assert len(other.run_pass(wanted=Wanted(sync=1, lease=LEASE)).claims) == 1
    passed = worker.run_pass(starts=mine)
    assert (passed.started, passed.returned) == ([mine[0].id], [mine[1].id])
    assert other.run_pass(starts=others).returned == [claim.id for claim in others]
    assert Task.objects.filter(status="RUNNING").count() == 2
    back = Task.objects.get(pk=mine[1].id)
    assert (back.status, back.claimed_by, back.claimed_at, back.claim_expires_at) == ("PENDING", None, None, None)


@pytest.mark.parametrize(
    "columns", [{"max_concurrency": 0}, {"paused_at": "now", "paused_by": "x"}, {"local_limit": 1}]
)
def test_a_pause_or_a_limit_of_the_worker_holds_at_the_start_too(claimer: Claimers, columns: dict[str, Any]) -> None:
    put(3)
    worker = claimer()
    assert len(worker.run_pass(sync=1).claims) == 1
    claims = ahead(worker, 2)
    limit("default", **columns)
    assert worker.run_pass(starts=claims).returned == [claim.id for claim in claims]
    assert Task.objects.filter(status="RUNNING").count() == 1


def test_a_partition_that_filled_up_since_gets_its_tasks_back(claimer: Claimers) -> None:
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    put(2, kwargs=['{"a": 1}', '{"a": 2}'])
    worker, other = claimer(), claimer()
    one, two = ahead(worker, 2)
    put(kwargs=['{"a": 1}'])
    assert len(other.run_pass(wanted=Wanted(sync=1, lease=LEASE)).claims) == 1
    passed = worker.run_pass(starts=[one, two])
    assert (passed.returned, passed.started) == ([one.id], [two.id])


def test_what_one_worker_has_taken_ahead_keeps_no_permit_of_a_partition_from_another(claimer: Claimers) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(4, kwargs=['{"tenant": "a"}'] * 4)
    busy, idle = claimer(), claimer()
    (claim,) = ahead(busy, 2)
    assert not Task.objects.filter(parked=True).exists()
    (started,) = idle.run_pass(wanted=Wanted(sync=2, prefetch=2, lease=LEASE)).claims
    assert (busy.run_pass(starts=[claim]).returned, Task.objects.filter(parked=True).count()) == ([claim.id], 2)
    (next_,) = idle.run_pass(sync=1, outcomes=[done(started)]).claims
    assert next_.id == claim.id


def test_what_a_pass_took_ahead_counts_in_its_next_round(claimer: Claimers) -> None:
    put(4, kwargs=['{"tenant": "a"}'] * 4)
    limit(
        "default", partition_by_args=["tenant"], partition_max_concurrency=1
    )  # no row says yet that it is of the same one
    assert len(ahead(claimer(), 2)) == 1


def test_a_task_that_expires_in_the_buffer_does_not_strand_the_parked_ones_behind_it(claimer: Claimers) -> None:
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    put(3, kwargs=['{"a": 1}'] * 3)
    worker, other = claimer(), claimer()
    (claim,) = ahead(worker, 2)
    change(good_until=aware(seconds=-1))
    assert worker.run_pass(starts=[claim]).expired == [claim.id]
    assert len(other.run_pass(sync=1).claims) == 1


def test_the_start_goes_by_the_partition_rule_in_force(claimer: Claimers) -> None:
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    put(kwargs=['{"a": 1, "b": 7}'])
    put(kwargs=['{"a": 2, "b": 7}'])
    worker = claimer()
    one, two = ahead(worker, 2)
    limit("default", partition_by_args=["b"])
    passed = worker.run_pass(starts=[one, two])
    assert (passed.started, passed.returned) == ([one.id], [two.id])


def test_starts_and_claims_of_one_pass_share_the_same_room(claimer: Claimers) -> None:
    limit("default", max_concurrency=2)
    put(9)
    worker = claimer()
    claims = ahead(worker, 2)
    passed = worker.run_pass(starts=claims[:1], wanted=Wanted(sync=5, prefetch=5, lease=LEASE))
    assert (len(passed.started), len(passed.claims)) == (1, 1)
    assert Task.objects.filter(status="RUNNING").count() == 2


@pytest.mark.promise("S0.24")
def test_four_tasks_wait_beyond_those_that_run_under_a_lease_of_five_seconds_in_the_example(claimer: Claimers) -> None:
    put(9)
    example = capacity(Config(prefetch_buffer=4, claim_lease_ms=5_000), WorkerOptions(("default",), processes=2))
    free = {"sync": 2, "async": 0}
    passed = claimer().run_pass(wanted=example.wanted(free, standing=0, ahead=0, prefetched=0, starting=0))
    assert (len(passed.claims), len(passed.prefetched)) == (2, 4)
    leases = {task.claim_expires_at - task.claimed_at for task in Task.objects.filter(status="CLAIMED")}
    assert leases == {dt.timedelta(seconds=5)}


@pytest.mark.promise("S0.4", "S0.25", "S1.4")
def test_a_claim_whose_lease_ended_is_claimed_anew_and_its_old_holder_starts_nothing(claimer: Claimers) -> None:
    put()
    slow, other = claimer(), claimer()
    (old,) = ahead(slow)
    assert other.run_pass(sync=1, expired_leases=True).claims == []
    change(claim_expires_at=aware(seconds=-1))
    assert other.run_pass(sync=1).claims == []
    (new,) = other.run_pass(sync=1, expired_leases=True).claims
    assert (new.id, new.generation) == (old.id, old.generation + 1)
    assert slow.run_pass(starts=[old]).started == []
    assert slow.run_pass(outcomes=[done(old)]).landed == set()
    assert other.run_pass(outcomes=[done(new)]).landed == {new.id}


@pytest.mark.promise("S0.4", "S1.4")
def test_the_same_worker_cannot_start_a_task_under_the_claim_before(claimer: Claimers) -> None:
    put()
    worker = claimer()
    (old,) = ahead(worker)
    change(claim_expires_at=aware(seconds=-1))
    (new,) = worker.run_pass(wanted=Wanted(prefetch=1, lease=LEASE), expired_leases=True).prefetched
    assert worker.run_pass(starts=[old]).started == []
    assert worker.run_pass(starts=[old, new]).started == [new.id]


def test_only_its_holder_renews_a_lease_also_one_that_has_just_ended(claimer: Claimers) -> None:
    put(2)
    worker, other = claimer(), claimer()
    claims = ahead(worker, 2)
    change(claim_expires_at=aware(seconds=-1))
    assert other.store.renew(other.id, claims, LEASE) == 0
    assert worker.store.renew(worker.id, [claims[0]._replace(generation=9)], LEASE) == 0
    assert worker.store.renew(worker.id, claims[:1], LEASE) == 1
    assert worker.run_pass(starts=claims).started == [claims[0].id]
    assert worker.store.renew(worker.id, claims[:1], LEASE) == 0


def test_a_full_buffer_asks_for_no_more_than_slots_and_buffer_hold(claimer: Claimers) -> None:
    put(20)
    put(20, lane="async")
    passed = claimer().run_pass(wanted=Wanted(sync=2, async_=3, prefetch=4, lease=LEASE))
    assert (len(passed.claims), len(passed.prefetched)) == (5, 4)


def test_no_async_tasks_are_taken_ahead(claimer: Claimers) -> None:
    put(20, lane="async")
    passed = claimer().run_pass(wanted=Wanted(async_=3, prefetch=4, lease=LEASE))
    assert (len(passed.claims), len(passed.prefetched)) == (3, 0)


def test_what_waits_in_a_buffer_is_released_like_what_runs(claimer: Claimers) -> None:
    put(2)
    worker, other = claimer(), claimer()
    claims = ahead(worker, 2)
    assert worker.run_pass(releases=claims).landed == {claim.id for claim in claims}
    assert [claim.generation for claim in other.run_pass(sync=2).claims] == [2, 2]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM horsies_task_attempts")
        assert cursor.fetchone() == (0,)
