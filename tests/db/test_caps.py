"""The pass under caps of the cluster, of queues and of workers: which tasks start or wait, and the
effect of a changed cap.

In soft mode prefetched tasks wait as CLAIMED under a lease, and are checked again before they
start.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest

from horsies_django import queues
from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.models import Task
from horsies_django.store.workers import Load, WorkerStore
from horsies_django.worker.engine.capacity import capacity
from horsies_django.worker.process.options import WorkerOptions
from tests.conftest import Claimer, limit, put, sql, wait_until
from tests.db.conftest import Aside, Claimers, Connect, heard, impatient, register, wait_for_waiting
from tests.db.test_pass import LEASE, aware, done, failed


def running() -> dict[str, int]:
    """Return how many tasks of each queue run."""
    return dict(Counter(Task.objects.filter(status="RUNNING").values_list("queue_name", flat=True)))


def finish(worker: Claimer, claims: list[Claim], **more: Any) -> list[Claim]:
    """Settle claims and return what the same pass claims."""
    return worker.run_pass(outcomes=[done(claim) for claim in claims], **more).claims


@pytest.mark.promise("S0.7", "S0.13", "S0.15", "S0.19", "S0.42", "S0.43")
@pytest.mark.promise("S1.37", "S1.50", "S2.6", "S3.5", "S3.15", "S4.7", "S4.8", "S4.23")
@pytest.mark.parametrize(
    ("queues", "cluster", "turns", "expected"),
    [
        (
            {"api_calls": (1, 5), "low": (100, 2)},
            None,
            [(4, 4), (20, 3)],
            {"api_calls": 5, "low": 2},
        ),
        ({"mail": (1, None), "bulk": (50, None)}, 20, [(8, 8), (8, 8), (8, 4)], {"mail": 20}),
        (
            {"stripe": (1, 3), "email": (50, 10), "reports": (100, 5)},
            15,
            [(10, 10), (10, 5)],
            {"stripe": 3, "email": 10, "reports": 2},
        ),
    ],
    ids=["a full queue is passed over", "all of the cluster", "the cluster's by priority"],
)
def test_all_workers_together_respect_queue_and_cluster_caps(
    claimer: Claimers,
    queues: dict[str, Any],
    cluster: int | None,
    turns: Any,
    expected: dict[str, int],
) -> None:
    """All workers together run no more tasks than the caps of queues and cluster.

    ``turns``: how many slots each worker has, and how many tasks it gets for them.
    """
    workers = [claimer(**{name: priority for name, (priority, _) in queues.items()}) for _ in turns]
    limit("*", max_concurrency=cluster)
    for name, (_, cap) in queues.items():
        limit(name, max_concurrency=cap)
        put(60, queue=name)

    claims = [
        worker.run_pass(sync=slots).claims
        for worker, (slots, _) in zip(workers, turns, strict=True)
    ]

    assert ([len(some) for some in claims], running()) == ([got for _, got in turns], expected)

    for worker, some in zip(workers, claims, strict=True):
        assert worker.run_pass(sync=20).claims == []
        worker.run_pass(sync=20, outcomes=[*map(failed, some)])
        assert running() == expected, "a failure frees its permit at once"


def test_a_changed_cap_holds_from_the_next_pass_on(
    claimer: Claimers,
) -> None:
    """A changed cap holds from the next pass on.

    ``limited`` is true if the cap left tasks waiting for which the pass had slots.
    """
    worker = claimer()
    put(20)
    claims = worker.run_pass(sync=5).claims

    limit("default", max_concurrency=3)
    assert finish(worker, claims[:2], sync=9) == []
    assert running() == {"default": 3}
    assert len(finish(worker, claims[2:3], sync=9)) == 1

    limit("default", max_concurrency=6)
    assert worker.run_pass(sync=1).limited is False
    passed = worker.run_pass(sync=9)
    assert (len(passed.claims), passed.limited) == (2, True)

    limit("default", max_concurrency=None)
    assert len(worker.run_pass(sync=9).claims) == 9


@pytest.mark.direct
@pytest.mark.parametrize("name", ["default", "*"])
def test_workers_are_woken_for_a_free_permit_that_was_not_used(
    claimer: Claimers, connect: Connect, name: str
) -> None:
    """A free permit that a pass does not use itself wakes other workers.

    A permit of the cluster does so if a task waits in any queue, even one that only others serve.
    """
    worker = claimer()
    listener = connect()
    limit(name, max_concurrency=2)
    put(4 if name == "*" else 9)
    put(queue="mail")

    claims = worker.run_pass(sync=2).claims
    listener.execute(f"LISTEN {worker.channel}_new")
    replaced = finish(worker, claims, sync=2)
    assert (len(replaced), heard(listener)) == (2, []), "nobody needs to come"

    finish(worker, replaced[:1], sync=int(name == "*"))
    assert heard(listener) == [f"0 {name}"]

    limit(name, max_concurrency=0)
    heard(listener)
    finish(worker, replaced[1:])
    assert heard(listener) == [], "in a pause nobody could use it"


def ahead(worker: Claimer, count: int = 1, **owed: Any) -> list[Claim]:
    return worker.run_pass(wanted=Wanted(prefetch=count, lease=LEASE), **owed).prefetched


@pytest.mark.promise("S2.8")
def test_a_task_that_expires_in_the_buffer_strands_no_other(
    claimer: Claimers,
) -> None:
    """A prefetched task past its ``good_until`` expires at its start, and the tasks behind it still
    start.
    """
    limit("default", partition_by_args=["a"], partition_max_concurrency=1)
    *_, parked = put(3, kwargs=['{"a": 1}'] * 3)

    worker = claimer()
    other = claimer()
    (running,) = other.run_pass(sync=2).claims
    other.run_pass(outcomes=[done(running)])  # unparks one of two
    put(kwargs=['{"a": 2}'])

    late, fine = ahead(worker, 3)
    Task.objects.filter(pk=late.id).update(good_until=aware(seconds=-1))

    passed = worker.run_pass(starts=[late, fine])

    assert (passed.expired, passed.started, passed.returned) == ([late.id], [fine.id], [])
    task = Task.objects.get(pk=late.id)
    assert (task.status, task.error_code) == ("EXPIRED", "TASK_EXPIRED")
    assert [claim.id for claim in other.run_pass(sync=3).claims] == [parked]


@pytest.mark.promise("S0.3", "S0.26", "S1.3", "S1.44")
def test_a_start_gives_back_claims_beyond_the_cap(
    claimer: Claimers,
) -> None:
    """Only running tasks count for a cap; a start gives back the prefetched claims beyond it."""
    worker = claimer()
    other = claimer()
    limit("default", max_concurrency=2)
    put(8)

    mine = ahead(worker, 2)
    others = ahead(other, 2)
    assert (len(mine), len(others)) == (2, 2)  # more than the cap, as long as none of them runs
    assert len(other.run_pass(wanted=Wanted(sync=1, lease=LEASE)).claims) == 1

    passed = worker.run_pass(starts=mine, wanted=Wanted(sync=5, lease=LEASE))
    assert (passed.started, passed.returned) == ([mine[0].id], [mine[1].id])
    assert passed.claims == [], "starts and claims of a pass share the same room"
    assert other.run_pass(starts=others).returned == [claim.id for claim in others]
    assert Task.objects.filter(status="RUNNING").count() == 2

    back = Task.objects.get(pk=mine[1].id)
    assert (back.status, back.claimed_by, back.claimed_at, back.claim_expires_at) == (
        "PENDING",
        None,
        None,
        None,
    )


def test_a_buffered_claim_takes_no_permit_from_another_worker(
    claimer: Claimers,
) -> None:
    """A prefetched claim holds no permit of its partition, so another worker can start its
    tasks.
    """
    put(5, kwargs=['{"tenant": "a"}'] * 4 + ['{"tenant": "b"}'])
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    busy = claimer()
    idle = claimer()

    claims = ahead(busy, 3)
    assert len(claims) == 2, "though no row says yet that it is of the same partition"
    assert not Task.objects.filter(parked=True).exists()

    (started,) = idle.run_pass(wanted=Wanted(sync=2, prefetch=2, lease=LEASE)).claims
    passed = busy.run_pass(starts=claims)
    assert (passed.returned, passed.started) == ([claims[0].id], [claims[1].id])
    assert Task.objects.filter(parked=True).count() == 2

    (next_,) = idle.run_pass(sync=1, outcomes=[done(started)]).claims
    assert next_.id == claims[0].id


@pytest.mark.promise("S0.24")
def test_the_example_prefetches_four_tasks_for_five_seconds(
    claimer: Claimers,
) -> None:
    """In the example four tasks are prefetched beyond the running ones, under a lease of five
    seconds.
    """
    put(9)
    example = capacity(
        Config(prefetch_buffer=4, claim_lease_ms=5_000), WorkerOptions(("default",), processes=2)
    )
    free = {"sync": 2, "async": 0}

    passed = claimer().run_pass(
        wanted=example.wanted(free, standing=0, ahead=0, prefetched=0, starting=0)
    )

    assert (len(passed.claims), len(passed.prefetched)) == (2, 4)

    leases = {
        task.claim_expires_at - task.claimed_at for task in Task.objects.filter(status="CLAIMED")
    }
    assert leases == {dt.timedelta(seconds=5)}


THRESHOLD = dt.timedelta(seconds=3)


def locks(worker: Claimer) -> int:
    """Return how many advisory locks a worker's open transaction holds."""
    found = worker.conn.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    )
    return int(found.fetchone()[0])


