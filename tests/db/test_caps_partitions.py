"""Limits per partition: which tasks share one, which are parked and unparked, and the effect of a
changed rule.

A task with a key of an older rule gets its new key before it is counted, from whichever operation
reads it first.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.db import connection

from horsies_django.core.records import Claim, NewTasks, Outcome
from horsies_django.models import Task
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks.ids import uuid7
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.conftest import (
    Aside,
    Claimers,
    Connect,
    heard,
    impatient,
    register,
    sweep,
    wait_for_waiting,
)
from tests.db.test_pass import done


def of(*customers: Any, **columns: Any) -> list[uuid.UUID]:
    """Send a task for each customer, in this order."""
    return put(
        len(customers),
        kwargs=[json.dumps({"customer_id": customer}) for customer in customers],
        **columns,
    )


def customers(claims: list[Claim]) -> list[Any]:
    return [json.loads(claim.kwargs)["customer_id"] for claim in claims]


def started(worker: Claimer, slots: int = 9, **owed: Any) -> list[uuid.UUID]:
    return [claim.id for claim in worker.run_pass(sync=slots, **owed).claims]


def parked() -> int:
    return Task.objects.filter(parked=True).count()


def settled(*claims: Claim) -> dict[str, list[Outcome]]:
    return {"outcomes": [done(claim) for claim in claims]}


def by(*names: str, most: int | None = 1, **columns: Any) -> None:
    limit("default", partition_by_args=list(names), partition_max_concurrency=most, **columns)


@pytest.mark.promise("S4.7")
def test_a_pass_parks_tasks_of_a_full_partition(claimer: Claimers) -> None:
    """A pass parks the tasks that a full partition keeps from starting, and claims tasks behind
    them.
    """
    by("customer_id")
    worker = claimer()
    of(*"a" * 100, "b", *"a" * 4_000, "c")

    passed = worker.run_pass(sync=3)
    again = 0
    assert customers(passed.claims) == ["a", "b"]

    while passed.again:  # it read very many, and requests another pass
        passed, again = worker.run_pass(sync=1), again + 1

    assert 0 < again < 5
    assert (customers(passed.claims), parked()) == (["c"], 4_099)

    of("d")
    assert customers(worker.run_pass(sync=1).claims) == ["d"]


@pytest.mark.parametrize("frees", ["a settle", "a settle without slots", "a release", "the reaper"])
def test_what_frees_a_permit_unparks_one_and_wakes_workers(
    claimer: Claimers, connect: Connect, frees: str
) -> None:
    by("customer_id")
    worker = claimer()
    other = claimer()
    listener = connect()

    first, second, _ = of(*"aaa")
    claims = worker.run_pass(sync=3).claims
    assert ([claim.id for claim in claims], parked()) == ([first], 2)

    listener.execute(f"LISTEN {worker.channel}_new")
    if frees == "the reaper":
        happened = WorkerStore(connection).reap(dt.timedelta(0), declare_dead=False, many=100)
        assert [(kind, id_) for kind, id_, *_ in happened] == [("failed", first)]
    else:
        owed = {"releases": claims} if frees == "a release" else settled(*claims)
        claims = worker.run_pass(sync=int(frees == "a settle"), **owed).claims

    assert parked() == 1
    assert ("0 default" in heard(listener)) is (frees != "a settle")

    if frees != "a settle":
        claims = other.run_pass(sync=1).claims
    assert [claim.id for claim in claims] == [first if frees == "a release" else second]


def test_each_lane_gets_a_parked_task_when_a_permit_comes_free(claimer: Claimers) -> None:
    """Each lane with a slot can start a parked task: the first parked task may be of another lane,
    which has no free slots.
    """
    by("customer_id")
    worker = claimer()
    of("a")
    (claim,) = worker.run_pass(sync=1).claims

    of(*"aa")
    (async_,) = of("a", lane="async")

    assert (worker.run_pass(sync=9, async_=9).claims, parked()) == ([], 3)
    assert started(worker, 0, async_=1, **settled(claim)) == [async_]


@pytest.mark.parametrize(
    ("limits", "unparked", "partitions"),
    [
        ({"partition_max_concurrency": 3}, 6, 3),
        ({"partition_max_concurrency": None}, 12, 3),
        ({"partition_max_concurrency": None, "partition_by_args": None}, 12, 1),
    ],
)
def test_a_sweep_unparks_as_many_tasks_as_a_raised_limit_allows(
    claimer: Claimers, limits: dict[str, Any], unparked: int, partitions: int
) -> None:
    """A sweep unparks the tasks that a raised limit has room for, or all if limit or rule goes."""
    by("customer_id")
    worker = claimer()
    of(*"a" * 5, *"b" * 5, *"c" * 5)
    worker.run_pass(sync=9)
    assert parked() == 12

    limit("default", **limits)
    assert worker.run_pass(sync=20).claims == []

    sweep(many=2)

    assert (parked(), Task.objects.values("partition_key").distinct().count()) == (
        12 - unparked,
        partitions,
    )
    assert len(worker.run_pass(sync=20).claims) == unparked


def test_a_new_worker_adds_its_share_of_a_limit_per_worker(
    claimer: Claimers,
) -> None:
    """The next sweep after a worker has joined unparks its share of a limit per worker."""
    alone = register(claimer())
    joining = claimer()
    by("customer_id", most=None, partition_local_limit=1)
    of(*"aaa")
    alone.run_pass(sync=5)

    register(joining)
    assert (parked(), joining.run_pass(sync=5).claims) == (2, [])

    QueueStore(connection).request_sweep()
    sweep()

    assert len(joining.run_pass(sync=5).claims) == 1


def test_keys_of_any_length_are_kept_apart(claimer: Claimers) -> None:
    by("customer_id")
    long = "x" * 5_000
    wide = "ü" * 300
    of(long, long, f"{long}y", wide, f"{wide}y", wide)

    assert len(claimer().run_pass(sync=9).claims) == 4


@pytest.mark.parametrize("frees", ["with slots", "without slots", "with the reaper between"])
def test_a_parked_task_that_expires_does_not_strand_the_next(claimer: Claimers, frees: str) -> None:
    """A parked task that expires does not keep the tasks behind it parked."""
    by("customer_id")
    worker = claimer()
    other = claimer()
    of("a")
    (claim,) = worker.run_pass(sync=1).claims

    of("a", "a", good_until=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    (last,) = of("a")
    assert (other.run_pass(sync=9).claims, parked()) == ([], 3)

    late = "UPDATE horsies_tasks SET good_until = clock_timestamp() WHERE good_until IS NOT NULL"
    if frees == "with slots":
        worker.conn.execute(late)
        assert started(worker, 1, **settled(claim)) == [last]
        return

    worker.run_pass(**settled(claim))
    worker.conn.execute(late)
    if frees == "with the reaper between":
        WorkerStore(connection).reap(dt.timedelta(hours=1), declare_dead=False, many=100)
        assert not Task.objects.filter(status="EXPIRED", parked=True).exists()

    assert started(other, 1) == [last]


KEYS = [
    ("1.0", "1"),
    ("-10.500", "-10.5"),
    ("0.05", "0.05"),
    ("-0.0", "0"),
    ("1e3", "1000"),
    ("100.0", "100"),
    ('"1.0"', '"1.0"'),
    (r'"a \" 1.0, \\"', r'"a \" 1.0, \\"'),
    ('["1.50", 1.50, {"2.0": 2.0}]', '["1.50", 1.5, {"2.0": 2}]'),
    ("true", "true"),
]


@pytest.mark.parametrize(("value", "key"), KEYS)
def test_equal_numbers_are_one_partition(value: str, key: str) -> None:
    """Fails if: 1 and 1.0 are two partitions, although they are the same unique work, or a text
    that only looks like a number is changed.
    """
    by("customer_id")
    (id_,) = put(kwargs=[f'{{"customer_id": {value}}}'])

    assert Task.objects.get(pk=id_).partition_key == f'{{"customer_id": {key}}}'


def test_a_key_of_megabytes_is_made_in_no_time() -> None:
    """Fails if: the time to find the numbers in a large value grows with the square of its size."""
    by("customer_id")
    text = json.dumps(("1.0 \\" * 300_000) + '"1.0"')

    (first, second) = put(2, kwargs=[f'{{"customer_id": [{text}, {one}]}}' for one in ("1", "1.0")])

    assert Task.objects.get(pk=first).partition_key == Task.objects.get(pk=second).partition_key


def args(a: int, b: int) -> str:
    return json.dumps({"a": a, "b": b})


def send(*pairs: tuple[int, int]) -> list[Any]:
    return put(len(pairs), kwargs=[args(*pair) for pair in pairs])


def keys() -> dict[Any, tuple[str | None, bool]]:
    """Return the partition of each task that has not finished, and whether it is parked."""
    found = Task.objects.filter(finished_at=None).values_list("id", "partition_key", "parked")
    return {id_: (key, parked) for id_, key, parked in found}


@pytest.mark.parametrize("somebody_holds_it", [False, True])
def test_what_runs_counts_by_the_new_rule_at_once(
    claimer: Claimers, connect: Connect, somebody_holds_it: bool
) -> None:
    """Fails if: a change of the rule waits for every row in flight, or a count uses the key stored
    in the row.
    """
    by("a")
    (one,) = send((1, 7))
    worker = claimer()
    view = connect()
    assert started(worker) == [one]

    with view.transaction():
        if somebody_holds_it:
            view.execute(
                "UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", [one]
            )
        by("b")

    assert keys() == {one: ('{"a": 1}' if somebody_holds_it else '{"b": 7}', False)}

    send((2, 7))
    (free,) = send((1, 8))
    assert started(worker) == [free]


def test_a_sweep_gives_waiting_tasks_the_keys_of_the_new_rule(
    claimer: Claimers,
) -> None:
    """A sweep gives all waiting tasks new keys, and unparks the tasks that the old rule parked."""
    by("a")
    worker = claimer()
    sent = send(*((1, b) for b in range(5)))
    assert started(worker) == sent[:1]

    later = send(*((2, b) for b in range(5, 9)))
    by("b")
    assert started(worker, 0) == []

    sweep(many=2)

    assert keys() == {id_: (f'{{"b": {b}}}', False) for b, id_ in enumerate(sent + later)}
    assert started(worker, 20) == sent[1:] + later


def test_a_task_committed_late_counts_by_the_new_rule(claimer: Claimers, connect: Connect) -> None:
    """A task committed after the rule has changed delays no one, and counts by the new rule.

    Fails if: the rule is read under a lock held until the sender's transaction ends, or the key
    stored in the row counts.
    """
    by("a")
    sender = connect()
    worker = impatient(claimer())
    late = uuid7()
    free = uuid7()

    with sender.transaction():
        TaskStore(sender).send(
            NewTasks("t", "default", "sync", 1, [late, free], [args(1, 7), args(1, 8)])
        )
        by("b")
        sweep()

        (held,) = send((2, 7))
        (claim,) = worker.run_pass(sync=1).claims
        assert claim.id == held

    assert started(worker) == [free]
    assert keys()[late] == ('{"b": 7}', True)
    assert started(worker, outcomes=[done(claim)]) == [late]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_task_parked_while_a_permit_comes_free_is_not_stranded(
    claimer: Claimers, connect: Connect, aside: Aside, slots: int
) -> None:
    """A task that a pass is parking while its permit comes free still starts.

    Fails if: unparking takes no lock, and so does not see the task that the other pass has parked
    and not committed.
    """
    by("a")
    first, second = send((1, 1), (1, 2))
    holder = claimer()
    parking = claimer()
    (claim,) = holder.run_pass(sync=1).claims

    with parking.conn.transaction():
        assert started(parking) == []
        settling = aside(holder.run_pass, slots, outcomes=[done(claim)])
        wait_for_waiting(connect(), holder.conn)

    got = [claim.id for claim in settling.result().claims]
    assert [*got, *started(parking)] == [second]


@pytest.mark.parametrize("slots", [0, 1])
def test_a_task_sent_during_a_settle_is_not_stranded(
    claimer: Claimers, connect: Connect, aside: Aside, slots: int
) -> None:
    """A task that is sent while a settle is about to commit still starts.

    Fails if: a settle that finds no waiting task takes no lock; another pass then still counts the
    settled task, and parks the new one.
    """
    by("a")
    send((1, 1))
    holder = claimer()
    other = claimer()
    (claim,) = holder.run_pass(sync=1).claims

    with holder.conn.transaction():
        assert started(holder, slots, outcomes=[done(claim)]) == []
        (sent,) = send((1, 2))
        looking = aside(other.run_pass, 1)

        watcher = connect()
        params = [other.conn.info.backend_pid, sent]
        query = (
            "SELECT cardinality(pg_blocking_pids(%s)) > 0 OR (SELECT t.parked FROM horsies_tasks t "
            "WHERE t.id = %s)"
        )
        wait_until(
            lambda: watcher.execute(query, params).fetchone()[0],
            "the pass parks the task or waits for a lock",
        )

    got = [claim.id for claim in looking.result().claims]
    assert [*got, *started(other)] == [sent]
