"""The ledger: nothing leaves it before the database has it, and nothing is written twice."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest

from horsies_django.core.records import Claim, Outcome, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.worker.engine import outbox as ledger_module
from horsies_django.worker.engine.outbox import Outbox
from tests.conftest import put

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def outbox(transactional_db: None) -> Iterator[Outbox]:
    made = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    made.connect()
    yield made
    made.disconnect()


def running(outbox: Outbox, count: int) -> list[Claim]:
    put(count)
    return outbox.run_pass(Wanted(count)).claims


def completed(claim: Claim, result: str = '{"ok": 1}') -> Outcome:
    return Outcome(claim.id, claim.generation, "COMPLETED", result)


DONE = ("COMPLETED", '{"ok": 1}', None, None, None, False, ())
FAILED = ("FAILED", '{"err": {"exception": null}}', "OH_NO", "it broke", None, False, ())


def statuses() -> list[str]:
    return sorted(Task.objects.values_list("status", flat=True))


def test_outcomes_leave_the_ledger_once_they_landed(outbox: Outbox) -> None:
    outbox.outcomes += [completed(claim) for claim in running(outbox, 3)]
    assert outbox.owes
    outbox.run_pass()
    assert not outbox.owes
    assert statuses() == ["COMPLETED"] * 3


@pytest.mark.promise("S2.13")
def test_an_outcome_survives_a_lost_connection_and_lands_afterwards(outbox: Outbox) -> None:
    outbox.outcomes += [completed(claim) for claim in running(outbox, 2)]
    outbox.connection_or_raise().close()
    with pytest.raises(psycopg.OperationalError):
        outbox.run_pass()
    assert len(outbox.outcomes) == 2
    outbox.connect()
    outbox.run_pass()
    assert statuses() == ["COMPLETED"] * 2


def test_an_outcome_whose_commit_reply_was_lost_is_not_written_twice(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [completed(claim) for claim in running(outbox, 1)]
    outbox.outcomes += outcomes
    outbox.run_pass()
    outbox.outcomes += outcomes  # as after a reply that never came
    caplog.clear()
    with caplog.at_level(logging.WARNING, "horsies"):
        outbox.run_pass()
    assert not outbox.owes
    assert caplog.records == []
    assert TaskAttempt.objects.count() == 1


def test_each_task_that_ended_has_its_line_when_it_is_written_and_not_before(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horsies.task")
    outbox.outcomes += [Outcome.of(claim, DONE, seconds=0.25) for claim in running(outbox, 2)]
    first, second = outbox.outcomes
    connection, outbox.connection = outbox.connection, None
    with pytest.raises(psycopg.OperationalError):
        outbox.run_pass()
    assert caplog.messages == []
    outbox.connection = connection
    outbox.run_pass()
    assert caplog.messages == [f"tests.nothing {one.id} (attempt 1) completed in 0.250 s" for one in (first, second)]
    assert {record.queue_name for record in caplog.records} == {"default"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("tried_again", [True, False])
def test_what_was_settled_by_a_pass_whose_answer_was_lost_has_its_line_all_the_same(
    outbox: Outbox, caplog: pytest.LogCaptureFixture, tried_again: bool
) -> None:
    caplog.set_level(logging.INFO, "horsies.task")
    claims = running(outbox, 2)
    Task.objects.update(
        max_retries=tried_again, options={"retry": {"strategy": "fixed", "intervals": [60], "codes": ["OH_NO"]}}
    )
    good, bad = (Outcome.of(claim, reply) for claim, reply in zip(claims, (DONE, FAILED), strict=True))
    TaskStore(outbox.connection_or_raise()).run_pass(outbox.worker, outbox.channel, outbox.served, outcomes=[good, bad])
    outbox.outcomes += [good, bad]  # the answer never came
    outbox.run_pass()
    then = ("INFO", "; it is tried again") if tried_again else ("ERROR", "")
    assert {(record.levelname, record.getMessage()) for record in caplog.records} == {
        ("INFO", f"tests.nothing {good.id} (attempt 1) completed"),
        (then[0], f"tests.nothing {bad.id} (attempt 1) failed: OH_NO: it broke{then[1]}"),
    }


def test_poison_is_logged_under_its_own_code(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox.max_crashes = 1
    (claim,) = running(outbox, 1)
    crash = ("FAILED", '{"err": {}}', "WORKER_CRASHED", "it died", None, False, ())
    outbox.outcomes.append(Outcome.of(claim, crash, 7, crashed=True))
    outbox.run_pass()
    assert caplog.messages == [f"tests.nothing {claim.id} (attempt 1) failed: POISON: it died"]


def test_an_outcome_for_a_locked_row_is_kept_and_lands_when_the_row_is_free(
    outbox: Outbox, connect: Callable[[], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "LOCKED_RETRY_SECONDS", 0.0)
    (claim,) = running(outbox, 1)
    outbox.outcomes.append(completed(claim))
    other = connect()
    with other.transaction():
        other.execute("UPDATE horsies_tasks SET options = '{}' WHERE id = %s", [claim.id])
        outbox.run_pass()
        assert outbox.owes
        assert statuses() == ["RUNNING"]
    outbox.run_pass()
    assert not outbox.owes
    assert statuses() == ["COMPLETED"]


def test_a_claim_that_goes_back_is_kept_while_its_row_is_locked(
    outbox: Outbox, connect: Callable[[], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "LOCKED_RETRY_SECONDS", 0.0)
    (claim,) = running(outbox, 1)
    outbox.releases.append(claim)
    other = connect()
    with other.transaction():
        other.execute("UPDATE horsies_tasks SET options = '{}' WHERE id = %s", [claim.id])
        outbox.run_pass()
        assert (outbox.unreleased, statuses()) == (1, ["RUNNING"])
    outbox.run_pass()
    assert (outbox.owes, statuses()) == (False, ["PENDING"])


def test_what_a_zombie_writes_is_dropped_and_logged_with_its_owner_and_generation(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    (claim,) = running(outbox, 1)
    Task.objects.filter(pk=claim.id).update(claimed_by=uuid.uuid4(), claim_generation=2)
    outbox.outcomes.append(Outcome.of(claim, DONE))
    with caplog.at_level(logging.WARNING, "horsies"):
        outbox.run_pass()
    assert not outbox.owes
    assert statuses() == ["RUNNING"]
    assert str(outbox.worker) in caplog.text
    assert f"tests.nothing {claim.id} (attempt 1)" in caplog.text
    assert "generation 1" in caplog.text


def test_one_poisoned_result_fails_alone_and_its_batch_lands(outbox: Outbox) -> None:
    good, bad, also_good = running(outbox, 3)
    outbox.outcomes += [completed(good), completed(bad, '{"ok": "\\u0000"}'), completed(also_good)]
    outbox.run_pass()
    assert not outbox.owes
    assert statuses() == ["COMPLETED", "COMPLETED", "FAILED"]
    failed = Task.objects.get(pk=bad.id)
    assert failed.error_code == "WORKER_SERIALIZATION_ERROR"
    assert TaskAttempt.objects.count() == 3


def test_a_pass_takes_no_more_than_its_bytes_but_always_one(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "BATCH_CHARACTERS", 100)
    claims = running(outbox, 4)
    long = '{"ok": "%s"}' % ("x" * 200)
    outbox.outcomes += [completed(claim, long) for claim in claims]
    outbox.run_pass()
    assert statuses() == ["COMPLETED", "RUNNING", "RUNNING", "RUNNING"]
    while outbox.owes:
        outbox.run_pass()
    assert statuses() == ["COMPLETED"] * 4


def test_claims_that_never_arrived_are_given_back(outbox: Outbox) -> None:
    known, lost = running(outbox, 2)
    assert {task.id for task in outbox.compare({known.id})} > {known.id}
    outbox.run_pass()
    assert Task.objects.get(pk=lost.id).status == "PENDING"
    assert Task.objects.get(pk=known.id).status == "RUNNING"
    assert not TaskAttempt.objects.exists()


def slow_down(conn: psycopg.Connection[Any], body: str, condition: str = "NEW.finished_at IS NOT NULL") -> None:
    """Let each row that is finished run ``body``."""
    conn.execute(f"CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$")
    conn.execute(
        f"CREATE TRIGGER slowly BEFORE UPDATE ON horsies_tasks FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION slowly()"
    )


@pytest.fixture
def speed_up(connect: Callable[[], psycopg.Connection[Any]]) -> Iterator[psycopg.Connection[Any]]:
    conn = connect()
    yield conn
    conn.execute("DROP FUNCTION IF EXISTS slowly CASCADE")


def test_a_batch_that_takes_too_long_is_tried_in_halves_until_it_lands(
    outbox: Outbox, speed_up: psycopg.Connection[Any]
) -> None:
    """Naive: the same batch again and again, which meets the same time limit again and again."""
    outbox.outcomes += [completed(claim) for claim in running(outbox, 64)]
    slow_down(speed_up, "PERFORM pg_sleep(0.02);")
    outbox.connection_or_raise().execute("SET statement_timeout = '600ms'")
    refused = 0
    while outbox.owes:
        try:
            outbox.run_pass()
        except psycopg.errors.QueryCanceled:
            refused += 1
            assert refused < 10
    assert refused >= 1
    assert statuses() == ["COMPLETED"] * 64


def test_an_outcome_that_is_refused_even_as_a_failure_does_not_hold_up_the_others(
    outbox: Outbox, speed_up: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad, *good = running(outbox, 3)
    outbox.outcomes += [completed(claim) for claim in (bad, *good)]
    slow_down(speed_up, "RAISE EXCEPTION 'never';", f"NEW.finished_at IS NOT NULL AND NEW.id = '{bad.id}'")
    with caplog.at_level(logging.ERROR, "horsies"):
        outbox.run_pass()
    assert statuses() == ["COMPLETED", "COMPLETED", "RUNNING"]
    assert f"its failure cannot be stored either, task {bad.id}" in caplog.text
    assert not any(
        record.exc_info or "\n" in record.getMessage() for record in caplog.records
    )  # a context has values of rows
    assert outbox.unwritten == 1
    speed_up.execute("DROP FUNCTION slowly CASCADE")
    outbox.locked_until = 0.0
    outbox.run_pass()
    assert Task.objects.get(pk=bad.id).error_code == "WORKER_SERIALIZATION_ERROR"
    assert not outbox.owes


def test_a_time_limit_amid_a_poisoned_batch_makes_no_completed_task_a_failure(
    outbox: Outbox, speed_up: psycopg.Connection[Any]
) -> None:
    bad, good = running(outbox, 2)
    outbox.outcomes += [completed(bad, '{"ok": "\\u0000"}'), completed(good)]
    cancelled = "RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';"
    slow_down(speed_up, cancelled, f"NEW.finished_at IS NOT NULL AND NEW.id = '{good.id}'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        outbox.run_pass()
    assert Task.objects.get(pk=bad.id).error_code == "WORKER_SERIALIZATION_ERROR"
    assert outbox.outcomes == [completed(good)]
    speed_up.execute("DROP FUNCTION slowly CASCADE")
    outbox.run_pass()
    assert Task.objects.get(pk=good.id).status == "COMPLETED"


class CutAfter:
    """A connection that is cut after so many statements."""

    def __init__(self, connection: psycopg.Connection[Any], statements: int) -> None:
        self.connection = connection
        self.left = statements

    def cursor(self) -> CutAfter:
        self.shared = self.connection.cursor()
        return self

    def execute(self, *statement: Any) -> None:
        if not self.left:
            self.connection.close()
        self.left -= 1
        self.shared.execute(*statement)

    def fetchall(self) -> list[Any]:
        return self.shared.fetchall()

    def close(self) -> None:
        self.connection.close()


def test_an_outcome_that_did_not_land_survives_a_connection_that_is_cut_before_the_look_why(
    outbox: Outbox, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    (claim,) = running(outbox, 1)
    outbox.outcomes.append(completed(claim))
    other, whole = connect(), outbox.connection_or_raise()
    with other.transaction():
        other.execute("UPDATE horsies_tasks SET options = '{}' WHERE id = %s", [claim.id])
        outbox.connection = cast(Any, CutAfter(whole, 1))
        with pytest.raises(psycopg.OperationalError):
            outbox.run_pass()
    assert (whole.closed, outbox.unwritten) == (True, 1)
    outbox.connect()
    outbox.run_pass()
    assert not outbox.owes
    assert statuses() == ["COMPLETED"]
