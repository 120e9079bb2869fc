"""drain(): a project's own tests run tasks in their own process and transaction."""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from horsies_django import RetryPolicy, TaskFailed, TaskResult, Workflow, WorkflowError, queues
from horsies_django.models import Task, TaskAttempt
from horsies_django.testing import drain
from horsies_django.workflows import advancer
from tests.apps.project import flows, tasks
from tests.support.refusing import refused

HOUR = dt.timedelta(hours=1)


class InsideATestCase(TestCase):
    def test_tasks_see_what_the_test_wrote_and_the_test_sees_what_they_wrote(self) -> None:
        handle = tasks.note.send("from the task")
        assert drain() == 1
        assert Group.objects.filter(name="from the task").exists()
        assert handle.get() == TaskResult(ok=None)

    def test_async_tasks_run_too_on_the_tests_own_connection(self) -> None:
        handles = [tasks.anoop.send(), tasks.araises.send()]
        assert drain(raise_errors=False) == 2
        assert handles[0].get().is_ok()
        assert handles[1].get().err_value.error_code == "UNHANDLED_ERROR"

    def test_what_tasks_send_runs_in_the_same_call(self) -> None:
        tasks.sends_more.send(3)
        assert drain() == 4

    def test_a_task_whose_sql_fails_does_not_break_the_tests_transaction(self) -> None:
        handle = tasks.breaks_sql.send()
        other = tasks.add.send(1)
        assert drain(raise_errors=False) == 2
        assert handle.get().err_value.exception["type"] == "DataError"  # type: ignore[index]
        assert other.get().ok_value == 1
        assert Group.objects.count() == 0

    def test_a_run_that_the_database_refuses_to_advance_ends_the_drain_with_what_it_said(self) -> None:
        """Naive: it is tried again and again, and the test never ends."""
        flow = Workflow("refused")
        flow.add(flows.number, 1)
        handle = flow.send()
        with (
            refused("horsies_workflow_nodes", f"new.workflow_id = '{handle.workflow_id}'"),
            pytest.raises(WorkflowError, match=f"^workflow run {handle.workflow_id} cannot be advanced: refused$"),
            transaction.atomic(),
        ):
            drain()
        drain()
        assert handle.status() == "COMPLETED"

    def test_what_is_scheduled_for_later_stays(self) -> None:
        handle = tasks.add.schedule(3600, 1)
        assert drain() == 0
        assert handle.info().status == "PENDING"  # type: ignore[union-attr]

    def test_only_the_queues_that_are_named_are_drained(self) -> None:
        tasks.mail.send("a@example.org")
        tasks.add.send(1)
        assert drain(queues=["mail"]) == 1
        assert Task.objects.get(status="PENDING").queue_name == "default"
        with pytest.raises(ValueError, match="queues not declared: mial"):
            drain(queues=["mial"])

    def test_statuses_and_attempts_are_those_a_worker_would_write(self) -> None:
        tasks.add.send(1)
        tasks.raises.send("no")
        drain(raise_errors=False)
        assert list(Task.objects.order_by("id").values_list("status", flat=True)) == ["COMPLETED", "FAILED"]
        assert list(TaskAttempt.objects.order_by("task_id").values_list("outcome", flat=True)) == [
            "COMPLETED",
            "FAILED",
        ]

    def test_what_fails_for_good_is_raised_once_all_have_run(self) -> None:
        retried = tasks.mails.send(1)
        tasks.raises.send("no such thing")
        tasks.araises.send()
        tasks.mail.send("nowhere")
        tasks.add.with_options(good_until=dt.timedelta(microseconds=1)).send(1)  # expires, which is no failure
        with pytest.raises(ExceptionGroup, match="tasks that failed: 3") as caught:
            drain()
        assert retried.get().ok_value == 2
        failures = caught.value.exceptions
        assert all(isinstance(one, TaskFailed) for one in failures)
        assert sorted(str(one) for one in failures) == [
            "NO_ADDRESS: nowhere is no address",
            "UNHANDLED_ERROR: LookupError: async",
            "UNHANDLED_ERROR: LookupError: no such thing",
        ]
        assert Task.objects.filter(finished_at=None).count() == 0

    def test_a_failure_tells_the_task_and_the_traceback(self) -> None:
        handle = tasks.raises.send("no such thing")
        with pytest.raises(ExceptionGroup) as caught:
            drain()
        shown = "".join(traceback.format_exception(caught.value))
        assert f"The task: tests.apps.project.tasks.raises, id {handle.task_id}, attempt 1" in shown
        assert "raise LookupError(message)" in shown
        assert "drain(raise_errors=False)" in shown
        (failure,) = caught.value.exceptions
        assert failure.error == handle.get().err_value  # type: ignore[attr-defined]

    def test_an_attempt_that_is_tried_again_later_is_no_failure_yet(self) -> None:
        handle = tasks.mails.with_options(retry_policy=RetryPolicy.fixed([60, 60])).send(9)
        assert drain() == 1
        with pytest.raises(ExceptionGroup, match="tasks that failed: 1"):
            drain(until=dt.timedelta(minutes=5))
        assert handle.info().retry_count == 2  # type: ignore[union-attr]


