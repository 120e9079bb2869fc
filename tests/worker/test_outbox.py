"""The outbox: an outcome stays in it until the database has it, and is not written twice.

The tests also cover the passes that write it: the time of the next pass, and tasks of unknown
kinds. Such tasks go back once, are then left out, and run when they are old.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies_django.core.records import Claim, Outcome, Reply, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.base import PLANS_SECONDS
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.tasks import registry
from horsies_django.worker.engine import outbox as outbox_module
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.pass_runner import ENOUGH, GATHER_OUTCOMES_SECONDS, PassRunner
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from tests.conftest import Connect, put
from tests.support.factories import WorkerFactory, now
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def new_outbox() -> Iterator[Outbox]:
    made = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    made.connect()
    yield made
    made.disconnect()


@pytest.fixture
def outbox(transactional_db: None) -> Iterator[Outbox]:
    with new_outbox() as made:
        yield made


def running(outbox: Outbox, count: int) -> list[Claim]:
    put(count)
    return outbox.run_pass(Wanted(count)).claims


def completed(claim: Claim, result: str = '{"ok": 1}') -> Outcome:
    return Outcome(claim.id, claim.generation, "COMPLETED", result)


DONE = Reply("COMPLETED", '{"ok": 1}')
FAILED = Reply("FAILED", '{"err": {"exception": null}}', "OH_NO", "it broke")


def statuses() -> list[str]:
    return sorted(Task.objects.values_list("status", flat=True))


@pytest.mark.promise("S2.13")
def test_an_outcome_survives_a_lost_connection(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """An outcome survives a lost connection, and is logged when it is written."""
    caplog.set_level(logging.INFO, "horsies.task")
    outbox.outcomes += [Outcome.of(claim, DONE, seconds=0.25) for claim in running(outbox, 2)]
    first, second = outbox.outcomes
    outbox.connection_or_raise().close()

    with pytest.raises(psycopg.OperationalError):
        outbox.run_pass()
    assert (outbox.outcomes, caplog.messages) == ([first, second], [])

    outbox.connect()
    outbox.run_pass()

    assert not outbox.has_unwritten_entries
    assert statuses() == ["COMPLETED"] * 2
    assert caplog.messages == [
        f"tests.nothing {one.id} (attempt 1) completed in 0.250 s" for one in (first, second)
    ]
    assert {record.queue_name for record in caplog.records} == {"default"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("tried_again", [True, False])
def test_an_outcome_is_not_written_twice_after_a_lost_answer(
    outbox: Outbox, caplog: pytest.LogCaptureFixture, tried_again: bool
) -> None:
    """Outcomes that were settled by a pass whose answer was lost are written and logged once."""
    caplog.set_level(logging.INFO, "horsies.task")
    claims = running(outbox, 2)
    Task.objects.update(
        max_retries=tried_again,
        options={"retry": {"strategy": "fixed", "intervals": [60], "codes": ["OH_NO"]}},
    )

    good, bad = (
        Outcome.of(claim, reply) for claim, reply in zip(claims, (DONE, FAILED), strict=True)
    )

    TaskStore(outbox.connection_or_raise()).run_pass(
        outbox.worker, outbox.channel, outbox.served, outcomes=[good, bad]
    )

    outbox.outcomes += [good, bad]  # the answer never came
    outbox.run_pass()

    assert (outbox.has_unwritten_entries, TaskAttempt.objects.count()) == (False, 2)
    then = ("INFO", "; it is retried") if tried_again else ("ERROR", "")
    assert {(record.levelname, record.getMessage()) for record in caplog.records} == {
        ("INFO", f"tests.nothing {good.id} (attempt 1) completed"),
        (then[0], f"tests.nothing {bad.id} (attempt 1) failed: OH_NO: it broke{then[1]}"),
    }


def test_poison_is_logged_under_its_own_code(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.max_crashes = 1
    (claim,) = running(outbox, 1)
    crash = Reply("FAILED", '{"err": {}}', "WORKER_CRASHED", "it died")
    outbox.outcomes.append(Outcome.of(claim, crash, 7, crashed=True))

    outbox.run_pass()

    assert caplog.messages == [f"tests.nothing {claim.id} (attempt 1) failed: POISON: it died"]


@contextmanager
def locked(connection: psycopg.Connection[Any], claim: Claim) -> Iterator[None]:
    """Hold a lock on the row of a task."""
    with connection.transaction():
        connection.execute("UPDATE horsies_tasks SET options = '{}' WHERE id = %s", [claim.id])
        yield


@pytest.mark.parametrize("owed", ["outcome", "release"])
def test_an_outcome_for_a_locked_row_lands_once_the_row_is_free(
    outbox: Outbox, connect: Connect, monkeypatch: pytest.MonkeyPatch, owed: str
) -> None:
    """An outcome or a release for a locked row is kept, and written when the row is free."""
    monkeypatch.setattr(outbox_module, "LOCKED_RETRY_SECONDS", 0.0)
    (claim,) = running(outbox, 1)
    if owed == "outcome":
        outbox.outcomes.append(completed(claim))
    else:
        outbox.releases.append(claim)

    with locked(connect(), claim):
        outbox.run_pass()
        assert (outbox.has_unwritten_entries, outbox.unwritten, outbox.unreleased) == (
            True,
            owed == "outcome",
            owed == "release",
        )
        assert statuses() == ["RUNNING"]

    outbox.run_pass()
    assert not outbox.has_unwritten_entries
    assert statuses() == ["COMPLETED" if owed == "outcome" else "PENDING"]


def test_outcomes_of_a_zombie_are_dropped_and_logged(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Outcomes of a zombie are dropped, and the log names the worker and the generation."""
    (claim,) = running(outbox, 1)
    Task.objects.filter(pk=claim.id).update(claimed_by=uuid.uuid4(), claim_generation=2)
    outbox.outcomes.append(Outcome.of(claim, DONE))

    with caplog.at_level(logging.WARNING, "horsies"):
        outbox.run_pass()

    assert not outbox.has_unwritten_entries
    assert statuses() == ["RUNNING"]
    assert str(outbox.worker) in caplog.text
    assert f"tests.nothing {claim.id} (attempt 1)" in caplog.text
    assert "generation 1" in caplog.text


