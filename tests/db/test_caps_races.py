"""Two and three sessions at once: what must wait waits, nothing else does, and no cap is exceeded whoever comes first.

A pass is held open by running it inside a transaction; who waits is read from pg_blocking_pids. A session that must not wait is
impatient: it fails when it meets a lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connections

from horsies_django.core.records import Claim
from horsies_django.models import Task
from horsies_django.queues import change
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import NewTasks, TaskStore
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
Connect = Callable[[], psycopg.Connection[Any]]
PARTITIONS = {"partition_by_args": ["a"], "partition_max_concurrency": 1}


def impatient(worker: Claimer) -> Claimer:
    worker.conn.execute("SET lock_timeout = '5s'")
    return worker


def locks(worker: Claimer) -> int:
    """Return how many advisory locks a worker's open transaction holds."""
    found = worker.conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
    return int(found.fetchone()[0])


def running() -> int:
    return Task.objects.filter(status="RUNNING").count()


def outcomes(claims: list[Claim]) -> Any:
    return [done(claim) for claim in claims]


ONE_STATEMENT = """
WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(1)),
held AS MATERIALIZED (SELECT count(*) AS permits FROM locked CROSS JOIN horsies_tasks t WHERE t.status = 'RUNNING')
UPDATE horsies_tasks SET status = 'RUNNING', claimed_by = gen_random_uuid(), claimed_at = now(), started_at = now()
WHERE id = (SELECT t.id FROM held CROSS JOIN horsies_tasks t WHERE held.permits < 1 AND t.status = 'PENDING'
            ORDER BY t.id LIMIT 1 FOR NO KEY UPDATE OF t SKIP LOCKED)
"""


@pytest.mark.promise("S1.47")
@pytest.mark.parametrize(("form", "expected"), [("one statement", 2), ("the pass", 1)])
def test_a_cap_of_one_holds_because_lock_and_count_are_statements_of_their_own(
    claimer: Claimers, connect: Connect, aside: Aside, form: str, expected: int
) -> None:
    """Naive: lock, count and claim in one statement. Its snapshot is older than its wait for the lock, so it counts nobody."""
    limit("default", max_concurrency=1)
    put(5)
    first, second = claimer(), claimer()

    def claim(worker: Claimer) -> object:
        return worker.run_pass(sync=5) if form == "the pass" else worker.conn.execute(ONE_STATEMENT)

    with first.conn.transaction():
        claim(first)
        other = aside(claim, second)
        wait_for_waiting(connect(), second.conn)
    other.result()
    assert running() == expected


