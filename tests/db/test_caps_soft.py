"""Soft mode: tasks taken ahead wait CLAIMED under a lease, and are looked at again before they start."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.models import Task
from horsies_django.worker.engine.capacity import capacity
from horsies_django.worker.process.options import WorkerOptions
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Claimers
from tests.db.test_pass import aware, done

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = dt.timedelta(minutes=5)


def ahead(worker: Claimer, count: int = 1, **owed: Any) -> list[Claim]:
    return worker.run_pass(wanted=Wanted(prefetch=count, lease=LEASE), **owed).prefetched


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
def test_a_task_past_its_good_until_in_the_buffer_expires_and_strands_none_behind_it(claimer: Claimers) -> None:
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    *_, parked = put(3, kwargs=['{"a": 1}'] * 3)
    worker, other = claimer(), claimer()
    (running,) = other.run_pass(sync=2).claims
    other.run_pass(outcomes=[done(running)])  # unparks one of two
    put(kwargs=['{"a": 2}'])
    late, fine = ahead(worker, 3)
    Task.objects.filter(pk=late.id).update(good_until=aware(seconds=-1))
    passed = worker.run_pass(starts=[late, fine])
    assert (passed.expired, passed.started, passed.returned) == ([late.id], [fine.id], [])
    assert (status(late), Task.objects.get(pk=late.id).error_code) == ("EXPIRED", "TASK_EXPIRED")
    assert [claim.id for claim in other.run_pass(sync=3).claims] == [parked]


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
    ("columns", "started"),
    [
        ({"max_concurrency": 0}, 0),
        ({"paused_at": "now", "paused_by": "x"}, 0),
        ({"local_limit": 1}, 1),
        ({"partition_by_args": ["b"]}, 1),
    ],
)
def test_the_start_goes_by_the_pause_the_limits_and_the_partition_rule_in_force(
    claimer: Claimers, columns: dict[str, Any], started: int
) -> None:
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    put(2, kwargs=['{"a": 1, "b": 7}', '{"a": 2, "b": 7}'])
    worker = claimer()
    claims = ahead(worker, 2)
    limit("default", **columns)
    passed = worker.run_pass(starts=claims)
    assert passed.started == [claim.id for claim in claims[:started]]
    assert passed.returned == [claim.id for claim in claims[started:]]


def test_what_waits_in_a_buffer_keeps_no_permit_of_its_partition_from_another_worker(claimer: Claimers) -> None:
    put(5, kwargs=['{"tenant": "a"}'] * 4 + ['{"tenant": "b"}'])
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    busy, idle = claimer(), claimer()
    claims = ahead(busy, 3)
    assert len(claims) == 2, "though no row says yet that it is of the same partition"
    assert not Task.objects.filter(parked=True).exists()
    (started,) = idle.run_pass(wanted=Wanted(sync=2, prefetch=2, lease=LEASE)).claims
    passed = busy.run_pass(starts=claims)
    assert (passed.returned, passed.started) == ([claims[0].id], [claims[1].id])
    assert Task.objects.filter(parked=True).count() == 2
    (next_,) = idle.run_pass(sync=1, outcomes=[done(started)]).claims
    assert next_.id == claims[0].id


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
@pytest.mark.parametrize("taker", ["another worker", "the same worker"])
def test_a_claim_whose_lease_ended_is_claimed_anew_and_starts_nothing(claimer: Claimers, taker: str) -> None:
    put()
    slow = claimer()
    new_worker = slow if taker == "the same worker" else claimer()
    (old,) = ahead(slow)
    assert ahead(new_worker, expired_leases=True) == []
    change(claim_expires_at=aware(seconds=-1))
    assert ahead(new_worker) == []
    (new,) = ahead(new_worker, expired_leases=True)
    assert (new.id, new.generation) == (old.id, old.generation + 1)
    assert slow.run_pass(starts=[old]).started == []
    assert new_worker.run_pass(starts=[old, new]).started == [new.id]
    assert slow.run_pass(outcomes=[done(old)]).landed == set()
    assert new_worker.run_pass(outcomes=[done(new)]).landed == {new.id}


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


def test_a_pass_takes_no_more_than_slots_and_buffer_hold_and_no_async_tasks_ahead(claimer: Claimers) -> None:
    put(20)
    put(20, lane="async")
    worker = claimer()
    passed = worker.run_pass(wanted=Wanted(sync=2, async_=3, prefetch=4, lease=LEASE))
    assert (len(passed.claims), len(passed.prefetched)) == (5, 4)
    passed = worker.run_pass(wanted=Wanted(async_=3, prefetch=99, lease=LEASE))
    assert (len(passed.claims), len(passed.prefetched)) == (3, 14)
