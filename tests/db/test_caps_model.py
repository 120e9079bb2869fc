"""The pass and the model of caps agree on random queues, limits, loads and waiting tasks.

Each example lives in a transaction that is rolled back. This module computes partitions with code
of its own, so that the SQL rule is checked as well.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.store.workers import WorkerStore
from tests.db.conftest import Connect
from tests.db.lives import enlist
from tests.support.models.caps import Allotment, Budget, Holding, Limits, Waiting, allot
from tests.support.sizes import examples

CALM = settings(
    max_examples=examples(100, 3_000),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NOW = dt.datetime.now(dt.UTC)
SOON = NOW + dt.timedelta(hours=1)
PAST = NOW - dt.timedelta(hours=1)
LEASE = dt.timedelta(minutes=5)
SERVED = ("a", "b", "c")
ME, NEIGHBOUR, DEAD, STOPPED = (uuid.UUID(int=number) for number in range(1, 5))

INSERT = """
INSERT INTO horsies_tasks (
  id, task_name, queue_name, lane, priority, kwargs, status, enqueued_at, good_until, parked,
  claimed_by, claimed_at, claim_expires_at, started_at, claim_generation,
  partition_version, partition_key)
SELECT row.id, row.task_name, row.queue_name, row.lane, row.priority, row.kwargs, row.status,
       row.enqueued_at, row.good_until, row.parked,
       row.claimed_by, row.claimed_at, row.claim_expires_at, row.started_at, row.generation,
       CASE WHEN row.stale THEN queue.partition_version - 1 ELSE queue.partition_version END,
       CASE WHEN row.stale THEN '{"a": 0}'
            ELSE horsies_partition_key(
              queue.partition_by_args, queue.partition_by_task, row.kwargs, row.task_name, NULL)
       END
FROM jsonb_to_recordset(%s) AS row (
  id uuid, task_name text, queue_name text, lane text, priority int, kwargs json, status text,
  enqueued_at timestamptz, good_until timestamptz, parked boolean,
  claimed_by uuid, claimed_at timestamptz, claim_expires_at timestamptz, started_at timestamptz,
  generation int, stale boolean)
JOIN horsies_queues queue ON queue.name = row.queue_name
"""

KEYS = """
SELECT t.id,
       horsies_partition_key(
         q.partition_by_args, q.partition_by_task, t.kwargs, t.task_name, t.codec),
       q.partition_version
