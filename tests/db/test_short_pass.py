"""The short pass does what the pass does, or nothing: it is held against the pass, on the same rows."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.records import Outcome, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.passes import Passed
from tests.conftest import Claimer, limit, put, wait_until
from tests.db.test_pass import aware, done
from tests.support.sizes import examples

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
Connect = Callable[[], psycopg.Connection[Any]]


def short_pass(
    worker: Claimer, queue: str | None = "default", sync: int = 0, async_: int = 0, *outcomes: Outcome
) -> Any:
    """Run a short pass; None when it takes a whole one."""
    return worker.store.run_short_pass(worker.id, worker.channel, queue, Wanted(sync, async_), list(outcomes))


TASKS = st.lists(
    st.fixed_dictionaries({
        "queue": st.sampled_from(["default", "default", "mail"]),
        "lane": st.sampled_from(["sync", "async"]),
        "priority": st.sampled_from([1, 50, 100, 100]),
        "due_at": st.sampled_from([None, -60, -60, -30, 3_600]),
        "good_until": st.sampled_from([None, None, 3_600]),
        "status": st.sampled_from(["PENDING", "PENDING", "mine", "mine", "another's", "parked"]),
    }), max_size=12,
)  # fmt: skip
ENDS = st.lists(st.sampled_from(["COMPLETED", "CANCELLED", "an older claim's", "nobody's"]), max_size=6)
WITH = "claimed_by = %s, claimed_at = now(), started_at = now(), claim_generation = 7"
STATES = {
    "mine": f"status = 'RUNNING', {WITH}",
    "another's": f"status = 'RUNNING', {WITH}",
    "parked": "parked = true",
}
LOOK = """
SELECT id, status, claimed_by, claim_generation, claimed_at > now(), started_at > now(), finished_at > now(), result, error_code,
       parked, ARRAY(SELECT row(a.attempt, a.claim_generation, a.outcome, a.will_retry, a.error_code, a.child_pid, a.worker_id,
                                a.finished_at > now())
                     FROM horsies_task_attempts a WHERE a.task_id = t.id)