@pytest.mark.promise("S1.47")
def test_workers_of_different_capped_queues_do_not_wait_for_each_other_and_a_mixed_pass_holds_up_both(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: one lock for all caps. The second pass would fail at once, it is impatient."""
    mail, bulk, mixed = impatient(claimer(mail=1)), impatient(claimer(bulk=50)), claimer(mail=1, bulk=50)
    for name in ("mail", "bulk"):
        limit(name, max_concurrency=2)
        put(4, queue=name)
    with mail.conn.transaction(), bulk.conn.transaction():
        assert [len(worker.run_pass(sync=1).claims) for worker in (mail, bulk)] == [1, 1]
        assert (locks(mail), locks(bulk)) == (1, 1)
    with mixed.conn.transaction():
        mixed.run_pass(sync=1)
        assert locks(mixed) == 2
        other = aside(bulk.run_pass, sync=9)
        wait_for_waiting(connect(), bulk.conn)
    assert len(other.result().claims) == 1


@pytest.mark.promise("S0.41", "S1.46")
def test_under_a_cap_of_the_cluster_passes_of_all_queues_take_turns(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: locks of the queues only. Both passes would count nobody, and 6 tasks run under a cap of 3."""
    limit("*", max_concurrency=3)
    put(5, queue="mail")
    put(5, queue="bulk")
    mail, bulk = claimer(mail=1), claimer(bulk=50)
    limit("mail", max_concurrency=5)
    with mail.conn.transaction():
        assert (len(mail.run_pass(sync=2).claims), locks(mail)) == (2, 1)
        other = aside(bulk.run_pass, sync=9)
        wait_for_waiting(connect(), bulk.conn)
    assert len(other.result().claims) == 1


@pytest.mark.promise("S1.45", "S1.48", "S3.4")
@pytest.mark.parametrize(
    ("columns", "count", "expected"),
    [
        ({}, 3, 0),
        ({"local_limit": 2}, 3, 0),
        ({"partition_by_args": ["a"]}, 3, 0),
        ({"max_concurrency": 0}, 3, 0),
        ({"max_concurrency": 2}, 0, 0),
        ({"max_concurrency": 2}, 3, 1),
        (PARTITIONS, 3, 1),
    ],
)
def test_locks_are_taken_only_where_a_cap_is_read_and_acted_upon(
    claimer: Claimers, columns: dict[str, Any], count: int, expected: int
) -> None:
    limit("default", **columns)
    put(count)
    worker = claimer()
    with worker.conn.transaction():
        assert len(worker.run_pass(sync=1).claims) == (count > 0 and columns.get("max_concurrency") != 0)
        assert locks(worker) == expected


def test_an_uncommitted_change_of_a_task_stops_nobody_who_shares_its_cap(claimer: Claimers, connect: Connect) -> None:
    """Naive: FOR UPDATE without SKIP LOCKED. The first pass waits for the view, the others for the cap lock that it holds."""
    limit("default", max_concurrency=5)
    held, *_ = put(9)
    view, workers = connect(), [impatient(claimer()), impatient(claimer())]
    with view.transaction():
        view.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", [held])
        claims = [claim.id for worker in workers for claim in worker.run_pass(sync=2).claims]
    assert (len(claims), held in claims) == (4, False)


def test_a_settle_leaves_out_what_somebody_holds_and_no_order_of_rows_deadlocks(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: a plain UPDATE of both rows waits for the view's second row while it has the first, which the view wants next."""
    limit("default", max_concurrency=2)
    put(4)
    worker, view, watcher = impatient(claimer()), connect(), connect()
    first, second = claims = worker.run_pass(sync=2).claims
    touch = "UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s"
    with view.transaction():
        view.execute(touch, [second.id])
        with worker.conn.transaction():
            passed = worker.run_pass(sync=2, outcomes=outcomes(claims))
            assert (passed.landed, len(passed.claims)) == ({first.id}, 1)
            other = aside(view.execute, touch, [first.id])
            wait_for_waiting(watcher, view)
        other.result()
    assert running() == 2
    assert worker.run_pass(outcomes=outcomes([second])).landed == {second.id}


def test_a_new_cap_waits_for_the_pass_under_way_and_every_later_pass_obeys_it(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: limits read from a row that nobody locks. The second pass runs beside the first without a cap, and both claim."""
    put(9)
    first, second, watcher = claimer(), claimer(), connect()

    def cap() -> list[str]:
        try:
            return change("default", {"max_concurrency": 2}, actor="a test")
        finally:
            connections.close_all()

    with first.conn.transaction():
        assert len(first.run_pass(sync=1).claims) == 1
        changing = aside(cap)
        waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'horsies_limits'::regclass"
        wait_until(lambda: watcher.execute(waiting).fetchone(), "the change waits for the pass")
        other = aside(second.run_pass, sync=9)
        wait_for_waiting(watcher, second.conn)
    assert changing.result() == ["max_concurrency"]
    other.result()
    third = claimer()
    third.run_pass(sync=9)
    assert running() in (2, 9)  # the second pass came in before or after the change, never half
    limit("default", max_concurrency=0)
    assert third.run_pass(sync=9).claims == []


def test_neither_a_pass_nor_a_change_waits_for_a_sender_and_what_it_commits_late_is_keyed_anew(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: the rule read under a lock that lasts as long as the sender's transaction, or a key that is trusted for ever."""
    limit("default", **PARTITIONS)
    sender, worker, changer = connect(), impatient(claimer()), connect()
    ids = [uuid.uuid4(), uuid.uuid4()]
    put(kwargs=['{"a": 1, "b": 1}'])
    with sender.transaction():
        TaskStore(sender).send(NewTasks("t", "default", "sync", 100, ids, ['{"a": 2, "b": 1}', '{"a": 2, "b": 2}']))
        changed = QueueStore(changer).configure("default", {"partition_by_args": ["b"]}, action="queue.set", actor="x")
        assert changed == ["partition_by_args"]
        assert len(worker.run_pass(sync=9).claims) == 1
    assert [claim.id for claim in worker.run_pass(sync=9).claims] == ids[1:]
    keys = {task.id: (task.partition_key, task.parked) for task in Task.objects.filter(pk__in=ids)}
    assert keys == {ids[0]: ('{"b": 1}', True), ids[1]: ('{"b": 2}', False)}