FROM horsies_tasks t JOIN horsies_queues q ON q.name = t.queue_name
"""

Rows = dict[uuid.UUID, dict[str, Any]]


class Row(NamedTuple):
    """A task of an example; without a ``holder`` it waits.

    ``times``: how many equal tasks there are.
    """

    queue: str
    name: str
    kwargs: dict[str, int | None]
    lane: str = "sync"
    priority: int = 100
    seconds: int = 0  # before now; negative: due later
    late: bool = False
    stale: bool = False
    parked: bool = False
    holder: uuid.UUID | None = None
    lease: str = "running"  # or "living", "ended": claimed
    times: int = 1


class Task(NamedTuple):
    """A task of an example, as the model needs it."""

    id: uuid.UUID
    row: Row
    partition: Any
    parked: bool


NAMES = st.sampled_from(["t", "u"])
KWARGS = st.sampled_from([{}, {"a": 0}, {"a": 1}, {"a": 1, "b": 0}, {"a": None, "b": 0}])
ROWS = st.builds(
    Row,
    queue=st.sampled_from(["a", "a", "b", "c"]),
    name=NAMES,
    kwargs=KWARGS,
    lane=st.sampled_from(["sync", "sync", "async"]),
    priority=st.sampled_from([1, 100]),
    seconds=st.sampled_from([5, 5, 9, 9, -3600]),
    late=st.sampled_from([False, False, False, False, True]),
    stale=st.sampled_from([False, False, True]),
    parked=st.booleans(),
    holder=st.none(),
    lease=st.just("running"),
    times=st.sampled_from([2, 1, 5, 30]),
)
HELD = st.builds(
    Row,
    queue=st.sampled_from(["a", "a", "b", "c", "elsewhere"]),
    name=NAMES,
    kwargs=KWARGS,
    lane=st.just("sync"),
    priority=st.just(100),
    seconds=st.just(5),
    late=st.booleans(),
    stale=st.booleans(),
    parked=st.just(False),
    holder=st.sampled_from([ME, NEIGHBOUR, DEAD]),
    lease=st.sampled_from(["running", "running", "living", "ended"]),
    times=st.sampled_from([1, 1, 2]),
)
RULES = [
    (["a"], False),
    (None, False),
    (None, True),
    (["a"], False),
    (["a"], False),
    (["a"], True),
    (["a", "b"], False),
    ([], False),
    ([], True),
    (["no such name"], False),
]
QUEUE = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([1, 1, 50]),
        "max_concurrency": st.sampled_from([None, None, None, None, 6, 3, 1, 0]),
        "local_limit": st.sampled_from([None, None, 1, 2, 4]),
        "rule": st.sampled_from(RULES),
        "partition_max_concurrency": st.sampled_from([1, 2, None, 3]),
        "partition_local_limit": st.sampled_from([None, None, 1, 2]),
    }
)
WORLDS = st.fixed_dictionaries(
    {
        "queues": st.fixed_dictionaries({"a": QUEUE}, optional={"b": QUEUE, "c": QUEUE}),
        "cluster": st.sampled_from([None, None, None, None, None, 9, 3, 0]),
        "neighbour": st.booleans(),
        "rows": st.lists(ROWS, min_size=2, max_size=12),
        "held": st.lists(HELD, max_size=5),
        "soft": st.booleans(),
        "slots": st.tuples(
            st.sampled_from([2, 1, 6, 0]), st.sampled_from([1, 3, 0]), st.sampled_from([3, 1, 0])
        ),
        "total": st.sampled_from([None, None, None, None, 6, 3, 0]),
        "batch": st.sampled_from([0, 0, 0, 1, 2]),
        "expired_leases": st.booleans(),
    }
)


# Two rounds of one pass: the tasks prefetched by the first count in the second.
TWO_ROUNDS = {
    "queues": {"a": {"priority": 1, "rule": (["a"], False), "partition_max_concurrency": 2}},
    "cluster": None,
    "neighbour": False,
    "rows": [Row("a", "t", {}, seconds=5, times=30)],
    "held": [],
    "soft": True,
    "slots": (0, 0, 4),
    "total": None,
    "batch": 0,
    "expired_leases": False,
}

# A scan that ends among tasks of a full partition hides the task behind them, which comes before
# the tasks of the other queue.
HIDDEN = {
    **TWO_ROUNDS,
    "queues": {
        "a": {"priority": 1, "rule": (["a"], False), "partition_max_concurrency": 1},
        "b": {"priority": 1, "rule": (None, False)},
    },
    "rows": [
        Row("a", "t", {"a": 0}, seconds=5, times=40),
        Row("a", "t", {"a": 1}, seconds=5),
        Row("b", "t", {}, seconds=5, times=2),
    ],
    "soft": False,
    "slots": (2, 0, 0),
}

# Two lanes share the free permits of the cluster, and a claim whose lease has ended holds none.
SHARED = {
    **TWO_ROUNDS,
    "queues": {"a": {"priority": 1, "rule": (None, False)}},
    "cluster": 3,
    "soft": False,
    "slots": (6, 6, 0),
    "held": [Row("a", "t", {}, holder=NEIGHBOUR, lease="ended")],
    "rows": [Row("a", "t", {}, seconds=5, times=5), Row("a", "t", {}, "async", seconds=5, times=5)],
}

# In soft mode claims hold no permit, and the late one of several tasks with room expires.
IDLE_CLAIMS = {
    **TWO_ROUNDS,
    "queues": {"a": {"priority": 1, "rule": (None, False), "max_concurrency": 2}},
    "slots": (2, 0, 0),
    "held": [Row("a", "t", {}, holder=NEIGHBOUR, lease="living", times=2)],
    "rows": [Row("a", "t", {}, seconds=9, late=True), Row("a", "t", {}, seconds=5, times=5)],
}


class World:
    """An example written into the database, and the same example as the model sees it."""

    def __init__(self, conn: psycopg.Connection[Any], wish: dict[str, Any]) -> None:
        self.conn = conn
        self.queues = wish["queues"]
        self.soft = wish["soft"]
        self.expired_leases = wish["expired_leases"]
        self.cluster = None if self.soft else wish["cluster"]  # refused together
        self.workers = 1 + wish["neighbour"]

        self.limits = {
            name: Limits(**{key: value for key, value in columns.items() if key != "rule"})
            for name, columns in self.queues.items()
        }

        self.tasks: list[Task] = []
        self.declare()
        self.write(wish["held"])
        self.write(wish["rows"])

    def declare(self) -> None:
        """Write the queues with the statement that changes them; first they had another rule."""
        store = QueueStore(self.conn)
        for name, columns in self.queues.items():
            by_args, by_task = columns["rule"]
            changes = {**columns, "partition_by_args": by_args, "partition_by_task": by_task}
            del changes["rule"]
            store.configure(name, changes, action="queue.set", actor="a test")

        if self.cluster is not None:
            store.configure(
                "*", {"max_concurrency": self.cluster}, action="queue.set", actor="a test"
            )

        if self.workers > 1:
            enlist(self.conn, NEIGHBOUR, *SERVED)

    def write(self, rows: list[Row]) -> None:
        """Insert tasks; only tasks whose partition is full for every worker are parked, as no
        others ever are.
        """
        added = []
        for row in rows:
            if row.queue not in self.queues and row.queue != "elsewhere":
                continue

            partition = self.partition(row)
            parked = (
                row.parked
                and row.holder is None
                and row.seconds > 0
                and self.is_full(row.queue, partition)
            )

            for _ in range(row.times):
                task = Task(
                    uuid.UUID(int=100 + len(self.tasks) + len(added)), row, partition, parked
                )
                added.append(task)

        self.conn.execute(INSERT, [json.dumps([self.columns(task) for task in added], default=str)])
        self.tasks += added

    def columns(self, task: Task) -> dict[str, Any]:
        row = task.row
        status = "PENDING"
        if row.holder is not None:
            status = "RUNNING" if row.lease == "running" else "CLAIMED"

        return {
            "id": task.id,
            "task_name": row.name,
            "queue_name": row.queue,
            "lane": row.lane,
            "priority": row.priority,
            "kwargs": row.kwargs,
            "enqueued_at": NOW - dt.timedelta(seconds=row.seconds),
            "parked": task.parked,
            "status": status,
            "good_until": PAST if row.late else SOON,
            "claimed_by": row.holder,
            "claimed_at": row.holder and PAST,
            "started_at": PAST if row.holder and row.lease == "running" else None,
            "claim_expires_at": {"living": SOON, "ended": PAST}.get(row.lease),
            "generation": int(row.holder is not None),
            "stale": row.stale and not task.parked,
        }

    def partition(self, row: Row) -> Any:
        """Return the partition of a task by the rule of its queue, with code independent of the
        SQL.
        """
        by_args, by_task = (
            self.queues[row.queue]["rule"] if row.queue in self.queues else (None, False)
        )
        if by_args is None and not by_task:
            return None

        names = sorted(row.kwargs) if by_args == [] else by_args or []
        return tuple((name, row.kwargs.get(name)) for name in names), by_task and row.name

    def held(self) -> list[Holding]:
        """Return the tasks that hold permits: all held ones but claims under an ended lease."""
        return [
            Holding(
                task.row.queue, task.partition, task.row.holder == ME, task.row.lease == "running"
            )
            for task in self.tasks
            if task.row.holder and task.row.lease != "ended"
        ]

    def is_full(self, queue: str, partition: Any) -> bool:
        limit = self.limits[queue]
        load = sum(
            (one.queue, one.partition) == (queue, partition) and (one.running or not self.soft)
            for one in self.held()
        )
        caps = (
            limit.partition_max_concurrency,
            limit.partition_local_limit and limit.partition_local_limit * self.workers,
        )
        return partition is not None and any(cap is not None and load >= cap for cap in caps)

    def waiting(self) -> list[Waiting]:
        """Return the tasks that could start now, with the claims whose lease has ended if the pass
        releases them.
        """
        return [
            Waiting(
                task.id.int,
                task.row.queue,
                task.row.lane,
                task.row.priority,
                NOW - dt.timedelta(seconds=task.row.seconds),
                task.partition,
                task.row.late,
            )
            for task in self.tasks
            if task.row.queue in self.queues
            and task.row.seconds > 0
            and (task.row.holder is None or (task.row.lease == "ended" and self.expired_leases))
        ]

    def rows(self) -> Rows:
        return dict(self.conn.execute("SELECT id, to_jsonb(t) FROM horsies_tasks t").fetchall())

    def keys(self) -> Rows:
        """Return the key that each task would get if it were sent now."""
        return {
            id_: {"partition_key": key, "partition_version": version}
            for id_, key, version in self.conn.execute(KEYS)
        }


@pytest.fixture
def conn(connect: Connect) -> psycopg.Connection[Any]:
    """Return a connection to a database with queues of an older rule, and with workers one of which
    is alive.
    """
    conn = connect()
    for name in (*SERVED, "elsewhere"):
        rule = {"partition_by_args": ["b"]}
        QueueStore(conn).configure(name, rule, action="queue.set", actor="a test", create=True)

    for worker in (ME, DEAD, STOPPED):
        enlist(conn, worker, *SERVED)

    conn.execute("UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [DEAD])
    WorkerStore(conn).stop(STOPPED)
    return conn


def compare(world: World, expected: Allotment, passed: Passed, before: Rows, after: Rows) -> None:
    """Compare a pass with the model: the tasks that it took, and that it changed no others."""
    assert [claim.id.int for claim in passed.claims] == expected.start
    assert [claim.id.int for claim in passed.prefetched] == expected.ahead
    assert (passed.again, passed.dead) == (False, False)

    tasks = {task.id.int: task for task in world.tasks}
    expired = {id_.int for id_ in passed.expired}
    assert expired <= set(expected.expired)
    ahead = {(tasks[id_].row.queue, tasks[id_].partition) for id_ in expected.ahead}

    # The pass does not read these again.
    for task in (tasks[id_] for id_ in set(expected.expired) - expired):
        full_here = (task.row.queue, task.partition) in ahead
        assert (
            task.parked
            or full_here
            or world.limits[task.row.queue].partition_local_limit is not None
        )

    # Tasks of these partitions were unparked, and perhaps parked again.
    unparked = {(tasks[id_].row.queue, tasks[id_].partition) for id_ in expired}
    fresh = world.keys()
    parked = set(expected.parked) | {task.id.int for task in world.tasks if task.parked}

    for task in world.tasks:
        row = after[task.id]
        if task.id.int in expected.start + expected.ahead:
            taken = "RUNNING" if task.id.int in expected.start else "CLAIMED"
            assert (row["status"], row["claimed_by"], row["parked"]) == (taken, str(ME), False)
            assert row["claim_generation"] == before[task.id]["claim_generation"] + 1
            assert (
                (row["started_at"] is None)
                == (taken == "CLAIMED")
                == (row["claim_expires_at"] is not None)
            )
        elif task.id.int in expired:
            assert (row["status"], row["parked"]) == ("EXPIRED", False)
        else:
            was = {**before[task.id], "parked": task.id.int in parked}
            if task.row.stale and row["partition_version"] == fresh[task.id]["partition_version"]:
                was |= fresh[task.id]
            if (task.row.queue, task.partition) in unparked:
                was["parked"] = row["parked"]

            ended = task.row.holder and task.row.lease == "ended"
            if ended and world.expired_leases and task.row.queue in world.queues:
                was |= dict.fromkeys(["claimed_by", "claimed_at", "claim_expires_at", "started_at"])
                was["status"] = "PENDING"

            assert row == was


@pytest.mark.thorough
@pytest.mark.promise(
    "S0.6",
    "S0.21",
    "S0.31",
    "S0.35",
    "S0.37",
    "S0.39",
    "S0.40",
    "S1.35",
    "S1.40",
    "S1.42",
    "S1.43",
    "S1.44",
)
@pytest.mark.promise(
    "S2.7",
    "S3.15",
    "S4.4",
    "S4.7",
    "S4.9",
    "S4.10",
    "S4.11",
    "S4.12",
    "S4.13",
    "S4.14",
    "S4.15",
    "S4.16",
)
@pytest.mark.promise("S0.1", "S0.2", "S1.1", "S1.49", "S4.17", "S4.20", "S4.21", "S4.22")
def test_a_pass_claims_the_tasks_of_the_model_in_its_order(
    conn: psycopg.Connection[Any],
) -> None:
    """The pass claims the same tasks as the model, in the same order, and changes no others."""

    @CALM
    @example(TWO_ROUNDS)
    @example(HIDDEN)
    @example(SHARED)
    @example(IDLE_CLAIMS)
    @given(WORLDS)
    def agree(wish: dict[str, Any]) -> None:
        sync, async_, buffer = wish["slots"]
        soft = wish["soft"]
        total = wish["total"]
        batch = wish["batch"]

        budget = Budget(sync, async_, buffer if soft else 0, total, batch or None, soft)
        wanted = Wanted(
            sync,
            async_,
            budget.buffer,
            1_000 if total is None else total,
            batch,
            LEASE if soft else None,
        )

        with conn.transaction(force_rollback=True):
            world = World(conn, wish)
            expected = allot(
                world.waiting(),
                world.limits,
                world.held(),
                budget,
                cluster=world.cluster,
                workers=world.workers,
            )

            before = world.rows()
            passed = TaskStore(conn).run_pass(
                ME,
                "horsies_test",
                Served(world.queues),
                wanted,
                expired_leases=world.expired_leases,
            )

            compare(world, expected, passed, before, world.rows())

    agree()


@pytest.mark.thorough
@pytest.mark.promise("S0.40", "S1.44")
def test_buffered_claims_start_or_go_back_as_in_the_model(
    conn: psycopg.Connection[Any],
) -> None:
    """Prefetched claims start as in the model, and the rest is given back.

    The start counts running tasks by the same arithmetic, and takes the claims in the order in
    which the worker lists them.
    """

    @CALM
    @given(WORLDS)
    def agree(wish: dict[str, Any]) -> None:
        with conn.transaction(force_rollback=True):
            world = World(
                conn,
                {
                    **wish,
                    "soft": True,
                    "held": [*wish["held"], *map(buffered, wish["rows"])],
                    "rows": [],
                },
            )

            asked = [
                task
                for task in world.tasks
                if task.row.lease != "running" and task.row.queue in world.queues
            ]
            mine = [task for task in asked if task.row.holder == ME and task.row.lease == "living"]

            flat = {name: limit._replace(priority=1) for name, limit in world.limits.items()}
            moments = [NOW + dt.timedelta(seconds=place) for place in range(len(mine))]
            waiting = [
                Waiting(
                    task.id.int, task.row.queue, "sync", 1, moment, task.partition, task.row.late
                )
                for moment, task in zip(moments, mine, strict=True)
            ]

            expected = allot(
                waiting, flat, world.held(), Budget(len(mine), 0, soft=True), workers=world.workers
            )

            starts = [Claim(task.id, 1, "sync", "t", "{}") for task in asked]
            passed = TaskStore(conn).run_pass(
                ME, "horsies_test", Served(world.queues), starts=starts
            )

            assert [id_.int for id_ in passed.started] == expected.start
            assert [id_.int for id_ in passed.expired] == expected.expired
            left = {task.id for task in mine} - {*passed.started, *passed.expired}
            assert set(passed.returned) == left

            rows = world.rows()
            for task in asked:
                if task.id in left:
                    now = "PENDING"
                elif task.id in passed.started:
                    now = "RUNNING"
                elif task.id in passed.expired:
                    now = "EXPIRED"
                else:
                    now = "CLAIMED"
                assert rows[task.id]["status"] == now

    agree()


def buffered(row: Row) -> Row:
    """Return a waiting task as one that a worker has prefetched."""
    lease = "ended" if row.priority == 1 and row.stale else "living"
    return row._replace(
        holder=NEIGHBOUR if row.parked and row.stale else ME, lease=lease, seconds=5
    )