class MovedInTime(TestCase):
    def test_retries_and_later_tasks_run_at_their_moments_in_their_order(self) -> None:
        policy = RetryPolicy.exponential(base_seconds=100, max_retries=5, jitter=False)
        retried = tasks.mails.with_options(retry_policy=policy).send(2)
        between, late = tasks.note.schedule(200, "between"), tasks.note.schedule(HOUR, "late")
        assert drain(until=HOUR / 2) == 4
        first, second, third = retried.info().attempts  # type: ignore[union-attr]
        assert second.started_at - first.finished_at == dt.timedelta(seconds=100)
        assert third.started_at - second.finished_at == dt.timedelta(seconds=200)
        assert second.finished_at < between.info().started_at < third.started_at  # type: ignore[union-attr, operator]
        assert between.info().started_at == between.info().enqueued_at  # type: ignore[union-attr]
        assert late.info().status == "PENDING"  # type: ignore[union-attr]
        assert drain(until=HOUR + dt.timedelta(seconds=30)) == 1

    def test_retries_end_where_the_time_ends(self) -> None:
        policy = RetryPolicy.exponential(base_seconds=60, max_retries=5, jitter=False)  # after 1, 3, 7, 15, 31 minutes
        handle = tasks.mails.with_options(retry_policy=policy).send(9)
        assert drain(until=dt.timedelta(minutes=10)) == 4
        info = handle.info()
        assert info is not None
        assert (info.status, info.retry_count) == ("PENDING", 4)
        assert info.next_retry_at - info.attempts[0].finished_at == dt.timedelta(minutes=15)  # type: ignore[operator]

    def test_what_tasks_send_counts_from_the_moment_at_which_they_ran(self) -> None:
        tasks.comes_again.send(60)
        assert drain(until=HOUR + dt.timedelta(seconds=30)) == 61
        (waiting,) = Task.objects.filter(status="PENDING")
        assert waiting.enqueued_at - waiting.sent_at == dt.timedelta(minutes=1)
        tasks.add.send(1)
        assert Task.objects.latest("id").sent_at < waiting.sent_at  # time is what it was

    def test_a_deadline_that_passes_on_the_way_expires_the_task(self) -> None:
        handles = [tasks.add.with_options(good_until=HOUR * hours).schedule(HOUR * 2, 1) for hours in (1, 3)]
        assert drain(until=HOUR * 4) == 1
        assert [handle.info().status for handle in handles] == ["EXPIRED", "COMPLETED"]  # type: ignore[union-attr]

    def test_what_is_later_or_not_drained_is_not_touched(self) -> None:
        tasks.add.schedule(HOUR * 5, 1)
        tasks.mail.schedule(HOUR, "a@example.org")
        queues.pause("bulk", actor="ann")
        tasks.add.with_options(queue="bulk").schedule(HOUR, 1)
        before = list(Task.objects.order_by("id").values())
        assert drain(queues=["default", "bulk"], until=HOUR * 4) == 0
        assert list(Task.objects.order_by("id").values()) == before

    def test_an_end_in_the_past_runs_what_is_due(self) -> None:
        tasks.add.send(1)
        tasks.add.schedule(1, 1)
        assert drain(until=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) == 1
        assert drain(until=dt.timedelta(0)) == 0

    def test_an_end_that_cannot_be_is_refused(self) -> None:
        for until, words in [
            (dt.datetime(2030, 1, 1), "no time zone"),
            (dt.timedelta(seconds=-1), "is in the past"),
            (3600, "an aware datetime or a timedelta, not int"),
        ]:
            with pytest.raises((ValueError, TypeError), match=words):
                drain(until=until)  # type: ignore[arg-type]


class InsideATransactionTestCase(TransactionTestCase):
    def test_time_moves_without_a_transaction_around_it_too(self) -> None:
        tasks.comes_again.schedule(HOUR, 3_600)
        handle = tasks.anoop.schedule(HOUR)
        assert drain(until=HOUR * 2) == 3
        assert handle.get().is_ok()

    def test_drain_works_without_a_transaction_around_it(self) -> None:
        handles = [tasks.note.send("committed"), tasks.anoop.send(), tasks.breaks_sql.send()]
        assert drain(raise_errors=False) == 3
        assert not connection.in_atomic_block
        assert [handle.get().is_ok() for handle in handles] == [True, True, False]
        assert Group.objects.get().name == "committed"


def test_a_run_that_another_transaction_holds_ends_the_drain_after_a_while(
    connect: Callable[[], psycopg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naive: the test never ends, because the transaction is that of the test itself, say."""
    monkeypatch.setattr(advancer, "BUSY_TRIES", 3)
    flow = Workflow("held")
    flow.add(flows.number, 1)
    handle = flow.send()
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM horsies_workflows FOR UPDATE")
        with pytest.raises(
            WorkflowError, match=f"^workflow run {handle.workflow_id} cannot be advanced: another trans"
        ):
            drain()
    assert drain() == 0
    assert handle.status() == "COMPLETED"


@pytest.mark.django_db
def test_drain_works_in_a_pytest_function() -> None:
    handle = tasks.add.send(1, b=1)
    assert drain() == 1
    assert handle.get().ok_value == 2