def test_one_poisoned_result_fails_alone_and_its_batch_lands(outbox: Outbox) -> None:
    good, bad, also_good = running(outbox, 3)
    outbox.outcomes += [completed(good), completed(bad, '{"ok": "\\u0000"}'), completed(also_good)]

    outbox.run_pass()

    assert not outbox.has_unwritten_entries
    assert statuses() == ["COMPLETED", "COMPLETED", "FAILED"]
    assert Task.objects.get(pk=bad.id).error_code == "WORKER_SERIALIZATION_ERROR"
    assert TaskAttempt.objects.count() == 3


def test_a_pass_takes_no_more_than_its_bytes_but_always_one(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "BATCH_CHARACTERS", 100)
    outbox.outcomes += [
        completed(claim, '{"ok": "%s"}' % ("x" * 200)) for claim in running(outbox, 3)
    ]

    for done in (1, 2, 3):
        outbox.run_pass()
        assert statuses() == ["COMPLETED"] * done + ["RUNNING"] * (3 - done)


def test_claims_that_never_arrived_are_given_back(outbox: Outbox) -> None:
    known, lost = running(outbox, 2)
    assert {task.id for task in outbox.compare({known.id})} > {known.id}

    outbox.run_pass()

    assert Task.objects.get(pk=lost.id).status == "PENDING"
    assert Task.objects.get(pk=known.id).status == "RUNNING"
    assert not TaskAttempt.objects.exists()


