"""The short pass does what the whole one does: it is held against it, on the same rows."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db.models.functions import Now
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.passes import Passed
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Aside, Claimers, Connect, heard, impatient, register, wait_for_waiting
from tests.db.test_pass import aware, done
from tests.support.sizes import examples

pytestmark = pytest.mark.django_db(transaction=True)


def short_pass(
    worker: Claimer, queue: str | None = "default", sync: int = 0, async_: int = 0, *outcomes: Outcome
) -> Any:
    """Run a pass that is short if it can be."""
    return worker.run_pass(sync, async_, news=queue, outcomes=list(outcomes))


def is_short(worker: Claimer, *asked: Any) -> bool:
    """Return whether such a pass is short, and undo it."""
    with worker.conn.transaction(force_rollback=True):
        return bool(short_pass(worker, *asked).short)


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
NOBODYS = Claim(uuid.uuid4(), 1, "sync", "t", "{}")  # who gives something back takes a whole pass
LOOK = """
SELECT to_jsonb(t) - '{claimed_at,started_at,finished_at}'::text[], claimed_at > now(), started_at > now(), finished_at > now(),
       ARRAY(SELECT row(to_jsonb(a) - 'finished_at', a.finished_at > now()) FROM horsies_task_attempts a WHERE a.task_id = t.id)
