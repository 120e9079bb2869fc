"""The data of the pages about queues, and of the history of counts: bounded, read through the
indexes, and equal to the claim's own counts.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.core.counts import BOUNDS, CLAIMED, COMPLETED, NO_FAILURE, RETURNED
from horsies_django.models import Task, Worker, WorkflowRun
from horsies_django.monitoring.history import EMPTY_HISTOGRAM, TimeStep, series
from horsies_django.store.base import now, statement_text
from horsies_django.store.health import HealthStore
from horsies_django.store.history import HistoryStore
from horsies_django.store.overviews import (
    OrderedKey,
    OverviewStore,
    PartitionLoad,
    PermitHolder,
    QueueOverview,
)
from horsies_django.testing import drain
from tests.conftest import Claimer, Claimers, Connect, limit, put, wait_until
from tests.db.conftest import tenant
from tests.db.test_statements import blocks, explained, plans, states
from tests.support.factories import HeartbeatFactory, TaskFactory, serving
from tests.support.factories import now as this_moment


def overview(name: str, **options: Any) -> QueueOverview:
    (found,) = OverviewStore(connection).queues([name], **{"claimed": True, **options})
    return found


def test_only_workers_that_are_living_are_counted() -> None:
    """Fails if: a stopping worker counts, or one that was killed and has not been declared dead."""
    living = serving("default")
    serving("default", silent=dt.timedelta(minutes=5))
    serving("default", stopping_at=this_moment())

    assert overview("default", threshold=dt.timedelta(seconds=10)).workers == 1

    Worker.objects.filter(pk=living.pk).update(stopping_at=this_moment())
    assert overview("default", threshold=dt.timedelta(seconds=10)).workers == 0


@pytest.mark.parametrize(
    ("silent", "column", "alive"),
    [(0, None, True), (300, None, False), (0, "stopping_at", True), (0, "stopped_at", False)],
    ids=["living", "stale", "stopping", "stopped"],
)
def test_a_holder_is_alive_while_its_worker_is(
    silent: float, column: str | None, alive: bool
) -> None:
    columns = {column: this_moment()} if column else {}
    worker = serving("default", silent=dt.timedelta(seconds=silent), **columns)
    TaskFactory(status="RUNNING", claimed_by=worker.pk)

    (holder,) = OverviewStore(connection).permits("default", 10, threshold=dt.timedelta(seconds=10))

    assert holder.alive == alive


def key(name: str) -> str:
    return f'{{"tenant": "{name}"}}'


def test_a_claim_holds_a_permit_until_its_lease_ends() -> None:
    """A claim holds a permit until its lease ends, but fills no partition in soft mode."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    now = dt.datetime.now(dt.UTC)
    held = {"status": "CLAIMED", "queue_name": "default", "kwargs": {"tenant": "a"}}
    TaskFactory(**held, claim_expires_at=now + dt.timedelta(minutes=1))
    TaskFactory(**held, claim_expires_at=now - dt.timedelta(seconds=1))

    shown = overview("default")
    assert (shown.running, shown.claimed, shown.full_partitions) == (0, 1, 1)
    assert len(OverviewStore(connection).permits("default", 10)) == 1

    assert overview("default", claimed=False).full_partitions == 0
    assert OverviewStore(connection).partitions("default", 5, claimed=False) == []


def test_declared_override_and_effective_limits_are_listed() -> None:
    """The declared, overriding and effective limits are listed side by side."""

    def override(most: int | None) -> QueueOverview:
        limit(
            "mail",
            override={"max_concurrency": most},
            override_by="ann",
            override_reason="sale",
            override_at="now",
        )
        return overview("mail")

    def seen(shown: QueueOverview) -> tuple[Any, ...]:
        return shown.declared["max_concurrency"], shown.override, shown.effective["max_concurrency"]

    limit("mail", max_concurrency=5, local_limit=2)

    assert seen(override(None)) == (5, {"max_concurrency": None}, None), "it lifts the limit"

    shown = override(9)
    assert seen(shown) == (5, {"max_concurrency": 9}, 9)
    assert shown.declared["local_limit"] == shown.effective["local_limit"] == 2
    assert (shown.override_by, shown.override_reason, shown.override_until) == ("ann", "sale", None)

    limit("mail", paused_at="now", paused_by="bob")
    paused = overview("mail")
    assert (seen(paused), paused.paused_by) == ((5, {"max_concurrency": 9}, 0), "bob")


