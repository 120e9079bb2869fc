"""Which tasks a pass claims: tasks of hundreds of queues in one order, and no young task that its
worker does not know.

Idle queues cost nothing, and tasks that are left to other workers block none. The short pass is
compared with the whole one, on the same rows.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.base import sql_text
from horsies_django.store.passes import Passed
from horsies_django.store.tasks import Served
from tests.conftest import Claimer, limit, put, sql
from tests.db.conftest import Aside, Claimers, Connect, heard, impatient, register, wait_for_waiting
from tests.db.test_pass import aware, done
from tests.db.test_statements import blocks, complete, explained, plans, states
from tests.support.factories import now, serving
from tests.support.sizes import examples

QUEUES = """
INSERT INTO horsies_limits (
  queue_name, priority, max_concurrency, partition_by_task, partition_version)
SELECT 'queue-' || number, 1 + number %% 3, %(cap)s, false, 0
FROM generate_series(0, %(count)s - 1) AS number
"""


def queues(count: int, cap: int | None = None) -> list[str]:
    """Make ``count`` queues with three priorities, and return their names."""
    sql("DELETE FROM horsies_limits WHERE queue_name <> '*'")
    sql(QUEUES, {"count": count, "cap": cap})
    return [f"queue-{number}" for number in range(count)]


def of_queues(worker: Claimer, names: list[str]) -> Claimer:
    worker.served = Served(names)
    return worker


def touched(worker: Claimer, outcomes: str | None = None, sync: int = 0) -> int:
    """Return how many blocks a pass touches, and undo the pass."""
    params = {
        "worker": worker.id,
        "channel": worker.channel,
        "outcomes": outcomes,
        "releases": None,
        "starts": None,
        "queues": worker.served.queues_array,
        "news": None,
        "expired_leases": False,
        "max_crashes": 0,
        "grace": None,
        "cursors": None,
        "now": None,
        "max_bytes": None,
        **Wanted(sync=sync)._asdict(),
    }
    return blocks(worker.conn, sql_text("tasks/pass"), params)


@pytest.mark.parametrize("cap", [None, 5])
def test_queues_without_tasks_cost_a_claim_and_a_settle_nothing(
    claimer: Claimers, cap: int | None
) -> None:
    found = {}
    for count in (20, 600):
        names = queues(count, cap)
        worker = of_queues(claimer(), names)
        put(queue=names[7])

        claiming = touched(worker, sync=4)
        (claim,) = worker.run_pass(sync=4).claims

        outcome = (
            f'[{{"id": "{claim.id}", "generation": {claim.generation}, "status": "COMPLETED"}}]'
        )
        settling = touched(worker, outcome, sync=4)
        worker.run_pass(outcomes=complete([claim]))
        found[count] = claiming, settling

    assert all(large <= small + 20 for small, large in zip(*found.values(), strict=True)), found


@pytest.mark.parametrize(("served", "cap"), [(8, None), (9, None), (40, None), (9, 2), (40, 2)])
def test_tasks_of_many_queues_come_in_one_order(
    claimer: Claimers, served: int, cap: int | None
) -> None:
    names = queues(60, cap)
    generator = random.Random(served)
    mine = generator.sample(names, served)
    worker = of_queues(claimer(), mine)
    order = []

    for _ in range(150):
        queue = generator.choice(names)
        priority = generator.choice([1, 50, 100])
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


def test_a_pass_over_many_queues_returns_the_next_due_time(claimer: Claimers) -> None:
    """A pass over many queues returns when the next task of any of them is due."""
    worker = of_queues(claimer(), queues(50, 1))
    put(queue="queue-33", delay=timedelta(hours=1))

    assert 3_500 < (worker.run_pass(sync=1).due_in or 0) <= 3_600


def test_queues_with_tasks_are_found_by_leaps_in_the_index(
    claimer: Claimers, connect: Connect
) -> None:
    names = queues(60)
    admin = connect()

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
KNOWN = "shop.tasks.old"
STRANGE = "shop.tasks.new"


@pytest.fixture
def old(claimer: Claimers) -> Claimer:
    """Return a worker that knows one task."""
    return knowing(claimer())


def knowing(worker: Claimer, **columns: Any) -> Claimer:
    """Register a worker that knows one task, and return it."""
    serving(*worker.served.queues, id=worker.id, **{"task_names": [KNOWN], "wire": 1, **columns})
    return worker


def claimed(worker: Claimer, sync: int = 10, **options: Any) -> list[uuid.UUID]:
    return [claim.id for claim in worker.run_pass(sync=sync, grace=GRACE, **options).claims]


def test_an_unknown_task_goes_to_another_worker_at_attempt_one(
    old: Claimer, claimer: Claimers
) -> None:
    """A task given back by a worker that does not know it goes to another as its first attempt."""
    (id_,) = put(name=STRANGE)
    (met,) = old.run_pass(sync=1).claims

    assert claimed(old, releases=[met]) == []
    task = Task.objects.get(pk=id_)
    assert (task.status, task.retry_count, task.claimed_by, task.started_at) == (
        "PENDING",
        0,
        None,
        None,
    )

    assert claimed(knowing(claimer(), task_names=[])) == [], "one that knows nothing leaves all"
    (claim,) = knowing(claimer(), task_names=[STRANGE]).run_pass(sync=1, grace=GRACE).claims
    assert (claim.id, claim.attempt) == (id_, 1)

    others = put(2, name=STRANGE)
    earlier = knowing(claimer(), task_names=None, wire=None)
    assert claimed(earlier) == others, (
        "one of an earlier release does not say what it knows, and leaves nothing"
    )


@pytest.mark.promise("S2.21")
def test_a_worker_takes_an_unknown_task_after_the_grace(old: Claimer) -> None:
    """A worker claims a task that it does not know once the task has been due for the grace."""
    young, aged = put(2, name=STRANGE)
    Task.objects.filter(pk=aged).update(enqueued_at=now() - GRACE)
    Task.objects.filter(pk=young).update(sent_at=now() - 2 * GRACE)
    past = put(name=STRANGE, good_until=dt.datetime.now(dt.UTC) - GRACE)

    passed = old.run_pass(sync=10, grace=GRACE)

    assert [claim.id for claim in passed.claims] == [aged], (
        "it counts from when it became due, not from the send"
    )
    assert passed.expired == past


def test_a_worker_claims_no_task_of_a_newer_wire_format(old: Claimer, claimer: Claimers) -> None:
    """A task sent by a newer release is left to workers that can read its wire format."""
    (newer,) = put(name=KNOWN, options='{"wire": 2}')
    (today,) = put(name=KNOWN, options='{"wire": 1, "timeout_ms": 1000}')

    assert claimed(old) == [today]
    assert claimed(knowing(claimer(), wire=2)) == [newer]


def test_the_permit_of_a_released_task_goes_to_a_known_task(old: Claimer) -> None:
    """The permit of a task that is given back goes to a task that the worker knows."""
    limit("default", max_concurrency=1)
    put(name=STRANGE)
    (met,) = old.run_pass(sync=5).claims
    (known,) = put(name=KNOWN)

    assert claimed(old, releases=[met]) == [known]
    assert Task.objects.filter(status="PENDING").count() == 1


def test_a_worker_that_claims_no_waiting_task_wakes_no_other(
    old: Claimer, connect: Connect
) -> None:
    limit("default", max_concurrency=2)
    put(3, name=STRANGE)
    met = old.run_pass(sync=2).claims

    listener = connect()
    listener.execute(f'LISTEN "{old.channel}_new"'.encode(), prepare=False)

    old.run_pass(sync=2, releases=met, grace=GRACE)
    assert heard(listener), "others hear of what came back"

    assert old.run_pass(sync=2, grace=GRACE).claims == []
    assert heard(listener) == []


def test_claims_and_prefetches_skip_unknown_tasks(
    old: Claimer,
) -> None:
    """With a grace, a pass claims and prefetches only the tasks that its worker knows."""
    put(5, name=STRANGE)
    known = put(5, name=KNOWN)

    assert claimed(old, 2) == known[:2]

    passed = old.run_pass(wanted=Wanted(1, prefetch=4, lease=GRACE), grace=GRACE)
    assert [claim.id for claim in passed.claims + passed.prefetched] == known[2:]

    assert len(old.run_pass(sync=10).claims) == 5, "one that does not ask takes everything"


def test_unknown_tasks_of_a_full_partition_hide_no_other_task(old: Claimer) -> None:
    """Unknown tasks hide no known task behind them, neither in their partition nor in another."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(50, name=STRANGE, kwargs=['{"tenant": 1}'] * 50)
    first = put(1, name=KNOWN, kwargs=['{"tenant": 1}'])
    second = put(1, name=KNOWN, kwargs=['{"tenant": 2}'])

    assert claimed(old) == first + second


