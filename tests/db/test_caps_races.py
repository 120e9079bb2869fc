"""Several sessions at once: what must wait waits, nothing else does, and no cap is exceeded whoever comes first or dies.

A pass is held open by running it inside a transaction; who waits is read from pg_blocking_pids. A session that must not wait is
impatient: it fails when it meets a lock.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from horsies_django.models import Task
from horsies_django.queues import change
from horsies_django.store.workers import Load, WorkerStore
from tests.conftest import Claimer, limit, put, sql, wait_until
from tests.db.conftest import Aside, Claimers, Connect, impatient, register, wait_for_waiting
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

THRESHOLD = dt.timedelta(seconds=3)
IDLE = Load(0, 0, 0.0, 0.0)


def locks(worker: Claimer) -> int:
    """Return how many advisory locks a worker's open transaction holds."""
    found = worker.conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
    return int(found.fetchone()[0])


def running() -> int:
    return Task.objects.filter(status="RUNNING").count()


@pytest.mark.promise("S1.47")
def test_workers_of_different_capped_queues_do_not_wait_for_each_other_and_a_mixed_pass_holds_up_both(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Naive: one lock for all caps, on which the second pass, impatient, would fail; or lock, count and claim in one statement.

    The snapshot of that is older than its wait for the lock, so it does not count what was claimed while it waited.
    """
    mail, bulk, mixed = impatient(claimer(mail=1)), impatient(claimer(bulk=50)), claimer(mail=1, bulk=50)
    for name, cap in (("mail", 2), ("bulk", 3)):
        limit(name, max_concurrency=cap)
        put(4, queue=name)
    with mail.conn.transaction(), bulk.conn.transaction():
        assert [len(worker.run_pass(sync=1).claims) for worker in (mail, bulk)] == [1, 1]
        assert (locks(mail), locks(bulk)) == (1, 1)
    with mixed.conn.transaction():
        assert len(mixed.run_pass(sync=2).claims) == 2, "one of each"
        assert locks(mixed) == 2
        other = aside(bulk.run_pass, sync=9)
        wait_for_waiting(connect(), bulk.conn)
    assert len(other.result().claims) == 1


@pytest.mark.promise("S0.41", "S1.46")
def test_under_a_cap_of_the_cluster_all_passes_take_turns(claimer: Claimers, connect: Connect, aside: Aside) -> None:
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
        ({"partition_by_args": ["a"], "partition_max_concurrency": 1}, 3, 1),
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
    first, second = worker.run_pass(sync=2).claims
    touch = "UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s"
    with view.transaction():
        view.execute(touch, [second.id])
        with worker.conn.transaction():
            passed = worker.run_pass(sync=2, outcomes=[done(first), done(second)])
            assert (passed.landed, len(passed.claims)) == ({first.id}, 1)
            assert worker.store.unsettled(worker.id, [second]) == {second.id: "held"}
            other = aside(view.execute, touch, [first.id])
            wait_for_waiting(watcher, view)
        other.result()
    assert running() == 2
    assert worker.run_pass(outcomes=[done(second)]).landed == {second.id}


def test_a_new_cap_waits_for_a_pass_and_all_later_ones_obey(claimer: Claimers, connect: Connect, aside: Aside) -> None:
    """Naive: limits read from a row that nobody locks. The second pass runs beside the first without a cap, and both claim."""
    put(9)
    first, second, watcher = claimer(), claimer(), connect()

    with first.conn.transaction():
        assert len(first.run_pass(sync=1).claims) == 1
        changing = aside(change, "default", {"max_concurrency": 2}, actor="a test")
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


# The most tasks that ran at once, of a queue or of all: between the stamps of a run another one's start may lie, no more.
MOST = """
SELECT max(t.together) FROM (
  SELECT (SELECT count(*) FROM horsies_tasks o
          WHERE (o.queue_name = t.queue_name OR %(queue)s = '*') AND o.started_at <= t.started_at
            AND coalesce(o.finished_at > t.started_at, true)) AS together
  FROM horsies_tasks t WHERE t.started_at IS NOT NULL AND (t.queue_name = %(queue)s OR %(queue)s = '*')
) AS t
"""


def most(queue: str, query: str = MOST) -> int:
    return int(sql(query, {"queue": queue})[0][0])


@pytest.mark.promise("S0.19", "S1.47", "S4.8")
@pytest.mark.parametrize("caps", [{"mail": 3, "bulk": 5}, {"*": 7, "mail": 3}])
def test_six_claimers_at_once_never_exceed_a_cap(claimer: Claimers, aside: Aside, caps: dict[str, int]) -> None:
    """Naive: no lock at all, or one taken by the statement that counts. Both run more than the cap within a few passes."""
    workers = [claimer(mail=1, bulk=50) for _ in range(6)]
    for name, cap in caps.items():
        limit(name, max_concurrency=cap)
    for name in ("mail", "bulk"):
        put(150, queue=name)

    def work(worker: Claimer) -> int:
        claims, count = worker.run_pass(sync=4).claims, 0
        for _ in range(20):
            count += len(claims)
            claims = worker.run_pass(sync=4, outcomes=[done(claim) for claim in claims]).claims
        worker.run_pass(releases=claims)
        return count

    counts = [future.result() for future in [aside(work, worker) for worker in workers]]
    assert {name: most(name) for name in caps} == caps
    assert Task.objects.filter(status="COMPLETED").count() == sum(counts)
    assert not Task.objects.filter(status="RUNNING").exists()


@pytest.mark.promise("S4.8", "S4.9")
def test_six_claimers_never_exceed_the_cap_of_a_partition_and_strand_none(claimer: Claimers, aside: Aside) -> None:
    """Naive: unparking that looks before it has the lock. Some partition ends with tasks parked and nothing running."""
    workers = [claimer() for _ in range(6)]
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    put(150, kwargs=[f'{{"a": {number % 5}}}' for number in range(150)])

    def work(worker: Claimer) -> None:
        claims, idle = [], 0
        while idle < 20:
            claims = worker.run_pass(sync=2, outcomes=[done(claim) for claim in claims]).claims
            idle = 0 if claims else idle + 1

    for future in [aside(work, worker) for worker in workers]:
        future.result()
    assert Task.objects.filter(status="COMPLETED").count() == 150
    assert most("default", MOST.replace("o.queue_name = t.queue_name", "o.partition_key = t.partition_key")) == 1


def silent(worker: Claimer) -> Claimer:
    """Register a worker, with a last beat so long ago that it counts as dead."""
    register(worker).conn.execute(
        "UPDATE horsies_heartbeats SET sent_at = now() - interval '1 min' WHERE id = %s", [worker.id]
    )
    return worker


def reap(conn: Any) -> dict[str, list[Any]]:
    """Run the reaper and return what happened, by kind; nobody is judged before the server is up for the threshold."""
    old_enough = "SELECT pg_postmaster_start_time() < clock_timestamp() - %s::interval"
    wait_until(
        lambda: conn.execute(old_enough, [THRESHOLD]).fetchone()[0], "the server is up for longer than the threshold"
    )
    found: dict[str, list[Any]] = {}
    for kind, id_, *_ in WorkerStore(conn).reap(THRESHOLD, judge=True, many=100):
        found.setdefault(kind, []).append(id_)
    return found


def test_a_beat_while_the_reaper_decides_saves_the_worker(claimer: Claimers, connect: Connect, aside: Aside) -> None:
    """Naive: a death written to another row after a join with the beats. After the wait nobody looks at the beat again."""
    worker, reaper = silent(claimer()), connect()
    with worker.conn.transaction():
        assert WorkerStore(worker.conn).beat(worker.id, [], IDLE, THRESHOLD).alive
        deciding = aside(reap, reaper)
        wait_for_waiting(connect(), reaper)
    assert "died" not in deciding.result()


@pytest.mark.parametrize("slots", [0, 3])
def test_a_worker_declared_dead_claims_starts_or_beats_no_more(claimer: Claimers, connect: Connect, slots: int) -> None:
    """Naive: fence its outcomes only. A worker that was stopped and goes on would claim under permits that nobody gives back."""
    worker, other = silent(claimer()), claimer()
    limit("default", max_concurrency=1)
    put(4)
    claims = worker.run_pass(sync=1).claims
    assert other.run_pass(sync=1).claims == []  # its permit is used until the rescue
    assert reap(connect()) == {"died": [worker.id], "failed": [claims[0].id]}
    assert not WorkerStore(worker.conn).beat(worker.id, [], IDLE, THRESHOLD).alive
    passed = worker.run_pass(sync=slots, outcomes=[done(claim) for claim in claims], starts=claims)
    assert (passed.dead, passed.landed, passed.claims, passed.started) == (True, set(), [], [])
    assert len(other.run_pass(sync=1).claims) == 1


def test_what_a_worker_claims_while_it_is_declared_dead_is_rescued(claimer: Claimers, connect: Connect) -> None:
    """Naive: rescue only in the tick that declares the death. The claim was not committed then, and would run for ever."""
    worker, other, reaper = silent(claimer()), claimer(), connect()
    limit("default", max_concurrency=1)
    put(2)
    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        assert reap(reaper) == {"died": [worker.id]}
    assert worker.run_pass(sync=1).dead
    assert other.run_pass(sync=1).claims == []
    assert reap(reaper) == {"failed": [claim.id]}
    assert len(other.run_pass(sync=1).claims) == 1
