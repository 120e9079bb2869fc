"""Which tasks a pass claims: of hundreds of queues in the one order, and none that its worker does not know while they are young.

Queues in which nothing happens cost nothing, and what is left to other workers stands in nobody's way.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest

from horsies_django.core.records import Wanted
from horsies_django.models import Task
from horsies_django.store.base import load
from horsies_django.store.tasks import Served
from tests.conftest import Claimer, Claimers, Connect, limit, put, sql
from tests.db.test_statements import complete, entries, explained, plans, states
from tests.support.factories import now, serving

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


def of_queues(worker: Claimer, names: list[str]) -> Claimer:
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
        worker = of_queues(claimer(), names)
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
    worker = of_queues(claimer(), mine)
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
    worker = of_queues(claimer(), queues(50, 1))
    put(queue="queue-33", delay=timedelta(hours=1))
    assert 3_500 < (worker.run_pass(sync=1).due_in or 0) <= 3_600


def test_prefetched_tasks_of_many_queues_start_under_their_caps(claimer: Claimers) -> None:
    names, lease = queues(50, 1), timedelta(minutes=1)
    worker, other = of_queues(claimer(), names), of_queues(claimer(), names)
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
        worker = of_queues(claimer(), names)
        notices = explained(worker)
        worker.run_pass(sync=4)
        leaps = plans(notices, "t.queue_name > v_queue")
        assert leaps, state
        for plan in leaps:
            assert "horsies_tasks_claim" in plan, state
            assert "Sort" not in plan, state


GRACE = dt.timedelta(minutes=5)
KNOWN, STRANGE = "shop.tasks.old", "shop.tasks.new"


@pytest.fixture
def old(claimer: Claimers) -> Claimer:
    """Give a worker that knows one task."""
    return knowing(claimer())


def knowing(worker: Claimer, **columns: Any) -> Claimer:
    """Give a claimer its rows."""
    serving(*worker.served.queues, id=worker.id, **{"task_names": [KNOWN], "wire": 1, **columns})
    return worker


def claimed(worker: Claimer, sync: int = 10, **options: Any) -> list[uuid.UUID]:
    return [claim.id for claim in worker.run_pass(sync=sync, grace=GRACE, **options).claims]


def test_what_one_worker_leaves_another_takes_with_its_first_attempt(old: Claimer, claimer: Claimers) -> None:
    (id_,) = put(name=STRANGE)
    (met,) = old.run_pass(sync=1).claims
    assert claimed(old, releases=[met]) == []
    task = Task.objects.get(pk=id_)
    assert (task.status, task.retry_count, task.claimed_by, task.started_at) == ("PENDING", 0, None, None)
    assert claimed(knowing(claimer(), task_names=[])) == [], "one that knows nothing leaves all"
    (claim,) = knowing(claimer(), task_names=[STRANGE]).run_pass(sync=1, grace=GRACE).claims
    assert (claim.id, claim.attempt) == (id_, 1)
    others = put(2, name=STRANGE)
    earlier = knowing(claimer(), task_names=None, wire=None)
    assert claimed(earlier) == others, "one of an earlier release does not say what it knows, and leaves nothing"


@pytest.mark.promise("S2.21")
def test_what_has_been_due_for_as_long_as_the_grace_is_taken_whoever_knows_it(old: Claimer) -> None:
    young, aged = put(2, name=STRANGE)
    Task.objects.filter(pk=aged).update(enqueued_at=now() - GRACE)
    Task.objects.filter(pk=young).update(sent_at=now() - 2 * GRACE)
    past = put(name=STRANGE, good_until=dt.datetime.now(dt.UTC) - GRACE)
    passed = old.run_pass(sync=10, grace=GRACE)
    taken = [claim.id for claim in passed.claims]
    assert taken == [aged], "a task counts from when it became due, however long ago it was sent"
    assert passed.expired == past, "what is past its good_until expires"


def test_what_a_newer_release_sent_is_left_to_workers_that_read_it(old: Claimer, claimer: Claimers) -> None:
    (newer,) = put(name=KNOWN, options='{"wire": 2}')
    (today,) = put(name=KNOWN, options='{"wire": 1, "timeout_ms": 1000}')
    assert claimed(old) == [today]
    assert claimed(knowing(claimer(), wire=2)) == [newer]


def test_the_permit_of_what_is_given_back_goes_to_what_the_worker_knows(old: Claimer) -> None:
    limit("default", max_concurrency=1)
    put(name=STRANGE)
    (met,) = old.run_pass(sync=5).claims
    (known,) = put(name=KNOWN)
    assert claimed(old, releases=[met]) == [known]
    assert Task.objects.filter(status="PENDING").count() == 1


def test_a_worker_that_leaves_all_that_waits_wakes_nobody(old: Claimer, connect: Connect) -> None:
    limit("default", max_concurrency=2)
    put(3, name=STRANGE)
    met = old.run_pass(sync=2).claims
    listener = connect()
    listener.execute(f'LISTEN "{old.channel}_new"'.encode(), prepare=False)
    old.run_pass(sync=2, releases=met, grace=GRACE)
    assert list(listener.notifies(timeout=5, stop_after=1)), "others hear of what came back"
    list(listener.notifies(timeout=0))
    assert old.run_pass(sync=2, grace=GRACE).claims == []
    put(name=KNOWN, queue="mail")  # what is heard next is this, and nothing before it
    (heard,) = listener.notifies(timeout=5, stop_after=1)
    assert heard.payload.endswith(" mail")


def test_a_pass_that_asks_for_it_leaves_out_what_its_worker_does_not_name_as_does_its_buffer(old: Claimer) -> None:
    put(5, name=STRANGE)
    known = put(5, name=KNOWN)
    assert claimed(old, 2) == known[:2]
    passed = old.run_pass(wanted=Wanted(1, prefetch=4, lease=GRACE), grace=GRACE)
    assert [claim.id for claim in passed.claims + passed.prefetched] == known[2:]
    assert len(old.run_pass(sync=10).claims) == 5, "one that does not ask takes everything"


def test_tasks_of_a_full_partition_that_nobody_here_knows_hide_nothing(old: Claimer) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(50, name=STRANGE, kwargs=['{"tenant": 1}'] * 50)
    first = put(1, name=KNOWN, kwargs=['{"tenant": 1}'])
    second = put(1, name=KNOWN, kwargs=['{"tenant": 2}'])
    assert claimed(old) == first + second


def test_leaving_tasks_out_reads_the_index_of_the_claim_and_never_sorts(claimer: Claimers, connect: Connect) -> None:
    for state in states(connect(), name=STRANGE):
        worker = knowing(claimer())
        put(name=KNOWN)
        notices = explained(worker)
        assert len(claimed(worker, 4)) == 1, state
        looking = [plan for plan in plans(notices, "horsies_worker_knows(") if "horsies_tasks " in plan]
        assert looking, state
        for plan in looking:
            assert "horsies_tasks_claim" in plan, state
            assert not re.search(r"^ *(->)? *Sort\b", plan, re.MULTILINE), state
            assert "Filter: " in plan, state
            assert "horsies_worker_knows" not in plan.partition("Index Scan")[2], "it is part of the plan, not a call"


def test_a_worker_that_met_no_stranger_reads_no_more_than_the_tasks_it_takes(old: Claimer) -> None:
    put(2_000, name=STRANGE)
    assert entries(old, "horsies_tasks_claim", sync=2) < 20