def test_pending_tasks_are_counted_in_each_lane_up_to_a_bound() -> None:
    """All due tasks of every lane and priority are pending, parked or not, and counted up to a
    bound.
    """
    put(2, priority=5)
    put(3, lane="async")
    put(4, priority=5, delay=dt.timedelta(hours=1))
    TaskFactory(queue_name="default", parked=True, partition_key="{}")
    put(10_001, queue="mail")

    shown = overview("default")
    mail = overview("mail")

    assert (shown.pending, shown.pending_more) == (6, False)
    assert (mail.pending, mail.pending_more) == (10_000, True)

    store = OverviewStore(connection)
    assert store.queues(["nowhere"], claimed=True) == store.permits("nowhere", 5) == []
    assert store.partitions("nowhere", 5, claimed=True) == []


def test_the_cluster_comes_first_if_it_is_capped_or_paused(
    claimer: Claimers,
) -> None:
    """The cluster counts all queues; it is listed, as the first, if it is capped, paused or
    requested.
    """
    store = OverviewStore(connection)
    queues = ["mail", "bulk", "twin", "default"]

    assert overview("*").effective["max_concurrency"] is None
    assert [queue.name for queue in store.queues(None, claimed=True)] == queues

    limit("*", paused_at="now", paused_by="ann")
    assert [queue.name for queue in store.queues(None, claimed=True)] == ["*", *queues]

    limit("*", max_concurrency=3, paused_at=None, paused_by=None)
    put(2, queue="mail")
    put(3, queue="bulk")
    claimer(mail=1, bulk=50).run_pass(sync=9)

    found = store.queues(None, claimed=True)
    assert [queue.name for queue in found] == ["*", *queues]
    assert (found[0].running, found[0].pending) == (3, 2)
    assert len(store.permits("*", 10)) == 3


