"""Hundreds of queues: a pass claims in the one order over all of them, and queues in which nothing happens cost nothing."""

from __future__ import annotations

import random
import re
import uuid
from datetime import timedelta

import pytest

from horsies_django.core.records import Wanted
from horsies_django.store.base import load
from horsies_django.store.tasks import Served
from tests.conftest import Claimer, limit, put, sql
from tests.db.conftest import Claimers, Connect, heard
from tests.db.test_statements import complete, explained

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = """
INSERT INTO horsies_limits (queue_name, priority, max_concurrency, partition_by_task, partition_version)
SELECT 'queue-' || number, 1 + number %% 3, %(cap)s, false, 0 FROM generate_series(0, %(count)s - 1) AS number
"""


def queues(count: int, cap: int | None = None) -> list[str]:
    """Have so many queues, with three priorities, and return their names."""
    sql("DELETE FROM horsies_limits WHERE queue_name <> '*'")
    sql(QUEUES, {"count": count, "cap": cap})
    return [f"queue-{number}" for number in range(count)]


def serving(worker: Claimer, names: list[str]) -> Claimer:
    worker.served = Served(names)
    return worker


def blocks(worker: Claimer, outcomes: str | None = None, sync: int = 0) -> int:
    """Return how many blocks of tables and indexes a pass touches, and undo it."""
    params = {
        "worker": worker.id, "channel": worker.channel, "outcomes": outcomes, "releases": None, "starts": None,
        "queues": worker.served.queues_array, "news": None, "expired_leases": False, "max_crashes": 0, "grace": None,
        "cursors": None, "now": None, "max_bytes": None, **Wanted(sync=sync)._asdict(),
    }  # fmt: skip
    statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {load('tasks/pass')}"
    found = []
    for _ in range(3):  # what a session reads once, or when an autovacuum makes it plan again
        with worker.conn.transaction(force_rollback=True):
            plan = worker.conn.execute(statement.encode(), params).fetchone()[0][0]["Plan"]  # type: ignore[index]
            found.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
    return min(found)


@pytest.mark.parametrize("cap", [None, 5])
def test_queues_without_tasks_cost_a_claim_and_a_settle_nothing(claimer: Claimers, cap: int | None) -> None:
    found = {}
    for count in (20, 600):
        names = queues(count, cap)
        worker = serving(claimer(), names)
        put(queue=names[7])
        claiming = blocks(worker, sync=4)
        (claim,) = worker.run_pass(sync=4).claims
        settling = blocks(
            worker, f'[{{"id": "{claim.id}", "generation": {claim.generation}, "status": "COMPLETED"}}]', sync=4
        )
        worker.run_pass(outcomes=complete([claim]))
        found[count] = claiming, settling
    assert all(large <= small + 20 for small, large in zip(*found.values(), strict=True)), found


@pytest.mark.parametrize(("served", "cap"), [(8, None), (9, None), (40, None), (9, 2), (40, 2)])
def test_tasks_of_many_queues_come_in_one_order(claimer: Claimers, served: int, cap: int | None) -> None:
    names = queues(60, cap)
    generator = random.Random(served)
    mine = generator.sample(names, served)
    worker = serving(claimer(), mine)
    order = []
    for _ in range(150):
        queue, priority = generator.choice(names), generator.choice([1, 50, 100])
        (id_,) = put(queue=queue, priority=priority)
        if queue in mine:
            order.append((1 + int(queue.removeprefix("queue-")) % 3, priority, id_, queue))
    left = sorted(order, key=lambda task: task[:3])
    while left:
        claims = worker.run_pass(sync=7).claims
        expected: list[uuid.UUID] = []
        for *_, id_, queue in left:
            taken = sum(task[3] == queue and task[2] in expected for task in left)
            if len(expected) < 7 and (cap is None or taken < cap):
                expected.append(id_)
        assert [claim.id for claim in claims] == expected
        worker.run_pass(outcomes=complete(claims))
        left = [task for task in left if task[2] not in expected]
    assert worker.run_pass(sync=7).claims == []


def test_a_task_that_is_due_later_is_announced_from_among_many_queues(claimer: Claimers) -> None:
    worker = serving(claimer(), queues(50, 1))
    put(queue="queue-33", delay=timedelta(hours=1))
    assert 3_500 < (worker.run_pass(sync=1).due_in or 0) <= 3_600


@pytest.mark.parametrize(
    ("cap", "cluster", "waits", "told"), [(1, None, "queue-33", "0 queue-33"), (None, 1, "queue-3", "0 *")]
)
def test_a_permit_that_a_settle_frees_wakes_others_for_its_queue_or_for_those_that_others_serve(
    claimer: Claimers, connect: Connect, cap: int | None, cluster: int | None, waits: str, told: str
) -> None:
    worker, listener = serving(claimer(), queues(50, cap)[20:]), connect()
    limit("*", max_concurrency=cluster)
    put(queue="queue-33")
    claims = worker.run_pass(sync=1).claims
    put(queue=waits)
    assert worker.run_pass(sync=1).claims == []
    listener.execute(f"LISTEN {worker.channel}_new".encode())
    worker.run_pass(outcomes=complete(claims))
    assert heard(listener) == [told]


def test_prefetched_tasks_of_many_queues_start_under_their_caps(claimer: Claimers) -> None:
    names, lease = queues(50, 1), timedelta(minutes=1)
    worker, other = serving(claimer(), names), serving(claimer(), names)
    put(2, queue="queue-9")
    (free,) = put(queue="queue-10")
    ahead = worker.run_pass(wanted=Wanted(prefetch=10, total=10, lease=lease)).prefetched
    assert [claim.queue_name for claim in ahead] == ["queue-9", "queue-10"]
    assert [claim.queue_name for claim in other.run_pass(wanted=Wanted(sync=1, lease=lease)).claims] == ["queue-9"]
    passed = worker.run_pass(wanted=Wanted(sync=2, lease=lease), starts=ahead)
    assert (passed.started, len(passed.returned)) == ([free], 1)


def test_queues_with_tasks_are_found_by_leaps_in_the_index(claimer: Claimers, connect: Connect) -> None:
    names, admin = queues(60), connect()
    for state in ("empty", "stale", "large"):
        if state == "stale":
            for name in names[::4]:
                put(500, queue=name)
        else:
            admin.execute("ANALYZE horsies_tasks")
        worker = serving(claimer(), names)
        notices = explained(worker)
        worker.run_pass(sync=4)
        leaps = [text.partition("plan:")[2] for text in notices if "t.queue_name > v_queue" in text]
        assert leaps, state
        for plan in leaps:
            assert "horsies_tasks_claim" in plan, state
            assert "Sort" not in plan, state
            assert not re.search(r"Seq Scan on horsies_tasks\b", plan), state