@pytest.mark.direct
@pytest.mark.promise("S1.47")
def test_different_capped_queues_do_not_block_each_other(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Workers of different capped queues do not wait for each other; a pass over both queues holds
    up both.

    Fails if: all caps share one lock (the second pass, which has a lock timeout, fails), or one
    statement locks, counts and claims (its snapshot is older than its wait for the lock, so it does
    not count the claims made during the wait).
    """
    mail = impatient(claimer(mail=1))
    bulk = impatient(claimer(bulk=50))
    mixed = claimer(mail=1, bulk=50)

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


@pytest.mark.direct
@pytest.mark.promise("S0.41", "S1.46")
def test_under_a_cap_of_the_cluster_all_passes_take_turns(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Fails if: a pass takes the locks of its queues only; both passes then count no running task,
    and 6 tasks run under a cap of 3.
    """
    limit("*", max_concurrency=3)
    put(5, queue="mail")
    put(5, queue="bulk")
    mail = claimer(mail=1)
    bulk = claimer(bulk=50)
    limit("mail", max_concurrency=5)

    with mail.conn.transaction():
        assert (len(mail.run_pass(sync=2).claims), locks(mail)) == (2, 1)
        other = aside(bulk.run_pass, sync=9)
        wait_for_waiting(connect(), bulk.conn)

    assert len(other.result().claims) == 1


@pytest.mark.direct
@pytest.mark.promise("S1.34", "S1.45", "S1.48", "S3.4")
@pytest.mark.parametrize(
    ("columns", "count", "locked", "counts"),
    [
        ({}, 3, 0, False),
        ({"local_limit": 2}, 3, 0, True),
        ({"partition_by_args": ["a"]}, 3, 0, False),
        ({"max_concurrency": 0}, 3, 0, False),
        ({"max_concurrency": 2}, 0, 0, False),
        ({"max_concurrency": 1_000}, 3, 1, True),
        ({"partition_by_args": ["a"], "partition_max_concurrency": 1}, 3, 1, True),
    ],
)
def test_a_pass_counts_only_where_a_cap_is_in_force(
    claimer: Claimers, columns: dict[str, Any], count: int, locked: int, counts: bool
) -> None:
    """A pass takes locks and counts tasks only where a cap is in force.

    The scans of the index of tasks in flight show whether it counts; nothing else reads this index.
    """
    limit("default", **columns)
    put(count)
    worker = claimer()

    with worker.conn.transaction():
        assert len(worker.run_pass(sync=1).claims) == (
            count > 0 and columns.get("max_concurrency") != 0
        )

        (scans,) = worker.conn.execute(
            "SELECT pg_stat_get_xact_numscans('horsies_tasks_holding'::regclass)"
        ).fetchone()
        assert (locks(worker), scans > 0) == (locked, counts)


# The most tasks that ran at once, of one queue or of all ("*"). The number is taken at each start,
# because it grows only there.
MOST = """
SELECT max(t.together) FROM (
  SELECT (SELECT count(*) FROM horsies_tasks o
          WHERE (o.queue_name = t.queue_name OR %(queue)s = '*') AND o.started_at <= t.started_at
            AND coalesce(o.finished_at > t.started_at, true)) AS together
  FROM horsies_tasks t
  WHERE t.started_at IS NOT NULL AND (t.queue_name = %(queue)s OR %(queue)s = '*')
) AS t
"""


def most(queue: str, query: str = MOST) -> int:
    return int(sql(query, {"queue": queue})[0][0])


EACH = {"partition_by_args": ["a"], "partition_max_concurrency": 1}


@pytest.mark.direct
@pytest.mark.promise("S0.19", "S1.47", "S4.8", "S4.9")
@pytest.mark.parametrize(
    "limits", [{"mail": 3, "bulk": 5}, {"*": 7, "mail": 3}, {"mail": EACH}], ids=str
)
def test_six_concurrent_claimers_never_exceed_a_cap(
    claimer: Claimers, aside: Aside, limits: dict[str, Any]
) -> None:
    """Six concurrent claimers never exceed a cap, and complete all tasks.

    Fails if: there is no lock, or the counting statement takes it (more tasks than the cap run
    within a few passes), or unparking reads before it has the lock (a partition ends with parked
    tasks and no running one).
    """
    workers = [claimer(mail=1, bulk=50) for _ in range(6)]
    for name, most_ in limits.items():
        limit(name, **(most_ if most_ is EACH else {"max_concurrency": most_}))
    for name in ("mail", "bulk"):
        put(150, queue=name, kwargs=[f'{{"a": {number % 5}}}' for number in range(150)])

    def work(worker: Claimer) -> None:
        claims: list[Claim] = []
        idle = 0

        while idle < 20:
            passed = worker.run_pass(sync=3, outcomes=[done(claim) for claim in claims])
            claims = [claim for claim in claims if claim.id not in passed.landed] + passed.claims
            idle = 0 if claims else idle + 1

    for future in [aside(work, worker) for worker in workers]:
        future.result()

    assert Task.objects.filter(status="COMPLETED").count() == 300

    for name, most_ in limits.items():
        if most_ is EACH:
            assert (
                most(
                    name,
                    MOST.replace(
                        "o.queue_name = t.queue_name", "o.partition_key = t.partition_key"
                    ),
                )
                == 1
            )
        else:
            assert most(name) == most_


def silent(worker: Claimer) -> Claimer:
    """Register a worker, with a last beat so long ago that it counts as dead."""
    register(worker).conn.execute(
        "UPDATE horsies_heartbeats SET sent_at = now() - interval '1 min' WHERE id = %s",
        [worker.id],
    )
    return worker


def reap(conn: Any) -> dict[str, list[Any]]:
    """Run the reaper and return what happened, by kind, once the server is up for the threshold:
    before that the reaper declares no worker dead.
    """
    old_enough = "SELECT pg_postmaster_start_time() < clock_timestamp() - %s::interval"
    wait_until(
        lambda: conn.execute(old_enough, [THRESHOLD]).fetchone()[0],
        "the server is up for longer than the threshold",
    )

    found: dict[str, list[Any]] = {}
    for kind, id_, *_ in WorkerStore(conn).reap(THRESHOLD, declare_dead=True, many=100):
        found.setdefault(kind, []).append(id_)
    return found


@pytest.mark.direct
def test_a_beat_while_the_reaper_decides_saves_the_worker(
    claimer: Claimers, connect: Connect, aside: Aside
) -> None:
    """Fails if: the death is written to another row after a join with the heartbeats; the heartbeat
    is then not read again after the wait.
    """
    worker = silent(claimer())
    reaper = connect()

    with worker.conn.transaction():
        assert WorkerStore(worker.conn).beat(worker.id, [], Load(0, 0, 0.0, 0.0), THRESHOLD).alive
        deciding = aside(reap, reaper)
        wait_for_waiting(connect(), reaper)

    assert "died" not in deciding.result()


@pytest.mark.direct
def test_a_claim_of_a_worker_being_declared_dead_is_rescued(
    claimer: Claimers, connect: Connect
) -> None:
    """The reaper rescues a claim that is committed after its worker was declared dead.

    Fails if: tasks are rescued only in the tick that declares the death; the claim, not committed
    by then, would run for ever.
    """
    worker = silent(claimer())
    other = claimer()
    reaper = connect()
    limit("default", max_concurrency=1)
    put(2)

    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        assert reap(reaper) == {"died": [worker.id]}

    assert worker.run_pass(sync=1).dead
    assert other.run_pass(sync=1).claims == []
    assert reap(reaper) == {"failed": [claim.id]}
    assert len(other.run_pass(sync=1).claims) == 1


def test_until_empty_does_not_wait_for_a_paused_cluster(claimer: Claimers) -> None:
    """A paused cluster is no cap that a settled task could lift, so ``limited`` is false.

    Fails if: a worker with ``--until-empty`` waits for the end of the pause.
    """
    put()
    queues.pause("*", actor="ann", reason="a move")

    passed = claimer().run_pass(sync=1)

    assert (passed.claims, passed.limited) == ([], False)