def test_partitions_at_their_limit_are_listed_by_tasks(
    claimer: Claimers,
) -> None:
    """Partitions at their limit are counted, and are listed with the most tasks first."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=2)
    for name, count in (("a", 3), ("b", 1), ("c", 4)):
        tenant(name, count)
    claimer().run_pass(sync=9)

    store = OverviewStore(connection)
    assert overview("default").full_partitions == 2
    assert store.partitions("default", 5, claimed=True) == [
        PartitionLoad(key("c"), 2, 2, 2, False),
        PartitionLoad(key("a"), 2, 2, 1, False),
        PartitionLoad(key("b"), 1, 2, 0, False),
    ]

    TaskFactory.create_batch(999, queue_name="default", parked=True, partition_key=key("c"))
    assert store.partitions("default", 1, claimed=True) == [
        PartitionLoad(key("c"), 2, 2, 1_000, True)
    ], "to a bound"

    limit("default", partition_max_concurrency=None)
    assert {load.limit for load in store.partitions("default", 5, claimed=True)} == {None}


def test_a_limit_per_worker_counts_once_per_living_worker(
    claimer: Claimers,
) -> None:
    """The limit of a partition per worker counts once for each living worker."""
    limit("default", partition_by_args=["tenant"], partition_local_limit=1)
    serving("default")
    serving("default", "mail")
    serving("mail")
    tenant("a", 4)

    claimer().run_pass(sync=4)
    assert (overview("default").workers, overview("default").full_partitions) == (2, 0)

    claimer().run_pass(sync=4)
    assert overview("default").full_partitions == 1

    (load_,) = OverviewStore(connection).partitions("default", 5, claimed=True)
    assert (load_.running, load_.limit) == (2, 2)


def test_slots_are_listed_oldest_first_with_their_task(
    claimer: Claimers,
) -> None:
    """A slot is listed with its task, worker, child process and partition, and whether its worker
    is alive; the oldest comes first.
    """
    limit("default", partition_by_args=["tenant"])
    ids = tenant("a", 4)
    worker = claimer()
    dead = claimer()
    gone = claimer()

    for one in (worker, worker, dead, gone):
        one.run_pass(sync=1)

    serving(id=worker.id, hostname="web-7")
    HeartbeatFactory(worker_id=worker.id, role="runner", pid=4242, holding=[str(ids[1])])
    HeartbeatFactory(id=dead.id, worker_id=dead.id, role="claimer", died_at=dt.datetime.now(dt.UTC))

    first, second, *others = OverviewStore(connection).permits("default", 10)
    started_at = Task.objects.get(pk=ids[0]).started_at
    held = ("tests.nothing", "RUNNING", key("a"), worker.id, "web-7", None, started_at, True)

    assert first == PermitHolder(ids[0], *held)
    assert (second.task_id, second.child_pid) == (ids[1], 4242)
    assert [slot.alive for slot in others] == [False, False]
    assert [slot.task_id for slot in OverviewStore(connection).permits("default", 1)] == [ids[0]]


def stopping(name: str, minutes: int, **columns: Any) -> Any:
    """Make a task that failed some minutes ago and stops its partition."""
    ago = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=minutes)
    held = {
        "status": "FAILED",
        "sent_at": ago,
        "finished_at": ago,
        "ordered": True,
        "order_stop": "stop",
    }
    return TaskFactory(**{**held, "claim_generation": 1, "partition_key": key(name), **columns})


def test_stopped_keys_are_listed_longest_stopped_first() -> None:
    """Stopped keys are listed with their failed task and the number of tasks behind it, the longest
    stopped first.
    """
    limit("default", partition_by_args=["tenant"], partition_policy="stop")
    late = stopping("b", 1)
    early = stopping("a", 9)
    stopping("c", 5, order_stop="cancel")
    stopping("d", 5, order_stop=None)
    stopping("e", 5, queue_name="mail")

    tenant("a", 2)
    tenant("c")

    store = OverviewStore(connection)
    found = store.keys("default", 10, stopped=True)

    assert found == [
        OrderedKey(key("a"), early.id, early.task_name, "FAILED", found[0].since, 2, False),
        OrderedKey(key("b"), late.id, late.task_name, "FAILED", found[1].since, 0, False),
    ]
    assert [one.since for one in found] == [
        Task.objects.get(pk=one.id).finished_at for one in (early, late)
    ]
    assert store.keys("default", 1, stopped=True) == found[:1]

    tenant("a", 999)
    (first, _) = store.keys("default", 10, stopped=True)
    assert (first.behind, first.behind_more) == (1_000, True), "to a bound"

    # It ran beside the other task, under the earlier rule: a skip of it would find nothing.
    second = stopping("b", 0)
    listed = [one.task_id for one in store.keys("default", 10, stopped=True)]
    assert listed == [early.id, late.id], "one that does not come first is not what stops its key"

    Task.objects.filter(pk=late.id).update(order_stop=None)
    assert [one.task_id for one in store.keys("default", 10, stopped=True)] == [early.id, second.id]


def test_all_keys_are_listed_with_their_first_task(
    claimer: Claimers,
) -> None:
    """All keys are listed with their first task, whatever its status."""
    limit("default", partition_by_args=["tenant"], partition_policy="stop")
    assert OverviewStore(connection).keys("default", 10, stopped=False) == []

    (running, _) = tenant("a", 2)
    (waiting,) = tenant("c")
    failed = stopping("b", 1)
    claimer().run_pass(sync=1)

    found = OverviewStore(connection).keys("default", 10, stopped=False)
    told = [(one.partition, one.task_id, one.status, one.behind, one.since) for one in found]
    rows = Task.objects.in_bulk()

    assert told == [
        (key("a"), running, "RUNNING", 1, rows[running].started_at),
        (key("b"), failed.id, "FAILED", 0, rows[failed.id].finished_at),
        (key("c"), waiting, "PENDING", 0, rows[waiting].sent_at),
    ]
    assert OverviewStore(connection).keys("default", 2, stopped=False) == found[:2]


def test_a_list_of_all_keys_costs_one_probe_per_key(connect: Connect) -> None:
    limit("default", partition_by_args=["tenant"], partition_policy="stop")
    for name in "abc":
        tenant(name, 3_000)
    stopping("b", 1, claim_generation=1)
    conn = connect()

    for state in ("stale", "analyzed"):
        for stopped in (False, True):
            asked = {"queue": "default", "many": 2, "bound": 10, "stopped": stopped}
            assert blocks(conn, statement_text("monitoring/keys"), asked) < 100, (state, stopped)
        conn.execute("ANALYZE horsies_tasks")


def test_a_reader_in_a_long_transaction_holds_up_no_change(connect: Connect) -> None:
    reader = connect()
    with reader.transaction():
        store = OverviewStore(reader)
        assert store.queues(["mail"], claimed=True)[0].effective["max_concurrency"] is None
        store.permits("mail", 5)
        store.partitions("mail", 5, claimed=True)
        store.keys("mail", 5, stopped=True)
        limit("mail", max_concurrency=7)

    assert overview("mail").effective["max_concurrency"] == 7


def test_overviews_read_tasks_through_their_indexes(connect: Connect, claimer: Claimers) -> None:
    """Tasks are read through their indexes, however many there are."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=2)

    # An empty table may be read from end to end, so the first state is left out.
    for state in islice(states(connect(), kwargs=['{"tenant": "a"}'] * 20_000), 1, None):
        claimer().run_pass(sync=50, async_=50)
        reader = claimer()
        notices = explained(reader)

        store = OverviewStore(reader.conn)
        store.queues(None, claimed=True)
        for queue in ("default", "*"):
            store.permits(queue, 100)
            store.partitions(queue, 20, claimed=True)

        shown = "\n".join(plans(notices, ""))
        for index in ("horsies_tasks_claim", "horsies_tasks_parked", "horsies_tasks_holding"):
            assert index in shown, state


