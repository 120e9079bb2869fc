"""Retries in the database: the decision is that of core/retry.py, and what follows is one row per attempt and a task that
waits."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.core.options import options_text
from horsies_django.core.records import Claim
from horsies_django.core.retry import USUAL, RetryPolicy, class_names
from horsies_django.models import Task, TaskAttempt
from tests.conftest import Claimer, Claimers, put, sql
from tests.db.conftest import Aside, Connect, wait_for_waiting
from tests.db.test_pass import failed
from tests.support.models.retry import Failure, decide
from tests.support.sizes import examples

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CODES = ["BROKEN", "WORKER_CRASHED", "OTHER"]
CLASSES = [OSError, ConnectionError, LookupError]
POLICY = RetryPolicy.fixed([60, 300], auto_retry_for=["BROKEN"], jitter=False)

pauses = st.floats(0, 1_000)
some_codes = st.just(USUAL) | st.lists(st.sampled_from([*CODES, *CLASSES]), unique=True)
policies = st.one_of(
    st.builds(
        lambda intervals, codes: RetryPolicy.fixed(intervals, auto_retry_for=codes, jitter=False),
        st.lists(pauses, min_size=1, max_size=5), some_codes,
    ),
    st.builds(
        lambda base, most, longest, codes: RetryPolicy.exponential(
            base_seconds=base, max_retries=most, max_delay_seconds=longest, auto_retry_for=codes, jitter=False
        ),
        pauses, st.integers(1, 100), st.none() | pauses, some_codes,
    ),
)  # fmt: skip
failures = st.builds(
    Failure,
    st.sampled_from([*CODES, "TASK_TIMEOUT"]),
    st.just(()) | st.sampled_from([OSError(), ConnectionResetError(), KeyError(), SystemExit()]).map(class_names),
    asked=st.booleans(),
    delay_seconds=st.none() | pauses,
    crashed=st.booleans(),
).map(lambda failure: failure if failure.asked else replace(failure, delay_seconds=None))


def asked(failure: Failure) -> str | None:
    if not failure.asked:
        return None
    return json.dumps(True if failure.delay_seconds is None else failure.delay_seconds)


@pytest.mark.thorough
@settings(max_examples=examples(100, 1_000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failure=failures, policy=st.none() | policies, retry_count=st.integers(0, 6), max_crashes=st.integers(0, 2),
    until=st.none() | st.floats(0, 2_000), cancelled=st.booleans(),
)  # fmt: skip
def test_the_database_decides_as_the_pure_rule_does(
    db: None,
    failure: Failure,
    policy: RetryPolicy | None,
    retry_count: int,
    max_crashes: int,
    until: float | None,
    cancelled: bool,
) -> None:
    good_until = None if until is None else NOW + dt.timedelta(seconds=until)
    (id_,) = put()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM due_at)::float8, poison "
            "FROM horsies_retry_decision(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [id_, options_text(policy, None), retry_count, 0 if policy is None else policy.max_retries, good_until, cancelled,
             failure.code, json.dumps(failure.classes), asked(failure), failure.crashed, max_crashes, NOW],
        )  # fmt: skip
        due_at, poison = cursor.fetchone()
    expected = decide(
        failure, policy, retry_count=retry_count, max_crashes=max_crashes, now=NOW, good_until=good_until, cancelled=cancelled
    )  # fmt: skip
    assert poison == (expected == "POISON")
    if isinstance(expected, dt.datetime):
        assert due_at == pytest.approx(expected.timestamp(), abs=1e-5)
    else:
        assert due_at is None


def test_jitter_moves_a_pause_by_up_to_a_quarter_and_never_beyond_the_longest(db: None) -> None:
    policy = RetryPolicy.exponential(base_seconds=100, max_retries=9, max_delay_seconds=390)
    drawn = sql(
        "SELECT n, min(p)::float8, max(p)::float8 FROM (SELECT n, extract(epoch FROM (horsies_retry_decision("
        "NULL, %s, n, 9, NULL, false, 'X', '[]', 'true', false, 0, to_timestamp(0))).due_at) AS p "
        "FROM generate_series(0, 2) AS n, generate_series(1, 1000)) AS drawn GROUP BY n ORDER BY n",
        [options_text(policy, None)],
    )
    for pause, (_, low, high) in zip((100, 200, 400), drawn, strict=True):
        assert 0.75 * pause <= low < 0.8 * pause
        assert min(390, 1.2 * pause) <= high <= min(390, 1.25 * pause)


def take(worker: Claimer) -> Claim:
    (claim,) = worker.run_pass(sync=1).claims
    return claim


@pytest.fixture
def worker(claimer: Claimers) -> Claimer:
    return claimer()


@pytest.mark.promise("S2.10")
def test_a_failed_attempt_leaves_a_row_and_a_task_that_waits_for_the_next(worker: Claimer) -> None:
    (id_,) = put(max_retries=2, options=options_text(POLICY, None))
    claim = take(worker)
    assert claim.attempt == 1
    passed = worker.run_pass(sync=1, outcomes=[failed(claim)])
    assert passed.landed == {id_}
    assert passed.due_in is not None
    assert 0 < passed.due_in <= 60
    task = Task.objects.get(pk=id_)
    (attempt,) = TaskAttempt.objects.filter(task_id=id_)
    assert (task.status, task.retry_count) == ("PENDING", 1)
    assert task.claimed_by is task.error_code is task.result is None
    assert task.next_retry_at == task.enqueued_at == attempt.finished_at + dt.timedelta(seconds=60)
    assert (attempt.attempt, attempt.outcome, attempt.will_retry) == (1, "FAILED", True)
    assert attempt.error_code == "BROKEN"
    assert attempt.started_at <= attempt.finished_at


def test_a_row_whose_policy_an_older_sender_stored_without_a_list_keeps_what_it_meant_then(worker: Claimer) -> None:
    stored = {"strategy": "fixed", "intervals": [0], "jitter": False, "most": None, "codes": []}
    put(2, max_retries=1, options=json.dumps({"wire": 1, "retry": stored}))
    first, again = worker.run_pass(sync=2).claims
    raised = {"classes": class_names(OSError())}
    worker.run_pass(outcomes=[failed(first, **raised), failed(again, **raised, retry=True)])
    assert [Task.objects.get(pk=claim.id).status for claim in (first, again)] == ["FAILED", "PENDING"]


def test_a_task_whose_process_dies_again_and_again_is_poison_and_not_retried(worker: Claimer) -> None:
    policy = RetryPolicy.fixed([0] * 9, auto_retry_for=["WORKER_CRASHED"])
    (id_,) = put(max_retries=9, options=options_text(policy, None))
    for _ in range(3):
        crash = failed(take(worker), "WORKER_CRASHED", crashed=True)
        worker.run_pass(outcomes=[crash], max_crashes=3)
    task = Task.objects.get(pk=id_)
    assert (task.status, task.error_code, task.retry_count) == ("FAILED", "POISON", 2)
    assert task.result["err"]["error_code"] == "POISON"
    last = TaskAttempt.objects.get(task_id=id_, attempt=3)
    assert (last.outcome, last.error_code, last.will_retry) == ("WORKER_FAILURE", "WORKER_CRASHED", False)


def test_a_failure_whose_row_is_let_go_between_decision_and_write_keeps_its_retry(
    worker: Claimer, connect: Connect, aside: Aside
) -> None:
    """Naive: it is not decided, because its row is locked, and then written as the last failure, because it is not any more."""
    put(max_retries=2, options=options_text(POLICY, None))
    claim = take(worker)
    holds_row, holds_attempts, watcher = connect(), connect(), connect()
    holds_attempts.execute("BEGIN")
    holds_attempts.execute("LOCK TABLE horsies_task_attempts IN SHARE MODE")  # they can be read, and not be written
    holds_row.execute("BEGIN")
    holds_row.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [claim.id])
    passing = aside(lambda: worker.run_pass(outcomes=[failed(claim)]))
    wait_for_waiting(watcher, worker.conn)
    holds_row.execute("COMMIT")
    holds_attempts.execute("COMMIT")
    assert passing.result(30).landed == set()
    assert worker.run_pass(outcomes=[failed(claim)]).landed == {claim.id}
    assert Task.objects.get().status == "PENDING"