FROM horsies_tasks t ORDER BY id
"""


def build(conn: psycopg.Connection[Any], tasks: list[dict[str, Any]], me: uuid.UUID) -> list[uuid.UUID]:
    """Put these tasks into an empty table and return the ids of those that ``me`` runs."""
    conn.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
    mine = []
    for task in tasks:
        moments = {name: task[name] and aware(seconds=task[name]) for name in ("due_at", "good_until")}
        (id_,) = put(queue=task["queue"], lane=task["lane"], priority=task["priority"], **moments)
        if task["status"] == "parked":
            Task.objects.filter(pk=id_).update(parked=True)
        elif task["status"] != "PENDING":
            owner = me if task["status"] == "mine" else uuid.uuid4()
            Task.objects.filter(pk=id_).update(
                status="RUNNING", claimed_by=owner, claimed_at=Now(), started_at=Now(), claim_generation=7
            )
        if task["status"] == "mine":
            mine.append(id_)
    return mine


def ending(mine: list[uuid.UUID], ends: list[str]) -> list[Outcome]:
    """Return outcomes for the tasks that this worker runs, and for others."""
    found = []
    for end in ends:
        id_ = mine.pop() if mine and end != "nobody's" else uuid.uuid4()
        status, generation = (end, 7) if end.isupper() else ("COMPLETED", 6)
        error = ("TASK_CANCELLED", "no") if status == "CANCELLED" else (None, None)
        found.append(Outcome(id_, generation, status, '{"ok": "\\u00e4 \\" \\\\"}', *error, child_pid=42))
    return found


@pytest.mark.thorough
def test_it_leaves_the_rows_and_says_what_a_whole_one_does(claimer: Claimers) -> None:
    worker = claimer()

    def after(run: Callable[[], Passed]) -> tuple[Any, ...]:
        """Return what a pass says, and the rows behind it; then undo it."""
        with worker.conn.transaction(force_rollback=True):
            passed = run()
            taken = [claim._replace(due_in=0.0) for claim in passed.claims]  # which the clock decides
            claims = {lane: [claim for claim in taken if claim.lane == lane] for lane in ("sync", "async")}
            return passed.landed, claims, passed.again, worker.conn.execute(LOOK.encode()).fetchall()

    @settings(max_examples=examples(60, 1_000), deadline=None, database=None, derandomize=True)
    @given(tasks=TASKS, ends=ENDS, slots=st.tuples(st.integers(0, 4), st.integers(0, 4)))
    def compare(tasks: list[dict[str, Any]], ends: list[str], slots: tuple[int, int]) -> None:
        outcomes = ending(build(worker.conn, tasks, worker.id), ends)
        whole = after(lambda: worker.run_pass(*slots, outcomes=outcomes, releases=[NOBODYS]))
        assert is_short(worker, "default", *slots, *outcomes)
        assert after(lambda: short_pass(worker, "default", *slots, *outcomes)) == whole

    compare()


def test_what_is_past_its_time_does_not_run_and_takes_no_slot(claimer: Claimers) -> None:
    fine = []
    for lane in ("sync", "async"):
        put(lane=lane, good_until=aware(seconds=-1))
        fine += put(lane=lane, good_until=aware(hours=1))
    worker = claimer()
    assert [claim.id for claim in short_pass(worker, "default", 1, 1).claims] == fine
    assert len(worker.run_pass(sync=5, async_=5).expired) == 2


LIMITS: list[dict[str, Any]] = [
    {"max_concurrency": 5},
    {"max_concurrency": 0},
    {"local_limit": 5},
    {"partition_by_args": ["a"], "partition_max_concurrency": 5},
    {"partition_by_args": ["a"], "partition_local_limit": 5},
]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_limit_of_a_queue_that_it_touches_makes_it_a_whole_one(claimer: Claimers, limits: dict[str, Any]) -> None:
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
def test_what_only_a_whole_pass_does_makes_it_one(claimer: Claimers, asked: dict[str, Any], many: int) -> None:
    put(3)
    passed = claimer().run_pass(sync=2, news="default", **asked)
    assert (passed.short, len(passed.claims)) == (False, many)


OBSTACLES = {
    "a cap came to the cluster": "UPDATE horsies_limits SET max_concurrency = 5 WHERE queue_name = '*'",
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


def test_rows_that_somebody_holds_are_left_out_without_waiting(claimer: Claimers, connect: Connect) -> None:
    worker, other = impatient(claimer()), connect()
    put(3)
    running = worker.run_pass(sync=2).claims
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s OR status = 'PENDING' FOR UPDATE", [running[0].id])
        passed = short_pass(worker, "default", 1, 0, *map(done, running))
        assert (passed.claims, passed.landed) == ([], {running[1].id})
    assert len(short_pass(worker, "default", 1).claims) == 1


@pytest.mark.promise("S1.48", "S2.22")
def test_eight_claimers_by_both_kinds_get_each_task_once_and_leave_none(claimer: Claimers, aside: Aside) -> None:
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
    worker, changer, looker = claimer(), connect(), connect()
    put(2)
    outcomes = [done(claim) for claim in worker.run_pass(sync=1).claims if settling]
    short_pass(worker, "default", 0)  # its plan is made
    with changer.transaction():
        changer.execute("LOCK TABLE horsies_limits IN ACCESS EXCLUSIVE MODE")
        passing = aside(short_pass, worker, "default", 1, 0, *outcomes)
        wait_for_waiting(looker, worker.conn)
        changer.execute("UPDATE horsies_limits SET max_concurrency = 0 WHERE queue_name = 'default'")
    passed = passing.result(30)
    assert (passed.short, passed.claims, len(passed.landed)) == (False, [], len(outcomes))


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


@pytest.mark.parametrize("kind", ["short", "whole"])
def test_finished_tasks_are_announced_only_to_those_who_wait(claimer: Claimers, connect: Connect, kind: str) -> None:
    worker, listener = claimer(), connect()
    listener.execute(f"LISTEN {worker.channel}_done".encode())
    put(420)
    claims = worker.run_pass(sync=420).claims

    def settle(outcomes: list[Outcome]) -> None:
        if kind == "short":
            short_pass(worker, None, 0, 0, *outcomes)
        else:
            worker.run_pass(outcomes=outcomes)

    settle([done(claim) for claim in claims[:10]])
    assert heard(listener) == []
    connect().execute("INSERT INTO horsies_waiters VALUES (gen_random_uuid(), now() + interval '1 h')")
    settle([done(claim) for claim in claims[10:]])
    told = [payload.split(" ") for payload in heard(listener)]
    assert sorted(map(len, told)) == [10, 200, 200]
    assert {uuid.UUID(id_) for ids in told for id_ in ids} == {claim.id for claim in claims[10:]}
    assert TaskAttempt.objects.count() == 420