def test_a_claim_that_skips_unknown_tasks_reads_its_index(
    claimer: Claimers, connect: Connect
) -> None:
    """The claim that leaves out unknown tasks reads its index and never sorts."""
    for state in states(connect(), name=STRANGE):
        worker = knowing(claimer())
        put(name=KNOWN)
        notices = explained(worker)

        assert len(claimed(worker, 4)) == 1, state
        looking = [
            plan for plan in plans(notices, "horsies_worker_knows(") if "horsies_tasks " in plan
        ]
        assert looking, state

        for plan in looking:
            assert "horsies_tasks_claim" in plan, state
            assert not re.search(r"^ *(->)? *Sort\b", plan, re.MULTILINE), state
            assert "Filter: " in plan, state
            assert "horsies_worker_knows" not in plan.partition("Index Scan")[2], (
                "it is part of the plan, not a call"
            )


def short_pass(
    worker: Claimer,
    queue: str | None = "default",
    sync: int = 0,
    async_: int = 0,
    *outcomes: Outcome,
) -> Any:
    """Run a pass that is short if possible."""
    return worker.run_pass(sync, async_, news=queue, outcomes=list(outcomes))


def is_short(worker: Claimer, *asked: Any) -> bool:
    """Return whether such a pass is short, and undo it."""
    with worker.conn.transaction(force_rollback=True):
        return bool(short_pass(worker, *asked).short)


