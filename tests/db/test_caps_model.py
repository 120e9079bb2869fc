"""The pass and the model of caps agree: random queues, limits, loads and waiting tasks, and both say the same of every task.

Each example lives in a transaction that is rolled back. The model sees what the test wrote, see worlds.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings

from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.store.workers import WorkerStore
from tests.db.worlds import (
    DEAD,
    HIDDEN,
    IDLE_CLAIMS,
    LEASE,
    ME,
    NEIGHBOUR,
    NOW,
    SERVED,
    SHARED,
    STOPPED,
    TWO_ROUNDS,
    WORLDS,
    Row,
    Rows,
    World,
    register,
)  # fmt: skip
from tests.support.models.caps import Allotment, Budget, Waiting, allot
from tests.support.sizes import examples

pytestmark = pytest.mark.django_db(transaction=True)

CALM = settings(max_examples=examples(100, 3_000), deadline=None, database=None, derandomize=True)
CALM = settings(CALM, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture
def conn(connect: Callable[[], psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
    """Give a connection to a database with queues of an older rule, and with workers of which one is alive."""
    conn = connect()
    for name in (*SERVED, "elsewhere"):
        rule = {"partition_by_args": ["b"]}
        QueueStore(conn).configure(name, rule, action="queue.set", actor="a test", create=True)
    for worker in (ME, DEAD, STOPPED):
        register(conn, worker)
    conn.execute("UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [DEAD])
    WorkerStore(conn).stop(STOPPED)
    return conn


def compare(world: World, expected: Allotment, passed: Passed, before: Rows, after: Rows) -> None:
    """Hold a pass against the model: what it took, and that it touched nothing else."""
    assert [claim.id.int for claim in passed.claims] == expected.start
    assert [claim.id.int for claim in passed.prefetched] == expected.ahead
    assert (passed.again, passed.dead) == (False, False)
    tasks = {task.id.int: task for task in world.tasks}
    expired = {id_.int for id_ in passed.expired}
    assert expired <= set(expected.expired)
    ahead = {(tasks[id_].row.queue, tasks[id_].partition) for id_ in expected.ahead}
    for task in (tasks[id_] for id_ in set(expected.expired) - expired):  # the pass does not look at these again
        full_here = (task.row.queue, task.partition) in ahead
        assert task.parked or full_here or world.limits[task.row.queue].partition_local_limit is not None
    unparked = {(tasks[id_].row.queue, tasks[id_].partition) for id_ in expired}  # parked again if there was time
    fresh = world.keys()
    parked = set(expected.parked) | {task.id.int for task in world.tasks if task.parked}
    for task in world.tasks:
        row = after[task.id]
        if task.id.int in expected.start + expected.ahead:
            taken = "RUNNING" if task.id.int in expected.start else "CLAIMED"
            assert (row["status"], row["claimed_by"], row["parked"]) == (taken, str(ME), False)
            assert row["claim_generation"] == before[task.id]["claim_generation"] + 1
            assert (row["started_at"] is None) == (taken == "CLAIMED") == (row["claim_expires_at"] is not None)
        elif task.id.int in expired:
            assert (row["status"], row["parked"]) == ("EXPIRED", False)
        else:
            was = {**before[task.id], "parked": task.id.int in parked}
            if task.row.stale and row["partition_version"] == fresh[task.id]["partition_version"]:
                was |= fresh[task.id]
            if (task.row.queue, task.partition) in unparked:
                was["parked"] = row["parked"]
            if (
                world.expired_leases
                and task.row.holder
                and task.row.lease == "ended"
                and task.row.queue in world.queues
            ):
                was |= {
                    "status": "PENDING",
                    "claimed_by": None,
                    "claimed_at": None,
                    "claim_expires_at": None,
                    "started_at": None,
                }
            assert row == was


@pytest.mark.thorough
@pytest.mark.promise("S0.39", "S0.40", "S4.7", "S4.20", "S4.21", "S4.22", "S1.43", "S1.44")
def test_the_pass_takes_what_the_model_says_in_its_order_and_touches_nothing_else(
    conn: psycopg.Connection[Any],
) -> None:
    @CALM
    @example(TWO_ROUNDS)
    @example(HIDDEN)
    @example(SHARED)
    @example(IDLE_CLAIMS)
    @given(WORLDS)
    def agree(wish: dict[str, Any]) -> None:
        sync, async_, buffer = wish["slots"]
        soft, total, batch = wish["soft"], wish["total"], wish["batch"]
        budget = Budget(sync, async_, buffer if soft else 0, total, batch or None, soft)
        wanted = Wanted(sync, async_, budget.buffer, 1_000 if total is None else total, batch, LEASE if soft else None)
        with conn.transaction(force_rollback=True):
            world = World(conn, wish)
            expected = allot(
                world.waiting(), world.limits, world.held(), budget, cluster=world.cluster, workers=world.workers
            )
            before = world.rows()
            passed = TaskStore(conn).run_pass(
                ME, "horsies_test", Served(world.queues), wanted, expired_leases=world.expired_leases
            )
            compare(world, expected, passed, before, world.rows())

    agree()


@pytest.mark.thorough
@pytest.mark.promise("S0.40", "S1.44")
def test_what_waits_in_a_buffer_starts_as_the_model_says_and_the_rest_goes_back(conn: psycopg.Connection[Any]) -> None:
    """The start counts what runs, by the same arithmetic, and takes the claims in the order in which the worker asks."""

    @CALM
    @given(WORLDS)
    def agree(wish: dict[str, Any]) -> None:
        with conn.transaction(force_rollback=True):
            world = World(
                conn, {**wish, "soft": True, "held": [*wish["held"], *map(buffered, wish["rows"])], "rows": []}
            )
            asked = [task for task in world.tasks if task.row.lease != "running" and task.row.queue in world.queues]
            mine = [task for task in asked if task.row.holder == ME and task.row.lease == "living"]
            flat = {name: limit._replace(priority=1) for name, limit in world.limits.items()}
            waiting = [
                Waiting(
                    task.id.int,
                    task.row.queue,
                    "sync",
                    1,
                    NOW + dt.timedelta(seconds=place),
                    task.partition,
                    task.row.late,
                )
                for place, task in enumerate(mine)
            ]
            expected = allot(waiting, flat, world.held(), Budget(len(mine), 0, soft=True), workers=world.workers)
            starts = [Claim(task.id, 1, "sync", "t", "{}") for task in asked]
            passed = TaskStore(conn).run_pass(ME, "horsies_test", Served(world.queues), starts=starts)
            assert [id_.int for id_ in passed.started] == expected.start
            assert [id_.int for id_ in passed.expired] == expected.expired
            left = {task.id for task in mine} - {*passed.started, *passed.expired}
            assert set(passed.returned) == left
            rows = world.rows()
            for task in asked:
                now = "RUNNING" if task.id in passed.started else "EXPIRED" if task.id in passed.expired else "CLAIMED"
                assert rows[task.id]["status"] == ("PENDING" if task.id in left else now)

    agree()


def buffered(row: Row) -> Row:
    """Return a waiting task as one that a worker has taken ahead."""
    lease = "ended" if row.priority == 1 and row.stale else "living"
    return row._replace(holder=NEIGHBOUR if row.parked and row.stale else ME, lease=lease, seconds=5)
