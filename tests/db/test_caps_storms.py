"""Many claimers at once, and workers that are declared dead while they beat or claim."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.models import Task
from horsies_django.store.workers import Load, WorkerStore
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
Connect = Callable[[], psycopg.Connection[Any]]
THRESHOLD = dt.timedelta(seconds=3)
IDLE = Load(0, 0, 0.0, 0.0)

# The most tasks that ran at once, of a queue or of all: between the stamps of a run another one's start may lie, no more.
MOST = """
SELECT max(t.together) FROM (
  SELECT (SELECT count(*) FROM horsies_tasks o
          WHERE (o.queue_name = t.queue_name OR %(queue)s = '*') AND o.started_at <= t.started_at
            AND coalesce(o.finished_at > t.started_at, true)) AS together
  FROM horsies_tasks t WHERE t.started_at IS NOT NULL AND (t.queue_name = %(queue)s OR %(queue)s = '*')
) AS t
"""


def most(queue: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(MOST, {"queue": queue})
        return int(cursor.fetchone()[0])


@pytest.mark.promise("S0.19", "S1.47", "S4.8")
@pytest.mark.parametrize("caps", [{"mail": 3, "bulk": 5}, {"*": 7}, {"*": 7, "mail": 3}])
def test_six_claimers_of_twenty_passes_each_never_exceed_a_cap(
    claimer: Claimers, aside: Aside, caps: dict[str, int]
) -> None:
    """Naive: no lock at all, or one taken by the statement that counts. Both run more than the cap within a few passes."""
    workers = [claimer(mail=1, bulk=50) for _ in range(6)]
    for name, cap in caps.items():
        limit(name, max_concurrency=cap)
    for name in ("mail", "bulk"):
        put(300, queue=name)

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
    put(300, kwargs=[f'{{"a": {number % 5}}}' for number in range(300)])

    def work(worker: Claimer) -> None:
        claims, idle = [], 0
        while idle < 20:
            claims = worker.run_pass(sync=2, outcomes=[done(claim) for claim in claims]).claims
            idle = 0 if claims else idle + 1

    for future in [aside(work, worker) for worker in workers]:
        future.result()
    assert Task.objects.filter(status="COMPLETED").count() == 300
    with connection.cursor() as cursor:
        cursor.execute(
            MOST.replace("o.queue_name = t.queue_name", "o.partition_key = t.partition_key"), {"queue": "default"}
        )
        assert cursor.fetchone() == (1,)


def alive(worker: Claimer) -> Claimer:
    """Register a worker, with a last beat so long ago that it counts as dead."""
    serving = {"queues": ["default"], "task_names": [], "processes": 1, "threads": 1, "async_concurrency": 1}
    WorkerStore(worker.conn).register(worker.id, hostname="h", pid=1, version="0", **serving)
    worker.conn.execute(
        "UPDATE horsies_heartbeats SET sent_at = now() - interval '1 minute' WHERE id = %s", [worker.id]
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


JOIN = """
UPDATE horsies_workers w SET stopped_at = now() FROM horsies_heartbeats b
WHERE b.id = w.id AND b.sent_at < now() - interval '3 seconds' AND w.stopped_at IS NULL
"""


@pytest.mark.parametrize(("form", "dies"), [("a join", True), ("the reaper", False)])
def test_a_beat_that_arrives_while_the_reaper_decides_saves_the_worker(
    claimer: Claimers, connect: Connect, aside: Aside, form: str, dies: bool
) -> None:
    """Naive: a death written to another row after a join with the beats. After the wait nobody looks at the beat again."""
    worker, reaper = alive(claimer()), connect()
    with worker.conn.transaction():
        assert WorkerStore(worker.conn).beat(worker.id, [], IDLE).keys() == {worker.id}
        deciding = aside(reaper.execute, JOIN) if form == "a join" else aside(reap, reaper)
        wait_for_waiting(connect(), reaper)
    happened = deciding.result()
    assert (happened.rowcount == 1 if form == "a join" else "died" in happened) is dies


@pytest.mark.parametrize("slots", [0, 3])
def test_a_worker_that_was_declared_dead_claims_starts_and_beats_no_more(
    claimer: Claimers, connect: Connect, slots: int
) -> None:
    """Naive: fence its outcomes only. A worker that was stopped and goes on would claim under permits that nobody gives back."""
    worker, other = alive(claimer()), claimer()
    limit("default", max_concurrency=1)
    put(4)
    claims = worker.run_pass(sync=1).claims
    assert other.run_pass(sync=1).claims == []  # its permit is used until the rescue
    assert reap(connect()) == {"died": [worker.id], "failed": [claims[0].id]}
    assert WorkerStore(worker.conn).beat(worker.id, [], IDLE) == {}
    passed = worker.run_pass(sync=slots, outcomes=[done(claim) for claim in claims], starts=claims)
    assert (passed.dead, passed.landed, passed.claims, passed.started) == (True, set(), [], [])
    assert len(other.run_pass(sync=1).claims) == 1


def test_what_a_worker_claims_while_it_is_declared_dead_is_rescued_by_the_next_tick(
    claimer: Claimers, connect: Connect
) -> None:
    """Naive: rescue only in the tick that declares the death. The claim was not committed then, and would run for ever."""
    worker, other, reaper = alive(claimer()), claimer(), connect()
    limit("default", max_concurrency=1)
    put(2)
    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        assert reap(reaper) == {"died": [worker.id]}
    assert worker.run_pass(sync=1).dead
    assert other.run_pass(sync=1).claims == []
    assert reap(reaper) == {"failed": [claim.id]}
    assert len(other.run_pass(sync=1).claims) == 1