TASKS = st.lists(
    st.fixed_dictionaries(
        {
            "queue": st.sampled_from(["default", "default", "mail"]),
            "lane": st.sampled_from(["sync", "async"]),
            "priority": st.sampled_from([1, 50, 100, 100]),
            "due_at": st.sampled_from([None, -60, -60, -30, 3_600]),
            "good_until": st.sampled_from([None, None, 3_600]),
            "status": st.sampled_from(
                ["PENDING", "PENDING", "mine", "mine", "another's", "parked"]
            ),
        }
    ),
    max_size=12,
)
ENDS = st.lists(
    st.sampled_from(["COMPLETED", "CANCELLED", "an older claim's", "nobody's"]), max_size=6
)
NOBODYS = Claim(uuid.uuid4(), 1, "sync", "t", "{}")  # a pass with a release is a whole one
LOOK = """
SELECT to_jsonb(t) - '{claimed_at,started_at,finished_at}'::text[],
       claimed_at > now(), started_at > now(), finished_at > now(),
       ARRAY(SELECT row(to_jsonb(a) - 'finished_at', a.finished_at > now())
             FROM horsies_task_attempts a WHERE a.task_id = t.id)
FROM horsies_tasks t ORDER BY id
"""


def build(
    conn: psycopg.Connection[Any], tasks: list[dict[str, Any]], me: uuid.UUID
) -> list[uuid.UUID]:
    """Put these tasks into an empty table and return the ids of those that ``me`` runs."""
    conn.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
    mine = []
    for task in tasks:
        moments = {
            name: task[name] and aware(seconds=task[name]) for name in ("due_at", "good_until")
        }
        (id_,) = put(queue=task["queue"], lane=task["lane"], priority=task["priority"], **moments)

        if task["status"] == "parked":
            Task.objects.filter(pk=id_).update(parked=True)
        elif task["status"] != "PENDING":
            owner = me if task["status"] == "mine" else uuid.uuid4()
            Task.objects.filter(pk=id_).update(
                status="RUNNING",
                claimed_by=owner,
                claimed_at=Now(),
                started_at=Now(),
                claim_generation=7,
            )

        if task["status"] == "mine":
            mine.append(id_)

    return mine


def ending(mine: list[uuid.UUID], ends: list[str]) -> list[Outcome]:
    """Return outcomes for the tasks that this worker runs, and for other tasks."""
    found = []
    for end in ends:
        id_ = mine.pop() if mine and end != "nobody's" else uuid.uuid4()
        status, generation = (end, 7) if end.isupper() else ("COMPLETED", 6)
        error = ("TASK_CANCELLED", "no") if status == "CANCELLED" else (None, None)

        found.append(
            Outcome(id_, generation, status, '{"ok": "\\u00e4 \\" \\\\"}', *error, child_pid=42)
        )
    return found


