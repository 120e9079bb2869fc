"""The pass on the real database: order, expiry, retries, the effect of other sessions, and which
commits wait for the disk.

A cancel meets passes, settles and other cancels: exactly one takes effect, there is no deadlock,
and finished tasks stay as they are.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.core.options import options_text
from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.core.retry import USUAL_FAILURES, RetryPolicy, class_names
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import operations
from tests.conftest import Claimer, limit, put, sql
from tests.db.conftest import Aside, Claimers, Connect, impatient, wait_for_waiting
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, error
from tests.support.models.retry import Failure, decide
from tests.support.sizes import examples

LEASE = dt.timedelta(minutes=5)


def done(claim: Claim, status: str = "COMPLETED", **columns: Any) -> Outcome:
    return Outcome(claim.id, claim.generation, status, '{"ok": 1}', child_pid=42, **columns)


def failed(claim: Claim, code: str = "BROKEN", **columns: Any) -> Outcome:
    return Outcome(
        claim.id, claim.generation, "FAILED", json.dumps(error(code)), code, "broken", **columns
    )


def aware(**delta: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(**delta)


WRITES: dict[str, tuple[set[str], Callable[[Claimer, list[Claim]], object]]] = {
    "settle": ({"RUNNING"}, lambda worker, claims: worker.run_pass(outcomes=[*map(done, claims)])),
    "settle shortly": (
        {"RUNNING"},
        lambda worker, claims: worker.run_pass(outcomes=[*map(done, claims)], news="default"),
    ),
    "fail": ({"RUNNING"}, lambda worker, claims: worker.run_pass(outcomes=[*map(failed, claims)])),
    "release": (
        {"CLAIMED", "lapsed", "RUNNING"},
        lambda worker, claims: worker.run_pass(releases=claims),
    ),
    "start": ({"CLAIMED"}, lambda worker, claims: worker.run_pass(starts=claims)),
    "renew": (
        {"CLAIMED", "lapsed"},
        lambda worker, claims: worker.store.renew(worker.id, claims, LEASE),
    ),
}


def test_only_rows_that_a_pass_writes_skip_the_check(
    claimer: Claimers,
) -> None:
    """The rows that a pass writes are not checked, but other rows written in its transaction are.

    Fails if: each pass calls the function of the trigger twice per task, or the setting of the pass
    outlives it.
    """
    worker = claimer()
    put(2)
    called = (
        "SELECT coalesce(pg_stat_get_xact_function_calls('horsies_check_task()'::regprocedure), 0)"
    )

    with worker.conn.transaction():
        worker.conn.execute("SET LOCAL track_functions = 'pl'")
        for news in ("default", None):  # a short pass, a whole one
            (claim,) = worker.run_pass(1, news=news).claims
            worker.run_pass(outcomes=[done(claim)], news=news)
        assert worker.conn.execute(called).fetchone() == (0,)
        worker.conn.execute("UPDATE horsies_tasks SET priority = priority")
        assert worker.conn.execute(called).fetchone() == (2,)


@pytest.mark.promise("S0.4", "S1.4")
@pytest.mark.parametrize("write", WRITES)
def test_a_write_counts_only_under_the_claim_of_its_worker(claimer: Claimers, write: str) -> None:
    """A write counts only under the claim of its worker and in a status that it may change.

    Rows of every status look like the worker's own, but for one thing: the owner, the generation or
    the lease.
    """
    worker = claimer()

    def held(status: str, owner: uuid.UUID, generation: int = 1) -> uuid.UUID:
        columns: dict[str, Any] = {
            "status": status.replace("lapsed", "CLAIMED"),
            "claim_generation": generation,
        }
        if status != "PENDING":
            lease = aware(seconds=-1) if status == "lapsed" else aware(minutes=5)
            columns |= {
                "claimed_by": owner,
                "claimed_at": aware(hours=-1),
                "claim_expires_at": lease,
            }
        return TaskFactory(**columns).pk  # type: ignore[no-any-return]

    def table() -> dict[uuid.UUID, Any]:
        return {row["id"]: row for row in Task.objects.values()}

    may, act = WRITES[write]
    kinds = [*map(str, Status), "lapsed"]
    own = {kind: held(kind, worker.id) for kind in kinds}
    others = [
        held(kind, owner, number)
        for kind in kinds
        for owner, number in ((uuid.uuid4(), 1), (worker.id, 2))
    ]
    before = table()

    act(
        worker, [Claim(id_, 1, "sync", "t", "{}") for id_ in [*own.values(), uuid.uuid4(), *others]]
    )
    after = table()

    assert {kind for kind, id_ in own.items() if after[id_] != before[id_]} == may
    assert [id_ for id_ in others if after[id_] != before[id_]] == []
    attempted = {own["RUNNING"]} if may == {"RUNNING"} else set()
    assert set(TaskAttempt.objects.values_list("task_id", flat=True)) == attempted

    TaskAttemptFactory(task_id=others[0])  # of another worker, whose claim had the same number
    assert worker.store.unsettled(worker.id, [Claim(others[0], 1, "sync", "t", "{}")]) == {
        others[0]: "lost"
    }


@pytest.mark.promise("S2.10")
def test_a_settle_writes_the_result_and_the_attempt(claimer: Claimers) -> None:
    """A claim starts a task, and a settle writes its result and its attempt."""
    (id_,) = put(kwargs=['{"a": 1}'])
    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims

    task = Task.objects.get(pk=id_)
    assert task.claimed_at is not None
    sent_at = task.sent_at.timestamp()
    due_in = (task.enqueued_at - task.claimed_at).total_seconds()

    assert claim == Claim(
        id_,
        1,
        "sync",
        "tests.nothing",
        '{"a": 1}',
        queue_name="default",
        sent_at=sent_at,
        due_in=due_in,
    )
    assert task.claimed_at == task.started_at is not None

    assert worker.run_pass(outcomes=[done(claim)]).landed == {id_}
    task = Task.objects.get(pk=id_)
    attempt = TaskAttempt.objects.get(task_id=id_)

    assert (task.status, task.result, task.error_code) == ("COMPLETED", {"ok": 1}, None)
    assert (attempt.attempt, attempt.outcome, attempt.claim_generation) == (1, "COMPLETED", 1)
    assert (attempt.worker_id, attempt.child_pid) == (worker.id, 42)
    assert (attempt.started_at, attempt.finished_at) == (task.started_at, task.finished_at)

    moments = [task.enqueued_at, task.sent_at, task.started_at, task.finished_at]
    assert moments == sorted(moments)
    assert abs((timezone.now() - task.finished_at).total_seconds()) < 60

    unused = ("snooze_count", "attempts_before", "ordered", "order_stop", "merged_into")
    assert {name: getattr(task, name) for name in unused} == dict.fromkeys(unused), (
        "no zeros, which each row would write"
    )


def test_a_failure_of_an_older_claim_reopens_no_completed_task(
    claimer: Claimers,
) -> None:
    """A failure of an older claim does not reopen a task that the newest claim has completed.

    Fails if: retried tasks are found by their ids alone, when another task of the batch is retried.

    Attempts belong to claims, so that two claims may run the same attempt.
    """
    options = options_text(RetryPolicy.fixed([60], auto_retry_for=["OH_NO"]), None)
    put(2, max_retries=1, options=options)

    worker = claimer()
    first, second = worker.run_pass(sync=2).claims
    Task.objects.filter(pk=first.id).update(claim_generation=2)
    TaskAttemptFactory(task_id=first.id, attempt=1, claim_generation=1)

    failed = {"error_code": "OH_NO", "error_message": "it broke"}
    older = done(first, "FAILED", **failed)
    newest = done(first._replace(generation=2))

    worker.run_pass(outcomes=[older, newest, done(second, "FAILED", **failed)])

    assert dict(Task.objects.values_list("id", "status")) == {
        first.id: "COMPLETED",
        second.id: "PENDING",
    }

    attempts = TaskAttempt.objects.filter(task_id=first.id).order_by("claim_generation")
    assert list(attempts.values_list("attempt", "claim_generation")) == [(1, 1), (1, 2)]
    assert TaskAttempt.objects.get(task_id=second.id).outcome == "FAILED"


def test_a_pass_returns_the_due_time_of_an_idle_queue(
    claimer: Claimers,
) -> None:
    """A pass returns when the next task of a queue is due, even if another queue has work."""
    (now,) = put(queue="mail")
    put(queue="bulk", delay=dt.timedelta(hours=1))
    put(queue="bulk", priority=5, delay=dt.timedelta(minutes=5))
    worker = claimer(mail=1, bulk=50)

    for expected in ([now], []):
        passed = worker.run_pass(sync=5, async_=5)
        assert [claim.id for claim in passed.claims] == expected
        assert 290 < (passed.due_in or 0) <= 300


@pytest.mark.promise("S2.7", "S2.8")
def test_a_task_past_its_good_until_expires_at_the_claim(
    claimer: Claimers,
) -> None:
    """Tasks past their ``good_until`` expire at the claim, never run, and hide no good task."""
    late = put(1_200, good_until=aware(seconds=-1))
    first, fine = put(2, good_until=aware(hours=1))
    worker = claimer()

    assert [claim.id for claim in worker.run_pass(sync=1, news="default").claims] == [first], (
        "a short pass passes them over"
    )

    passed = worker.run_pass(sync=1)
    (claim,) = passed.claims
    assert (claim.id, set(passed.expired)) == (fine, set(late))

    task = Task.objects.get(pk=late[0])
    assert (task.status, task.error_code) == ("EXPIRED", "TASK_EXPIRED")
    assert task.result["err"]["error_code"] == "TASK_EXPIRED"
    assert not TaskAttempt.objects.exists()

    Task.objects.filter(pk=fine).update(good_until=aware(seconds=-1))
    worker.run_pass(outcomes=[done(claim)])
    assert Task.objects.get(pk=fine).status == "COMPLETED", (
        "one that runs by then finishes as usual"
    )


@pytest.fixture
def worker(claimer: Claimers) -> Claimer:
    return impatient(claimer())


@pytest.mark.direct
def test_a_cancel_amid_a_claim_waits_and_finds_a_task_running(
    worker: Claimer, connect: Connect, aside: Aside
) -> None:
    (id_,) = put()
    other = connect()
    watcher = connect()

    with worker.conn.transaction():
        (claim,) = worker.run_pass(sync=1).claims
        cancel = aside(TaskStore(other).cancel, [id_], worker.channel, terminate=False)
        wait_for_waiting(watcher, other)

    assert cancel.result() == {id_: "REQUESTED"}
    assert worker.run_pass(outcomes=[done(claim)]).landed == {id_}
    assert Task.objects.get().status == "COMPLETED"


@pytest.mark.direct
def test_a_cancel_that_waited_for_a_row_ends_the_task_afterwards(
    connect: Connect, aside: Aside, worker: Claimer
) -> None:
    """A cancel that waits for a row ends the task when it gets the row, not when it was
    requested.
    """
    (id_,) = put()
    somebody = connect()
    other = connect()
    watcher = connect()

    with somebody.transaction():
        somebody.execute("SELECT FROM horsies_tasks WHERE id = %s FOR NO KEY UPDATE", [id_])
        cancel = aside(TaskStore(other).cancel, [id_], worker.channel, terminate=False)
        wait_for_waiting(watcher, other)
        (unlocked,) = watcher.execute("SELECT clock_timestamp()").fetchall()[0]

    assert cancel.result() == {id_: "CANCELLED"}

    query = "SELECT finished_at, cancel_requested_at FROM horsies_tasks WHERE id = %s"
    finished, requested = watcher.execute(query, [id_]).fetchall()[0]
    assert finished >= unlocked
    assert requested == finished


@pytest.mark.direct
def test_a_cancel_of_a_finished_task_changes_nothing() -> None:
    ids = {TaskFactory(status=status).pk for status in FINISHED}
    before = list(Task.objects.order_by("id").values())

    assert operations.cancel(ids, terminate=True) == dict.fromkeys(ids, "FINISHED")
    assert list(Task.objects.order_by("id").values()) == before


@pytest.mark.direct
def test_cancels_of_the_same_tasks_in_any_order_never_deadlock(
    worker: Claimer, connect: Connect, aside: Aside
) -> None:
    """Fails if: rows are locked in the order in which a cancel names them; two cancels with
    opposite orders then deadlock.
    """
    ids = put(60)

    def cancel(conn: psycopg.Connection[Any], seed: int) -> None:
        order = random.Random(seed)
        for _ in range(40):
            TaskStore(conn).cancel(order.sample(ids, 30), worker.channel, terminate=False)

    cancels = [aside(cancel, connect(), seed) for seed in range(3)]
    claims = worker.run_pass(sync=5).claims

    while claims or not all(one.done() for one in cancels):
        passed = worker.run_pass(sync=5, outcomes=[done(claim) for claim in claims])
        claims = [claim for claim in claims if claim.id not in passed.landed] + passed.claims

    for one in cancels:
        one.result()

    assert {task.status for task in Task.objects.filter(pk__in=ids)} <= TERMINAL
    assert TaskAttempt.objects.count() == Task.objects.filter(status="COMPLETED").count()


# Records the setting with which the commit of each pass that changes a task takes place.
NOTE = (
    """
    CREATE FUNCTION notes_the_commit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE '%', current_setting('synchronous_commit'); RETURN NULL; END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER notes_the_commit AFTER UPDATE ON horsies_tasks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION notes_the_commit()
    """,
)


class Noted:
    """A worker without durable claims, and whether its transactions committed with "on" or
    "off".
    """

    def __init__(self, claimer: Claimer) -> None:
        self.claimer = claimer
        self.commits: list[str] = []
        claimer.conn.execute("SET synchronous_commit = on")
        claimer.conn.add_notice_handler(
            lambda notice: self.commits.append(notice.message_primary or "")
        )

    def taken(self) -> list[str]:
        """Return how the transactions since the last call committed."""
        found = [*self.commits]
        self.commits[:] = []
        return found

    def run_pass(self, sync: int = 0, durable: bool = False, **owed: Any) -> Any:
        passed = self.claimer.run_pass(wanted=Wanted(sync, durable=durable), **owed)
        assert passed.short or "news" not in owed
        return passed

    def claim(self, durable: bool = False, **owed: Any) -> Claim:
        (claim,) = self.run_pass(1, durable, **owed).claims
        return claim

    def ahead(self) -> Claim:
        (claim,) = self.claimer.run_pass(
            wanted=Wanted(prefetch=1, lease=LEASE, durable=False)
        ).prefetched
        return claim


@pytest.fixture
def noted(claimer: Claimers, connect: Connect) -> Iterator[Noted]:
    other = connect()
    for statement in NOTE:
        other.execute(statement)
    yield Noted(claimer())
    other.execute("DROP FUNCTION notes_the_commit CASCADE")


@pytest.mark.direct
def test_claims_and_starts_wait_for_the_disk_only_on_request(noted: Noted) -> None:
    """Claims and starts wait for the disk only if this is requested."""
    put(5)
    noted.claim()
    noted.run_pass(starts=[noted.ahead()])
    noted.claim(news="default")
    assert noted.taken() == ["off"] * 4

    noted.claim(durable=True)
    noted.claim(durable=True, news="default")
    assert noted.taken() == ["on"] * 2

    assert noted.claimer.conn.execute("SHOW synchronous_commit").fetchone() == ("on",), (
        "the session's is as before"
    )

    limit("default", max_concurrency=9, partition_by_args=["a"], partition_max_concurrency=1)
    put(2, kwargs=['{"a": 1}'] * 2)

    noted.claim()
    noted.run_pass(2)
    assert Task.objects.filter(parked=True).count() == 1
    assert noted.taken() == ["off"] * 2, "nor does what is claimed under limits, nor what is parked"


@pytest.mark.direct
def test_a_pass_that_settles_waits_for_the_disk_with_its_claims(noted: Noted) -> None:
    """A pass that settles, retries or releases waits for the disk, and its claims wait with it."""
    put(3)
    outcome = done(noted.claim())
    outcome = done(noted.claim(outcomes=[outcome]))
    assert noted.taken() == ["off", "on", "on"]

    noted.claim(outcomes=[outcome], news="default")
    assert noted.taken() == ["on", "on"]

    put(
        max_retries=1, options=options_text(RetryPolicy.fixed([60], auto_retry_for=["OH_NO"]), None)
    )
    noted.run_pass(
        outcomes=[done(noted.claim(), "FAILED", error_code="OH_NO", error_message="it broke")]
    )
    assert Task.objects.filter(status="PENDING").count() == 1

    put()
    noted.run_pass(releases=[noted.claim()])
    assert noted.taken() == ["off", "on"] * 2


@pytest.mark.direct
def test_what_expires_or_goes_back_on_the_way_waits(noted: Noted) -> None:
    put(good_until=aware(seconds=-1))
    put()
    noted.claim()
    assert noted.taken() == ["on"] * 2

    put()
    claim = noted.ahead()
    Task.objects.filter(pk=claim.id).update(good_until=aware(seconds=-1))
    assert noted.run_pass(starts=[claim]).expired == [claim.id]
    assert noted.taken() == ["off", "on"]

    put()
    claim = noted.ahead()
    limit("default", max_concurrency=0)
    assert noted.run_pass(starts=[claim]).returned == [claim.id], "for want of a permit"
    assert noted.taken() == ["off", "on"]

    limit("default", max_concurrency=None)
    noted.ahead()
    Task.objects.filter(pk=claim.id).update(claim_expires_at=aware(seconds=-1))
    noted.claim(expired_leases=True)
    assert noted.taken() == ["off", "on", "on"]


NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CODES = ["BROKEN", "WORKER_CRASHED", "OTHER"]
CLASSES = [OSError, ConnectionError, LookupError]
POLICY = RetryPolicy.fixed([60, 300], auto_retry_for=["BROKEN"], jitter=False)

pauses = st.floats(0, 1_000)
some_codes = st.just(USUAL_FAILURES) | st.lists(st.sampled_from([*CODES, *CLASSES]), unique=True)
policies = st.one_of(
    st.builds(
        lambda intervals, codes: RetryPolicy.fixed(intervals, auto_retry_for=codes, jitter=False),
        st.lists(pauses, min_size=1, max_size=5),
        some_codes,
    ),
    st.builds(
        lambda base, most, longest, codes: RetryPolicy.exponential(
            base_seconds=base,
            max_retries=most,
            max_delay_seconds=longest,
            auto_retry_for=codes,
            jitter=False,
        ),
        pauses,
        st.integers(1, 100),
        st.none() | pauses,
        some_codes,
    ),
)
failures = st.builds(
    Failure,
    st.sampled_from([*CODES, "TASK_TIMEOUT"]),
    st.just(())
    | st.sampled_from([OSError(), ConnectionResetError(), KeyError(), SystemExit()]).map(
        class_names
    ),
    asked=st.booleans(),
    delay_seconds=st.none() | pauses,
    crashed=st.booleans(),
).map(lambda failure: failure if failure.asked else replace(failure, delay_seconds=None))


@pytest.mark.thorough
@settings(
    max_examples=examples(100, 1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    failure=failures,
    policy=st.none() | policies,
    retry_count=st.integers(0, 6),
    most=st.integers(0, 2),
    until=st.none() | st.floats(0, 2_000),
    cancelled=st.booleans(),
)
def test_the_database_decides_as_the_pure_rule_does(
    failure: Failure,
    policy: RetryPolicy | None,
    retry_count: int,
    most: int,
    until: float | None,
    cancelled: bool,
) -> None:
    """``most``: how many crashes make poison; ``until``: after how many seconds
    ``good_until`` is.
    """
    good_until = None if until is None else NOW + dt.timedelta(seconds=until)

    asked = None
    if failure.asked:
        asked = json.dumps(True if failure.delay_seconds is None else failure.delay_seconds)

    ((due_at, poison),) = sql(
        "SELECT extract(epoch FROM due_at)::float8, poison "
        "FROM horsies_retry_decision(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            put()[0],
            options_text(policy, None),
            retry_count,
            policy.max_retries if policy else 0,
            good_until,
            cancelled,
            failure.code,
            json.dumps(failure.classes),
            asked,
            failure.crashed,
            most,
            NOW,
        ],
    )

    expected = decide(
        failure,
        policy,
        retry_count=retry_count,
        max_crashes=most,
        now=NOW,
        good_until=good_until,
        cancelled=cancelled,
    )

    assert poison == (expected == "POISON")
    assert due_at == (
        pytest.approx(expected.timestamp(), abs=1e-5) if isinstance(expected, dt.datetime) else None
    )


def test_jitter_moves_a_retry_by_at_most_a_quarter() -> None:
    """Jitter changes a pause by up to a quarter, and never beyond the longest pause."""
    policy = RetryPolicy.exponential(base_seconds=100, max_retries=9, max_delay_seconds=390)
    drawn = sql(
        "SELECT n, min(p)::float8, max(p)::float8 FROM (SELECT n, extract(epoch FROM "
        "(horsies_retry_decision("
        "NULL, %s, n, 9, NULL, false, 'X', '[]', 'true', false, 0, to_timestamp(0))).due_at) AS p "
        "FROM generate_series(0, 2) AS n, generate_series(1, 1000)) AS drawn GROUP BY n ORDER BY n",
        [options_text(policy, None)],
    )

    for pause, (_, low, high) in zip((100, 200, 400), drawn, strict=True):
        assert 0.75 * pause <= low < 0.8 * pause
        assert min(390, 1.2 * pause) <= high <= min(390, 1.25 * pause)


@pytest.mark.promise("S2.10")
def test_a_failed_attempt_has_a_row_and_its_task_waits_to_retry(worker: Claimer) -> None:
    """A failed attempt leaves a row of its own, and a task that waits for its retry."""
    (id_,) = put(max_retries=2, options=options_text(POLICY, None))
    (claim,) = worker.run_pass(sync=1).claims
    assert claim.attempt == 1

    passed = worker.run_pass(sync=1, outcomes=[failed(claim)])
    assert passed.landed == {id_}
    assert 0 < (passed.due_in or 0) <= 60

    task = Task.objects.get(pk=id_)
    (attempt,) = TaskAttempt.objects.filter(task_id=id_)

    assert (task.status, task.retry_count) == ("PENDING", 1)
    assert task.claimed_by is task.error_code is task.result is None
    assert task.next_retry_at == task.enqueued_at == attempt.finished_at + dt.timedelta(seconds=60)
    assert (attempt.attempt, attempt.outcome, attempt.error_code, attempt.will_retry) == (
        1,
        "FAILED",
        "BROKEN",
        True,
    )
    assert attempt.started_at <= attempt.finished_at


def test_a_stored_policy_without_a_list_keeps_its_old_meaning(
    worker: Claimer,
) -> None:
    """A policy that an older sender stored without a list keeps its old meaning."""
    stored = {"strategy": "fixed", "intervals": [0], "jitter": False, "most": None, "codes": []}
    put(2, max_retries=1, options=json.dumps({"wire": 1, "retry": stored}))
    first, again = worker.run_pass(sync=2).claims

    raised = {"classes": class_names(OSError())}
    worker.run_pass(outcomes=[failed(first, **raised), failed(again, **raised, retry=True)])

    assert [Task.objects.get(pk=claim.id).status for claim in (first, again)] == [
        "FAILED",
        "PENDING",
    ]


@pytest.mark.direct
def test_a_failure_whose_row_is_unlocked_midway_keeps_its_retry(
    worker: Claimer, connect: Connect, aside: Aside
) -> None:
    """A failure whose row is unlocked between decision and write keeps its retry.

    Fails if: the retry is not decided because the row is locked, and then the failure is written as
    the last one because the row is unlocked.
    """
    put(max_retries=2, options=options_text(POLICY, None))
    (claim,) = worker.run_pass(sync=1).claims
    holds_row = connect()
    holds_attempts = connect()
    watcher = connect()

    holds_attempts.execute("BEGIN")
    # The attempts can be read, but not written.
    holds_attempts.execute("LOCK TABLE horsies_task_attempts IN SHARE MODE")
    holds_row.execute("BEGIN")
    holds_row.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [claim.id])

    passing = aside(lambda: worker.run_pass(outcomes=[failed(claim)]))
    wait_for_waiting(watcher, worker.conn)
    holds_row.execute("COMMIT")
    holds_attempts.execute("COMMIT")

    assert passing.result(30).landed == set()
    assert worker.run_pass(outcomes=[failed(claim)]).landed == {claim.id}
    assert Task.objects.get().status == "PENDING"
