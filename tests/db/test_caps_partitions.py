"""Limits per partition: which tasks share one, what is parked, who unparks it, and what a change of the rule does."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task
from horsies_django.store.queues import QueueStore
from horsies_django.store.workers import WorkerStore
from tests.conftest import Claimer, limit, put
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]


def of(*customers: Any, **columns: Any) -> list[str]:
    """Send a task for each customer, in this order, and return the ids as texts."""
    kwargs = [json.dumps({"customer_id": customer}) for customer in customers]
    return [str(id_) for id_ in put(len(customers), kwargs=kwargs, **columns)]


def customers(claims: list[Claim]) -> list[Any]:
    return [json.loads(claim.kwargs)["customer_id"] for claim in claims]


def ids(claims: list[Claim]) -> list[str]:
    return [str(claim.id) for claim in claims]


def parked() -> int:
    return Task.objects.filter(parked=True).count()


def settled(*claims: Claim) -> dict[str, list[Outcome]]:
    return {"outcomes": [done(claim) for claim in claims]}


def per_customer(most: int | None = 1, **columns: Any) -> None:
    limit("default", partition_by_args=["customer_id"], partition_max_concurrency=most, **columns)


def register(worker: Claimer) -> None:
    """Write a worker's row and its first heartbeat: limits per worker are shared among those that live."""
    serving = {"queues": ["default"], "task_names": [], "processes": 1, "threads": 1, "async_concurrency": 1}
    WorkerStore(worker.conn).register(worker.id, hostname="h", pid=1, version="0", **serving)


def sweep(many: int = 1_000) -> None:
    """Sweep the queue to the end."""
    while QueueStore(connection).sweep("default", many):
        pass


@pytest.mark.promise("S4.9", "S4.12", "S4.13", "S4.22")
def test_two_of_each_customer_run_and_one_worker_serves_as_many_customers_as_it_has_slots(claimer: Claimers) -> None:
    per_customer(2)
    of(*"aaaaaaaa", *"bbb", *"cccc", *"dd", *"eee", *"ff")
    first = claimer().run_pass(sync=10).claims
    assert "".join(customers(first)) == "aabbccddee"
    assert "".join(customers(claimer().run_pass(sync=10).claims)) == "ff"


@pytest.mark.promise("S4.10", "S4.20", "S4.22")
def test_one_worker_gets_no_more_of_a_customer_than_the_local_limit_of_the_partition(claimer: Claimers) -> None:
    workers = [claimer() for _ in range(4)]
    for worker in workers:
        register(worker)
    per_customer(5, partition_local_limit=2)
    of(*"aaaaaaaa", *"bbb")
    claims = [worker.run_pass(sync=5).claims for worker in workers]
    assert ["".join(customers(some)) for some in claims] == ["aabb", "aab", "a", ""]


@pytest.mark.promise("S4.9")
def test_the_cap_of_the_queue_bounds_all_its_partitions_together(claimer: Claimers) -> None:
    per_customer(2, max_concurrency=3, local_limit=2)
    of(*"aabbcc")
    assert [len(claimer().run_pass(sync=9).claims) for _ in range(3)] == [2, 1, 0]


A, B, AB, NONE = '{"a": 1, "b": 2}', '{"a": 1, "b": 3}', '{"a": 2, "b": 2}', '{"b": 2}'


@pytest.mark.promise("S4.11", "S4.12", "S4.14", "S4.15", "S4.16", "S4.17")
@pytest.mark.parametrize(
    ("by_args", "by_task", "alike"),
    [
        (["a"], False, [[0, 1, 4, 5], [2], [3, 6]]),
        (["b"], False, [[0, 2, 3, 4, 6], [1, 5]]),
        (["a", "b"], False, [[0, 4], [1, 5], [2], [3, 6]]),
        (["no such name"], False, [[0, 1, 2, 3, 4, 5, 6]]),
        ([], False, [[0, 4], [1, 5], [2], [3], [6]]),
        (None, True, [[0, 1, 2, 3, 6], [4, 5]]),
        (["a"], True, [[0, 1], [2], [3, 6], [4, 5]]),
        ([], True, [[0], [1], [2], [3], [4], [5], [6]]),
    ],
)
def test_which_tasks_share_a_partition(
    claimer: Claimers, by_args: list[str] | None, by_task: bool, alike: list[list[int]]
) -> None:
    """By the keys of their JSON arguments, by their name, or both; an argument that is missing counts as null."""
    limit("default", partition_by_args=by_args, partition_by_task=by_task, partition_max_concurrency=1)
    sent = put(4, name="one", kwargs=[A, B, AB, NONE]) + put(2, name="two", kwargs=[A, B])
    sent += put(1, name="one", kwargs=['{"a": null, "b": 2}'])
    assert [claim.id for claim in claimer().run_pass(sync=9).claims] == [sent[part[0]] for part in alike]
    keys = {task.id: task.partition_key for task in Task.objects.all()}
    assert Counter(Counter(keys.values()).values()) == Counter(len(part) for part in alike)


def test_keys_of_any_length_are_kept_apart(claimer: Claimers) -> None:
    per_customer()
    long, wide = "x" * 5_000, "ü" * 300
    of(long, long, f"{long}y", wide, f"{wide}y", wide)
    assert len(claimer().run_pass(sync=9).claims) == 4


@pytest.mark.promise("S4.7")
def test_what_a_full_partition_cannot_start_is_parked_and_passed_over(claimer: Claimers) -> None:
    per_customer()
    worker = claimer()
    of(*"a" * 300, "b", *"a" * 300, "c")
    assert customers(worker.run_pass(sync=3).claims) == ["a", "b", "c"]
    assert parked() == 599
    of("d")
    assert customers(worker.run_pass(sync=1).claims) == ["d"]