@pytest.mark.thorough
def test_a_short_pass_has_the_same_effects_as_a_whole_one(claimer: Claimers) -> None:
    worker = claimer()

    def after(run: Callable[[], Passed]) -> tuple[Any, ...]:
        """Return the result of a pass and the rows after it; then undo it."""
        with worker.conn.transaction(force_rollback=True):
            passed = run()
            # The clock decides when they were due.
            taken = [claim._replace(due_in=0.0) for claim in passed.claims]
            claims = {
                lane: [claim for claim in taken if claim.lane == lane] for lane in ("sync", "async")
            }

            return (
                passed.landed,
                claims,
                passed.again,
                worker.conn.execute(LOOK.encode()).fetchall(),
            )

    @settings(max_examples=examples(60, 1_000), deadline=None, database=None, derandomize=True)
    @given(tasks=TASKS, ends=ENDS, slots=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def compare(tasks: list[dict[str, Any]], ends: list[str], slots: tuple[int, int]) -> None:
        outcomes = ending(build(worker.conn, tasks, worker.id), ends)
        whole = after(lambda: worker.run_pass(*slots, outcomes=outcomes, releases=[NOBODYS]))

        assert is_short(worker, "default", *slots, *outcomes)
        assert after(lambda: short_pass(worker, "default", *slots, *outcomes)) == whole

    compare()


LIMITS: list[dict[str, Any]] = [
    {"max_concurrency": 5},
    {"max_concurrency": 0},
    {"local_limit": 5},
    {"partition_by_args": ["a"], "partition_max_concurrency": 5},
    {"partition_by_args": ["a"], "partition_local_limit": 5},
]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_limit_of_a_queue_that_it_touches_makes_it_a_whole_one(
    claimer: Claimers, limits: dict[str, Any]
) -> None:
    worker = claimer(default=100, mail=50)
    put(2)
    put(queue="mail")
    (claim,) = worker.run_pass(sync=1).claims
    assert claim.queue_name == "mail"

    limit("mail", **limits)
    assert not is_short(worker, "default", 1, 0, done(claim))
    assert not is_short(worker, None, 0, 0, done(claim))
    assert not is_short(worker, "mail", 1)

    passed = short_pass(worker, "default", 1)
    assert passed.short
    (other,) = passed.claims
    assert is_short(worker, "default", 0, 0, done(other)), "it does not touch the other queue"

    limit("mail", **dict.fromkeys(limits))
    passed = short_pass(worker, "default", 1, 0, done(claim))
    assert (passed.short, len(passed.claims), passed.landed) == (True, 1, {claim.id})


@pytest.mark.parametrize(
    ("asked", "many"),
    [
        ({"releases": [NOBODYS]}, 2),
        ({"starts": [NOBODYS]}, 2),
        ({"expired_leases": True}, 2),
        ({"grace": dt.timedelta(1)}, 2),
        ({"cursors": "{}"}, 2),
        ({"wanted": Wanted(2, prefetch=1, lease=dt.timedelta(minutes=1))}, 2),
        ({"wanted": Wanted(2, batch=1)}, 1),
        ({"wanted": Wanted(2, total=1)}, 1),
    ],
)
def test_what_only_a_whole_pass_does_makes_it_one(
    claimer: Claimers, asked: dict[str, Any], many: int
) -> None:
    put(3)

    passed = claimer().run_pass(sync=2, news="default", **asked)

    assert (passed.short, len(passed.claims)) == (False, many)


OBSTACLES = {
    "a cap came to the cluster": (
        "UPDATE horsies_limits SET max_concurrency = 5 WHERE queue_name = '*'"
    ),
    "the row of the queue went": "DELETE FROM horsies_limits WHERE queue_name = 'default'",
    "its worker was declared dead": "UPDATE horsies_heartbeats SET died_at = now()",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_it_becomes_a_whole_one_after(claimer: Claimers, connect: Connect, obstacle: str) -> None:
    worker = register(claimer())
    put(2)
    (claim,) = worker.run_pass(sync=1).claims
    connect().execute(OBSTACLES[obstacle].encode())

    assert not is_short(worker, "default", 1, 0, done(claim))

    passed = short_pass(worker, "default", 1)
    assert (passed.short, len(passed.claims)) == (False, 1 if "cap" in obstacle else 0)


def test_rows_that_somebody_holds_are_left_out_without_waiting(
    claimer: Claimers, connect: Connect
) -> None:
    worker = impatient(claimer())
    other = connect()
    put(3)
    running = worker.run_pass(sync=2).claims

    with other.transaction():
        other.execute(
            "SELECT FROM horsies_tasks WHERE id = %s OR status = 'PENDING' FOR UPDATE",
            [running[0].id],
        )

        passed = short_pass(worker, "default", 1, 0, *map(done, running))
        assert (passed.claims, passed.landed) == ([], {running[1].id})

    assert len(short_pass(worker, "default", 1).claims) == 1


@pytest.mark.promise("S1.48", "S2.22")
def test_eight_claimers_of_both_kinds_get_each_task_once(claimer: Claimers, aside: Aside) -> None:
    """Eight claimers that mix short and whole passes get each task once, and leave none."""
    ids = put(800)
    barrier = threading.Barrier(8)

    def drain(worker: Claimer) -> list[uuid.UUID]:
        barrier.wait(30)
        got: list[uuid.UUID] = []
        while claims := short_pass(worker, "default", 3).claims + worker.run_pass(sync=4).claims:
            got += [claim.id for claim in claims]
        return got

    shares = [aside(drain, claimer()) for _ in range(8)]

    assert sorted(id_ for share in shares for id_ in share.result()) == sorted(ids)
    assert set(Task.objects.values_list("status", "claim_generation")) == {("RUNNING", 1)}


@pytest.mark.parametrize("settling", [False, True])
def test_a_limit_that_appears_is_waited_for_and_then_kept(
    claimer: Claimers, connect: Connect, aside: Aside, settling: bool
) -> None:
    worker = claimer()
    changer = connect()
    looker = connect()
    put(2)
    outcomes = [done(claim) for claim in worker.run_pass(sync=1).claims if settling]
    short_pass(worker, "default", 0)  # so that its plan is made

    with changer.transaction():
        changer.execute("LOCK TABLE horsies_limits IN ACCESS EXCLUSIVE MODE")
        passing = aside(short_pass, worker, "default", 1, 0, *outcomes)
        wait_for_waiting(looker, worker.conn)
        changer.execute(
            "UPDATE horsies_limits SET max_concurrency = 0 WHERE queue_name = 'default'"
        )

    passed = passing.result(30)
    assert (passed.short, passed.claims, len(passed.landed)) == (False, [], len(outcomes))


def test_no_limit_appears_between_the_settle_and_the_claim(
    claimer: Claimers, connect: Connect
) -> None:
    """No limit appears between the settle and the claim of a short pass."""
    worker = claimer()
    changer = connect()
    put()
    (claim,) = worker.run_pass(sync=1).claims

    with worker.conn.transaction():
        assert short_pass(worker, None, 0, 0, done(claim)).landed == {claim.id}
        with pytest.raises(psycopg.errors.LockNotAvailable):
            changer.execute(
                "SELECT horsies_configure_queue('default', '{\"max_concurrency\": 0}', false, "
                "'configure', 'ada', NULL, 'nobody')"
            )


def test_finished_tasks_are_announced_only_to_those_who_wait(
    claimer: Claimers, connect: Connect
) -> None:
    worker = claimer()
    listener = connect()
    listener.execute(f"LISTEN {worker.channel}_done".encode())

    put(420)
    outcomes = [done(claim) for claim in worker.run_pass(sync=420).claims]

    worker.run_pass(outcomes=outcomes[:10])
    assert heard(listener) == []

    connect().execute(
        "INSERT INTO horsies_waiters VALUES (gen_random_uuid(), now() + interval '1 h')"
    )
    worker.run_pass(outcomes=outcomes[10:])

    told = [payload.split(" ") for payload in heard(listener)]
    assert sorted(map(len, told)) == [10, 200, 200]
    assert {uuid.UUID(id_) for ids in told for id_ in ids} == {
        outcome.id for outcome in outcomes[10:]
    }
    assert TaskAttempt.objects.count() == 420