FROM horsies_tasks t ORDER BY id
"""


def build(conn: psycopg.Connection[Any], tasks: list[dict[str, Any]], me: uuid.UUID) -> list[uuid.UUID]:
    """Put these tasks into an empty table and return the ids of those that ``me`` runs."""
    conn.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
    mine = []
    for task in tasks:
        values = dict(task)
        status = values.pop("status")
        for name in ("due_at", "good_until"):
            if values[name] is not None:
                values[name] = aware(seconds=values[name])
        (id_,) = put(**values)
        if status != "PENDING":
            owner = [me if status == "mine" else uuid.uuid4()] if "%s" in STATES[status] else []
            conn.execute(f"UPDATE horsies_tasks SET {STATES[status]} WHERE id = %s".encode(), [*owner, id_])
        if status == "mine":
            mine.append(id_)
    return mine


def ending(mine: list[uuid.UUID], ends: list[str]) -> list[Outcome]:
    """Return outcomes for the tasks that this worker runs, and for others."""
    found = []
    for end in ends:
        id_ = mine.pop() if mine and end != "nobody's" else uuid.uuid4()
        status, generation = (end, 7) if end.isupper() else ("COMPLETED", 6)
        code = "TASK_CANCELLED" if status == "CANCELLED" else None
        found.append(Outcome(id_, generation, status, '{"ok": 1}', code, child_pid=42))
    return found


@pytest.mark.thorough
def test_it_leaves_the_rows_and_says_what_a_whole_one_does(claimer: Claimers) -> None:
    worker = claimer()

    def after(run: Callable[[], Passed]) -> tuple[Any, ...]:
        """Return what a pass says, and the rows behind it; then undo it."""
        with worker.conn.transaction(force_rollback=True):
            passed = run()
            claims = {lane: [claim for claim in passed.claims if claim.lane == lane] for lane in ("sync", "async")}
            return passed.landed, claims, passed.again, worker.conn.execute(LOOK.encode()).fetchall()

    @settings(max_examples=examples(60, 1_000), deadline=None, database=None, derandomize=True)
    @given(tasks=TASKS, ends=ENDS, slots=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def compare(tasks: list[dict[str, Any]], ends: list[str], slots: tuple[int, int]) -> None:
        outcomes = ending(build(worker.conn, tasks, worker.id), ends)
        whole = after(lambda: worker.run_pass(*slots, outcomes=outcomes))
        assert after(lambda: short_pass(worker, "default", *slots, *outcomes)) == whole

    compare()


def test_claims_come_by_priority_then_time_in_each_lane(claimer: Claimers) -> None:
    later = put(2, priority=5, due_at=aware(seconds=-1))
    first = put(priority=1)
    second = put(priority=5, due_at=aware(seconds=-2))
    other = put(3, lane="async")
    claims = short_pass(claimer(), "default", 3, 2).claims
    assert [claim.id for claim in claims if claim.lane == "sync"] == [*first, *second, later[0]]
    assert [claim.id for claim in claims if claim.lane == "async"] == other[:2]


@pytest.mark.parametrize("lane", ["sync", "async"])
def test_what_is_past_its_time_does_not_run_and_has_a_whole_one_come_round(claimer: Claimers, lane: str) -> None:
    put(lane=lane, good_until=aware(seconds=-1))
    (fine,) = put(lane=lane, good_until=aware(hours=1))
    worker = claimer()
    passed = short_pass(worker, "default", 5, 5)
    assert ([claim.id for claim in passed.claims], passed.again) == ([fine], True)
    assert len(worker.run_pass(sync=5, async_=5).expired) == 1
    assert not short_pass(worker, "default", 5, 5).again


@pytest.mark.parametrize(
    "limits",
    [
        {"max_concurrency": 5},
        {"max_concurrency": 0},
        {"local_limit": 5},
        {"partition_by_args": ["a"], "partition_max_concurrency": 5},
        {"partition_by_args": ["a"], "partition_local_limit": 5},
    ],
)
def test_with_a_limit_of_its_queue_or_that_of_a_task_to_settle_it_does_nothing(
    claimer: Claimers, limits: dict[str, Any]
) -> None:
    worker = claimer(default=100, mail=50)
    put()
    put(queue="mail")
    (claim,) = worker.run_pass(sync=1).claims
    assert claim.queue_name == "mail"
    limit("mail", **limits)
    assert short_pass(worker, "default", 1, 0, done(claim)) is None
    assert short_pass(worker, None, 0, 0, done(claim)) is None
    assert short_pass(worker, "mail", 1) is None
    assert sorted(Task.objects.values_list("status", flat=True)) == ["PENDING", "RUNNING"]
    limit("mail", **dict.fromkeys(limits))
    assert len(short_pass(worker, "default", 1, 0, done(claim)).claims) == 1


def test_a_limit_of_a_queue_that_it_does_not_touch_does_not_matter(claimer: Claimers) -> None:
    worker = claimer(default=100, mail=50)
    put(2)
    (claim,) = worker.run_pass(sync=1).claims
    limit("mail", max_concurrency=1)
    passed = short_pass(worker, "default", 1, 0, done(claim))
    assert (len(passed.claims), passed.landed) == (1, {claim.id})


def test_under_a_cap_of_the_cluster_it_does_nothing(claimer: Claimers) -> None:
    worker = claimer()
    put()
    limit("*", max_concurrency=5)
    assert short_pass(worker, "default", 1) is None
    assert Task.objects.get().status == "PENDING"


def test_of_a_queue_without_a_row_nothing_is_claimed(claimer: Claimers, connect: Connect) -> None:
    put()
    connect().execute("DELETE FROM horsies_limits")
    assert short_pass(claimer(), "default", 1) is None
    assert Task.objects.get().status == "PENDING"


def test_a_worker_that_was_declared_dead_gets_nothing(claimer: Claimers, connect: Connect) -> None:
    worker = claimer()
    put(2)
    (claim,) = worker.run_pass(sync=1).claims
    connect().execute(
        "INSERT INTO horsies_heartbeats (id, worker_id, role, pid, died_at) VALUES (%s, %s, 'claimer', 1, now())",
        [worker.id] * 2,
    )
    assert short_pass(worker, "default", 1, 0, done(claim)) is None
    assert sorted(Task.objects.values_list("status", flat=True)) == ["PENDING", "RUNNING"]


def test_rows_that_somebody_holds_are_left_out_without_waiting(claimer: Claimers, connect: Connect) -> None:
    worker = claimer()
    put(3)
    running = worker.run_pass(sync=2).claims
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s OR status = 'PENDING' FOR UPDATE", [running[0].id])
        passed = short_pass(worker, "default", 1, 0, *map(done, running))
    assert (passed.claims, passed.landed) == ([], {running[1].id})
    assert len(short_pass(worker, "default", 1).claims) == 1


def test_two_workers_never_get_the_same_task_by_passes_of_both_kinds(claimer: Claimers) -> None:
    ids = put(300)
    workers = [claimer() for _ in range(3)]

    def drain(place: int) -> list[uuid.UUID]:
        got: list[uuid.UUID] = []
        while True:
            worker = workers[place]
            passed = worker.run_pass(sync=3) if len(got) % 2 else short_pass(worker, "default", 3)
            if not passed.claims:
                return got
            got += [claim.id for claim in passed.claims]

    with ThreadPoolExecutor(3) as pool:
        drained = [id_ for got in pool.map(drain, range(3)) for id_ in got]
    rest = [claim.id for claim in short_pass(workers[0], "default", 300).claims]
    assert sorted([*drained, *rest]) == sorted(ids)


def test_one_that_neither_settles_nor_claims_fits(claimer: Claimers) -> None:
    """Else the worker would run no short pass for a while after it."""
    assert short_pass(claimer(), None) is not None


@pytest.mark.parametrize("settling", [False, True])
def test_a_limit_that_appears_is_waited_for_and_then_kept(claimer: Claimers, connect: Connect, settling: bool) -> None:
    worker, changer, looker = claimer(), connect(), connect()
    put(2)
    outcomes = [done(claim) for claim in worker.run_pass(sync=1).claims if settling]
    short_pass(worker, "default", 0)  # its plan is made
    (pid,) = worker.conn.execute("SELECT pg_backend_pid()").fetchone()  # type: ignore[misc]
    with ThreadPoolExecutor(1) as pool, changer.transaction():
        changer.execute("LOCK TABLE horsies_limits IN ACCESS EXCLUSIVE MODE")
        passing = pool.submit(short_pass, worker, "default", 1, 0, *outcomes)
        wait_until(
            lambda: looker.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", [pid]).fetchall(),
            "the short pass waits for the limits",
        )
        changer.execute("UPDATE horsies_limits SET max_concurrency = 0 WHERE queue_name = 'default'")
    assert passing.result(30) is None
    assert sorted(Task.objects.values_list("status", flat=True)) == ["PENDING", "RUNNING"]


def test_no_limit_appears_between_what_it_settles_and_what_it_claims(claimer: Claimers, connect: Connect) -> None:
    worker, changer = claimer(), connect()
    put()
    (claim,) = worker.run_pass(sync=1).claims
    with worker.conn.transaction():
        assert short_pass(worker, None, 0, 0, done(claim)).landed == {claim.id}
        with pytest.raises(psycopg.errors.LockNotAvailable):
            changer.execute(
                "SELECT horsies_configure_queue('default', '{\"max_concurrency\": 0}', false, 'configure', 'ada', NULL, 'nobody')"
            )


def test_finished_tasks_are_announced_to_those_who_wait_in_notifications_that_fit(
    claimer: Claimers, connect: Connect
) -> None:
    worker, listener = claimer(), connect()
    listener.execute(f"LISTEN {worker.channel}_done".encode())
    put(450)
    claims = worker.run_pass(sync=450).claims
    short_pass(worker, None, 0, 0, *map(done, claims[:50]))
    listener.execute("NOTIFY nobody")  # whatever was sent before this has arrived
    assert list(listener.notifies(timeout=0)) == []
    connect().execute(
        "INSERT INTO horsies_waiters (id, expires_at) VALUES (%s, now() + interval '1 h')", [uuid.uuid4()]
    )
    short_pass(worker, None, 0, 0, *map(done, claims[50:]))
    listener.execute("NOTIFY nobody")
    heard = [item.payload.split(" ") for item in listener.notifies(timeout=0)]
    assert [len(ids) for ids in heard] == [200, 200]
    assert {uuid.UUID(id_) for ids in heard for id_ in ids} == {claim.id for claim in claims[50:]}
    assert TaskAttempt.objects.count() == 450


def test_it_takes_results_and_errors_as_they_are(claimer: Claimers) -> None:
    worker = claimer()
    put(2)
    first, second = worker.run_pass(sync=2).claims
    short_pass(
        worker, None, 0, 0,
        Outcome(first.id, 1, "COMPLETED", '{"ok": "\\u00e4 \\" \\\\"}', child_pid=1),
        Outcome(second.id, 1, "CANCELLED", '{"err": {"code": "TASK_CANCELLED"}}', "TASK_CANCELLED", "no", child_pid=2),
    )  # fmt: skip
    found = Task.objects.get(pk=second.id)
    assert Task.objects.get(pk=first.id).result == {"ok": 'ä " \\'}
    assert (found.status, found.error_code, found.result["err"]["code"]) == (
        "CANCELLED",
        "TASK_CANCELLED",
        "TASK_CANCELLED",
    )
    assert list(TaskAttempt.objects.order_by("task_id").values_list("error_message", "child_pid")) == [
        (None, 1),
        ("no", 2),
    ]
    assert found.finished_at - dt.timedelta(minutes=1) < found.started_at