def test_a_pass_that_met_very_many_full_partitions_ends_and_asks_to_be_followed_by_another(claimer: Claimers) -> None:
    per_customer()
    worker = claimer()
    of(*"a" * 4_000, "b")
    passed, again = worker.run_pass(sync=2), 0
    assert customers(passed.claims) == ["a"]
    while passed.again:
        passed, again = worker.run_pass(sync=1), again + 1
        assert again < 5
    assert customers(passed.claims) == ["b"]
    assert again > 0


def test_a_settle_unparks_the_first_of_its_partition_and_the_same_pass_claims_it(claimer: Claimers) -> None:
    per_customer()
    worker = claimer()
    sent = of(*"aaa")
    claims = worker.run_pass(sync=1).claims
    for id_ in sent:
        assert ids(claims) == [id_]
        claims = worker.run_pass(sync=1, **settled(*claims)).claims
    assert claims == []
    assert parked() == 0


def test_a_settle_of_a_worker_without_slots_unparks_for_others_and_wakes_them(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    per_customer()
    worker, other, listener = claimer(), claimer(), connect()
    first, second, _ = of(*"aaa")
    (claim,) = worker.run_pass(sync=3).claims
    listener.execute(f"LISTEN {worker.channel}_new")
    worker.run_pass(**settled(claim))
    assert [item.payload for item in listener.notifies(timeout=10, stop_after=1)] == ["0 default"]
    assert (str(claim.id), parked()) == (first, 1)
    assert ids(other.run_pass(sync=1).claims) == [second]


def test_each_lane_gets_a_parked_task_when_a_permit_comes_free(claimer: Claimers) -> None:
    """Whichever lane has a slot finds one: the first of all may be of a lane that nobody has slots for now."""
    per_customer()
    worker = claimer()
    of("a")
    (claim,) = worker.run_pass(sync=1).claims
    of(*"aa")
    (async_,) = of("a", lane="async")
    assert (worker.run_pass(sync=9, async_=9).claims, parked()) == ([], 3)
    assert ids(worker.run_pass(async_=1, **settled(claim)).claims) == [async_]


def test_a_release_unparks_too_and_the_released_task_comes_first(claimer: Claimers) -> None:
    per_customer()
    worker = claimer()
    first, second = of(*"aa")
    claims = worker.run_pass(sync=2).claims
    assert (ids(claims), parked()) == ([first], 1)
    again = worker.run_pass(releases=claims)
    assert str(next(iter(again.landed))) == first
    (claim,) = worker.run_pass(sync=1).claims
    assert ids([claim]) == [first]
    assert ids(worker.run_pass(sync=1, **settled(claim)).claims) == [second]


def test_the_reaper_unparks_what_a_dead_worker_s_tasks_kept_waiting(claimer: Claimers) -> None:
    per_customer()
    dead, worker = claimer(), claimer()
    first, second = of(*"aa")
    assert ids(dead.run_pass(sync=2).claims) == [first]
    assert worker.run_pass(sync=2).claims == []
    happened = WorkerStore(connection).reap(dt.timedelta(0), judge=False, many=100)
    assert [(kind, str(id_)) for kind, id_, *_ in happened] == [("failed", first)]
    assert ids(worker.run_pass(sync=2).claims) == [second]


@pytest.mark.parametrize("change", [{"partition_max_concurrency": 3}, {"partition_max_concurrency": None}])
def test_a_sweep_unparks_as_many_as_a_raised_limit_has_room_for(claimer: Claimers, change: dict[str, Any]) -> None:
    per_customer(1)
    worker = claimer()
    of(*"a" * 5, *"b" * 5, *"c" * 5)
    worker.run_pass(sync=9)
    assert parked() == 12
    limit("default", **change)
    assert worker.run_pass(sync=20).claims == []
    sweep(many=2)
    assert parked() == (0 if change["partition_max_concurrency"] is None else 6)
    assert len(worker.run_pass(sync=20).claims) == (12 if change["partition_max_concurrency"] is None else 6)


def test_a_worker_that_joins_brings_its_share_of_a_limit_per_worker_with_the_next_net(claimer: Claimers) -> None:
    alone, joining = claimer(), claimer()
    register(alone)
    per_customer(None, partition_local_limit=1)
    of(*"aaa")
    alone.run_pass(sync=5)
    register(joining)
    assert (parked(), joining.run_pass(sync=5).claims) == (2, [])
    QueueStore(connection).request_sweep()
    sweep()
    assert len(joining.run_pass(sync=5).claims) == 1


@pytest.mark.parametrize("frees", ["with slots", "without slots", "with the reaper between"])
def test_a_parked_task_that_expires_does_not_strand_those_behind_it(claimer: Claimers, frees: str) -> None:
    per_customer()
    worker, other = claimer(), claimer()
    of("a")
    (claim,) = worker.run_pass(sync=1).claims
    of("a", "a", good_until=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    (last,) = of("a")
    assert (other.run_pass(sync=9).claims, parked()) == ([], 3)
    late = "UPDATE horsies_tasks SET good_until = clock_timestamp() WHERE good_until IS NOT NULL"
    if frees == "with slots":
        worker.conn.execute(late)
        assert ids(worker.run_pass(sync=1, **settled(claim)).claims) == [last]
        return
    worker.run_pass(**settled(claim))
    worker.conn.execute(late)
    if frees == "with the reaper between":
        WorkerStore(connection).reap(dt.timedelta(hours=1), judge=False, many=100)
    assert ids(other.run_pass(sync=1).claims) == [last]