def test_a_batch_that_exceeds_its_time_limit_is_halved(outbox: Outbox, connect: Connect) -> None:
    """A batch that exceeds its time limit is halved until it is written.

    Fails if: the same batch is tried again and again with the same time limit.
    """
    outbox.outcomes += [completed(claim) for claim in running(outbox, 64)]

    other = connect()
    other.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$"
    )
    other.execute(
        "CREATE TRIGGER slowly BEFORE UPDATE ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION "
        "slowly()"
    )
    outbox.connection_or_raise().execute("SET statement_timeout = '600ms'")

    refused = 0
    try:
        while outbox.has_unwritten_entries:
            try:
                outbox.run_pass()
            except psycopg.errors.QueryCanceled:
                refused += 1
                assert refused < 10
    finally:
        other.execute("DROP FUNCTION slowly CASCADE")

    assert refused >= 1
    assert statuses() == ["COMPLETED"] * 64


def test_a_refused_outcome_does_not_hold_up_the_others(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """An outcome that is refused even as a failure does not hold up the others."""
    bad, *good = running(outbox, 3)
    outbox.outcomes += [completed(claim) for claim in (bad, *good)]

    with refused("horsies_tasks", f"NEW.finished_at IS NOT NULL AND NEW.id = '{bad.id}'"):
        outbox.run_pass()

    assert statuses() == ["COMPLETED", "COMPLETED", "RUNNING"]
    assert f"the failure of task {bad.id} cannot be stored either" in caplog.text
    assert "secret" not in caplog.text
    # There is no context, either.
    assert not any(record.exc_info or "\n" in record.getMessage() for record in caplog.records)
    assert outbox.unwritten == 1

    outbox.locked_until = 0.0
    outbox.run_pass()
    assert Task.objects.get(pk=bad.id).error_code == "WORKER_SERIALIZATION_ERROR"
    assert not outbox.has_unwritten_entries


def test_a_time_limit_in_a_poisoned_batch_fails_no_good_task(
    outbox: Outbox,
) -> None:
    """A timeout in a batch with a refused outcome does not make a completed task fail."""
    bad, good = running(outbox, 2)
    outbox.outcomes += [completed(bad, '{"ok": "\\u0000"}'), completed(good)]
    condition = f"NEW.finished_at IS NOT NULL AND NEW.id = '{good.id}'"

    with (
        refused("horsies_tasks", condition, code="57014"),
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        outbox.run_pass()

    assert Task.objects.get(pk=bad.id).error_code == "WORKER_SERIALIZATION_ERROR"
    assert outbox.outcomes == [completed(good)]

    outbox.run_pass()
    assert Task.objects.get(pk=good.id).status == "COMPLETED"


def test_an_unwritten_outcome_survives_a_cut_before_the_check(
    outbox: Outbox, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome that was not written survives a cut connection before the check for the reason."""
    (claim,) = running(outbox, 1)
    outbox.outcomes.append(completed(claim))
    whole = outbox.connection_or_raise()
    look = TaskStore.unsettled

    def cut(store: TaskStore, *asked: Any) -> dict[uuid.UUID, str]:
        whole.close()
        return look(store, *asked)

    with locked(connect(), claim), monkeypatch.context() as patched:
        patched.setattr(TaskStore, "unsettled", cut)
        with pytest.raises(psycopg.OperationalError):
            outbox.run_pass()

    assert (whole.closed, outbox.unwritten) == (True, 1)

    outbox.connect()
    outbox.run_pass()
    assert not outbox.has_unwritten_entries
    assert statuses() == ["COMPLETED"]


GRACE = timedelta(minutes=5)
KNOWN = "tests.apps.project.tasks.noop"
STRANGE = "shop.tasks.new"
TEN = Wanted(10)
SLOTS = {"sync": 10, "async": 0}


@pytest.fixture
def passes(transactional_db: None) -> Iterator[PassRunner]:
    with connected(GRACE) as made:
        yield made


@contextmanager
def connected(grace: timedelta) -> Iterator[PassRunner]:
    registry.autodiscover()
    with new_outbox() as made:
        WorkerFactory(id=made.worker, queues=["default"], task_names=registry.names(), wire=2)
        yield PassRunner(made, ["default"], 5.0, UnknownTasks(grace))


def ids(claims: list[Claim]) -> list[uuid.UUID]:
    return [claim.id for claim in claims]


def test_unknown_tasks_are_released_once_and_then_skipped(
    passes: PassRunner, caplog: pytest.LogCaptureFixture
) -> None:
    put(3, name=STRANGE)
    known = put(2, name=KNOWN)
    assert passes.unknown_tasks.grace_at(time.monotonic()) is None, (
        "it met none, and asks for nothing special"
    )

    with caplog.at_level(logging.WARNING, logger="horsies.worker"):
        passed = passes.run(TEN, SLOTS)

    assert ids(passed.claims) == known
    assert passed.again, "the engine comes round at once and writes what it gives back"
    assert len(passes.outbox.releases) == 3
    assert "releasing 3 task(s) unknown to this worker: shop.tasks.new." in caplog.text

    for _ in range(3):
        passed = passes.run(TEN, SLOTS)
        assert (passed.claims, passed.again, passes.outbox.has_unwritten_entries) == (
            [],
            False,
            False,
        )
        assert passes.wakeups.due_at == passes.unknown_tasks.until, (
            "it looks again when they are old"
        )

    put(name="shop.tasks.newer")
    assert passes.run(TEN, SLOTS).claims == []
    assert Task.objects.get(task_name="shop.tasks.newer").claim_generation == 0, (
        "another name costs no second round"
    )

    unknown_tasks = Task.objects.filter(task_name=STRANGE)
    assert set(unknown_tasks.values_list("status", "claim_generation", "retry_count")) == {
        ("PENDING", 1, 0)
    }
    assert not TaskAttempt.objects.exists()

    met = time.monotonic()
    assert [
        passes.unknown_tasks.grace_at(met + late) for late in (0, GRACE.total_seconds() + 1)
    ] == [GRACE, None]


def test_many_unknown_names_are_logged_as_one_short_line(
    passes: PassRunner, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(15):
        put(name=f"{number:02}\n[CRITICAL] {'x' * 230}")

    passes.run(Wanted(20), SLOTS | {"sync": 20})

    (line,) = [message for message in caplog.messages if "unknown to this worker" in message]
    assert line.isprintable()
    assert line.startswith("releasing 15 task(s) unknown to this worker: 00\\n[CRITICAL] xxx")
    assert "and 5 more names. Other" in line
    assert len(line) < 2_500


def test_what_is_taken_ahead_goes_back_too(passes: PassRunner) -> None:
    put(3, name=STRANGE)
    (known,) = put(name=KNOWN)

    passed = passes.run(Wanted(prefetch=10, lease=timedelta(minutes=1)), SLOTS)
    assert ids(passed.prefetched) == [known]

    passes.outbox.run_pass()
    assert sorted(Task.objects.values_list("status", flat=True)) == [
        "CLAIMED",
        "PENDING",
        "PENDING",
        "PENDING",
    ]


@pytest.mark.promise("S2.21")
def test_a_pass_claims_an_unknown_task_older_than_the_grace(passes: PassRunner) -> None:
    (id_,) = put(name=STRANGE)
    with connected(timedelta(0)) as strict:
        passed = strict.run(TEN, SLOTS)
    assert (ids(passed.claims), passed.again) == ([id_], False), "without a grace nothing goes back"

    (id_,) = put(name=STRANGE)
    Task.objects.filter(pk=id_).update(enqueued_at=now() - GRACE)
    assert passes.run(TEN, SLOTS).claims == []
    assert ids(passes.run(TEN, SLOTS).claims) == [id_]


def test_a_task_of_a_newer_release_goes_back_until_it_is_old(passes: PassRunner) -> None:
    """A task of a newer release goes back, and fails once it is old."""
    (id_,) = put(name=KNOWN, options='{"wire": 3}')
    assert passes.run(TEN, SLOTS).claims == []

    Task.objects.update(enqueued_at=now() - GRACE)
    put(name=KNOWN, options='{"wire": 1, "timeout_ms": 1000}')
    claim, today = passes.run(TEN, SLOTS).claims
    assert passes.outbox.started([claim, today]) == [today], (
        "what this release reads is handed over as it is"
    )

    passes.outbox.run_pass()
    task = Task.objects.get(pk=id_)
    assert (task.status, task.error_code, task.claim_generation) == (
        "FAILED",
        "WORKER_RESOLUTION_ERROR",
        2,
    )
    assert (
        "version 3 of the task format, and this worker reads version 2"
        in task.result["err"]["message"]
    )


def test_a_pass_waits_at_most_2_ms_for_tasks_to_end(
    passes: PassRunner,
) -> None:
    """A pass waits at most 2 ms for tasks to end.

    It begins earlier if as many tasks have ended as the last pass started.
    """
    outbox = passes.outbox
    assert passes.not_before == 0.0

    put(3, name=KNOWN)
    claims = passes.run(TEN, {"sync": 10, "async": 0}).claims
    assert passes.not_before == passes.ended + GATHER_OUTCOMES_SECONDS

    outcomes = [completed(claim) for claim in claims]
    outbox.outcomes = outcomes[:2]
    assert passes.not_before == passes.ended + GATHER_OUTCOMES_SECONDS
    outbox.outcomes = [*outcomes]
    assert passes.not_before == passes.ended

    passes.run(TEN, SLOTS)
    assert passes.not_before == passes.ended, "it started none"

    passes.started = 200
    outbox.outcomes = outcomes[:1] * ENOUGH
    assert passes.not_before == passes.ended, "twenty outcomes are enough"


def test_no_short_pass_follows_one_that_read_over_late_tasks(
    passes: PassRunner,
) -> None:
    """No short pass runs for a while after one that read over many late tasks."""
    passes.run(Wanted(10), {"sync": 10, "async": 10})
    put(10_000, name=KNOWN, good_until=now() - timedelta(days=1))
    put(name=KNOWN)
    passes.wakeups.mark_fresh(["default"], "sync")

    assert (passed := passes.run(Wanted(1), {"sync": 1})).short
    assert passed.claims
    assert passes.wakeups.short_from > passes.ended


def test_a_pass_replaces_the_check_once_scans_read_far(
    passes: PassRunner,
) -> None:
    """Once scans read far, a pass replaces the look, because a look reads all dead entries."""
    passes.run(Wanted(10), {"sync": 10, "async": 10})

    for far, lanes in ((False, set[str]()), (True, {"sync"})):
        passes.cursors.far = far
        passes.wakeups.later = {("sync", "default"): 0.0}
        passes.wakeups.later_at = 0.0
        passes.follow_up(time.monotonic(), lambda lane: 10)
        assert passes.wakeups.lanes_with_work == lanes


def with_a_bad_plan(conn: psycopg.Connection[Any]) -> Callable[[], str]:
    """Prepare a statement with a plan that reads the table in full.

    Returns a function that returns the plan of the statement.
    """
    for command in (
        "SET plan_cache_mode = force_generic_plan",
        "PREPARE one AS SELECT FROM horsies_tasks WHERE id = $1",
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
        "EXECUTE one (gen_random_uuid())",
        "RESET enable_indexscan; RESET enable_bitmapscan; RESET enable_indexonlyscan; SET "
        "enable_seqscan = off",
    ):
        conn.execute(command, prepare=False)
    return lambda: str(
        conn.execute("EXPLAIN EXECUTE one (gen_random_uuid())", prepare=False).fetchall()[0][0]
    )


def test_the_engine_session_drops_plans_every_ten_seconds(outbox: Outbox) -> None:
    """The session of the engine drops its plans every ten seconds.

    Fails if: a plan of an empty table reads all tasks in each pass until the next ANALYZE.
    """
    plan = with_a_bad_plan(outbox.connection_or_raise())

    outbox.run_pass()
    assert "Seq Scan" in plan()

    outbox.planned_at -= PLANS_SECONDS
    outbox.run_pass()
    assert "Index" in plan()