def test_tasks_due_in_the_future_cost_the_count_one_probe(connect: Connect) -> None:
    """Tasks due in the future cost each count only one probe."""
    put(20_000, priority=1, delay=dt.timedelta(days=1))
    put(5)
    conn = connect()
    conn.execute("ANALYZE horsies_tasks")

    asked = {"names": ["default"], "bound": 10_000}
    query = statement_text("horsies_count_pending", asked)

    assert conn.execute(query, asked).fetchall() == [("default", 5)]
    assert blocks(conn, query, asked) < 200


MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
INTO = "INSERT INTO horsies_history (width, at, queue, task, result, n, seconds, buckets)"
SPANS = [
    (HOUR, 60, MINUTE, 1),
    (2 * HOUR, 24, MINUTE, 5),
    (24 * HOUR, 24, HOUR, 1),
    (168 * HOUR, 56, HOUR, 3),
]


def counted(
    conn: Any,
    width: dt.timedelta,
    ago: int,
    queue: str,
    task: str,
    result: str,
    n: int = 1,
    bucket: int = 0,
) -> None:
    """Insert a row of the history that began ``ago`` minutes or hours before the current one."""
    seconds = int(width.total_seconds())
    at = dt.datetime.fromtimestamp(now(conn).timestamp() // seconds * seconds, dt.UTC) - ago * width

    with conn.cursor() as cursor:
        cursor.execute(
            f"{INTO} VALUES (%s, %s, %s, %s, %s, %s, 0, %s)",
            (
                seconds,
                at,
                queue,
                task,
                result,
                n,
                [n * (place == bucket) for place in range(len(BOUNDS))],
            ),
        )


@pytest.mark.parametrize(("span", "points", "width", "each"), SPANS)
def test_each_step_contains_the_counts_of_its_own_period(
    connect: Connect, span: dt.timedelta, points: int, width: dt.timedelta, each: int
) -> None:
    """Fails if: the last step has only the counts since the last whole step, or the first step also
    has older counts.
    """
    conn = connect()
    chance = random.Random(7)
    wait_until(lambda: now(conn).second < 40, "the minute is that of all rows")

    expected: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    groups: Counter[tuple[str, str]] = Counter()
    keys = [
        (ago, queue, result)
        for ago in range(points * each + 3)
        for queue in ("mail", "bulk")
        for result in RESULTS
    ]

    for ago, queue, result in chance.sample(keys, 300):
        n = chance.randrange(1, 9)
        place = points - 1 - ago // each

        counted(
            conn,
            width,
            ago,
            queue,
            "" if result == CLAIMED else "shop.pay",
            result,
            n,
            bucket=ago % 16,
        )

        other = HOUR if width == MINUTE else MINUTE
        counted(conn, other, ago, queue, "shop.other", result, 99)

        if place >= 0:
            expected[queue][place][result] += n
            groups["shop.pay", result] += n * (result not in NO_FAILURE)

    found = series(conn, span, points)
    failed = HistoryStore(conn).failures(span, 9)

    for queue, steps in expected.items():
        assert len(found[queue]) == points
        for place in range(points):
            counts = steps[place]
            step = found[queue][place]

            assert step.completed == counts[COMPLETED] + counts[RETURNED]
            assert step.failed == counts["OH_NO"] + counts["TASK_TIMEOUT"]
            assert sum(step.waits) == counts[CLAIMED]
            assert sum(step.runs) == counts.total() - counts[CLAIMED]

    assert found.keys() == expected.keys()
    assert [tuple(one) for one in failed] == [(*key, n) for key, n in groups.most_common() if n]


RESULTS = (COMPLETED, RETURNED, CLAIMED, "RETRIED", "CANCELLED", "OH_NO", "TASK_TIMEOUT")


def test_a_queue_without_counts_has_no_series(
    connect: Connect,
) -> None:
    """A queue without counts is missing, and a step without counts is empty."""
    conn = connect()
    assert (series(conn, HOUR, 60), HistoryStore(conn).failures(HOUR, 5)) == ({}, [])

    counted(conn, MINUTE, 3, "mail", "", CLAIMED, bucket=2)
    (steps,) = series(conn, HOUR, 60).values()

    assert [step for step in steps if step != TimeStep()] == [
        TimeStep(waits=(0, 0, 1, *EMPTY_HISTOGRAM[3:]))
    ]


def test_steps_and_failures_are_read_through_the_history_key(connect: Connect) -> None:
    """Steps and failures are read through the key of the history."""
    conn = connect()
    for state in ("empty", "stale", "large"):
        session = connect()
        notices = explained(Claimer(session))
        series(session, HOUR, 60)
        HistoryStore(session).failures(HOUR, 5)

        text = "\n".join(notices)
        assert len(re.findall(r"Index Cond: \(\(width = .*\) AND \(at > ", text)) == 2, (
            state,
            text,
        )
        assert "Seq Scan" not in text, state

        if state == "empty":
            rows = (
                "SELECT 60, now() - n * interval '1 min', 'mail', 'shop.' || m, 'COMPLETED', 1, 0, "
                "array_fill(0, ARRAY[16])"
            )
            series_ = "generate_series(1, 1000) AS n, generate_series(1, 9) AS m"
            conn.execute(f"{INTO} {rows} FROM {series_}".encode())
        else:
            conn.execute("ANALYZE horsies_history")


def test_waiting_gates_are_counted_by_workflow_and_name(connect: Connect) -> None:
    """Waiting gates are counted by workflow and name, with the run of the oldest.

    Gates with and without a timeout count; timers, decided gates and gates of ended runs do not.
    """
    runs = []
    for timeout in (None, HOUR, None):
        flow = Workflow("order")
        flow.gate("approve", timeout=timeout)
        flow.sleep(2 * HOUR, name="a night")
        runs.append(flow.send())

    other = Workflow("other")
    other.gate("look")
    ended = other.send()
    drain(raise_errors=False)

    runs[2].approve("approve", actor="ada")
    ended.cancel(actor="ada")
    drain(raise_errors=False)

    (found,) = HealthStore(connection).waiting_gates()

    assert (found.workflow, found.gate, found.many, found.run) == (
        "order",
        "approve",
        2,
        runs[0].workflow_id,
    )
    assert WorkflowRun.objects.filter(pk=found.run).exists()
