"""drain(): a project's own tests run tasks in their own process and transaction."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import TestCase, TransactionTestCase

from horsies_django import TaskResult
from horsies_django.models import Task, TaskAttempt
from horsies_django.testing import drain
from tests.project import tasks


class InsideATestCase(TestCase):
    def test_tasks_see_what_the_test_wrote_and_the_test_sees_what_they_wrote(self) -> None:
        handle = tasks.note.send("from the task")
        assert drain() == 1
        assert Group.objects.filter(name="from the task").exists()
        assert handle.get() == TaskResult(ok=None)

    def test_async_tasks_run_too_on_the_tests_own_connection(self) -> None:
        handles = [tasks.anoop.send(), tasks.araises.send()]
        assert drain() == 2
        assert handles[0].get().is_ok()
        assert handles[1].get().err_value.error_code == "UNHANDLED_ERROR"

    def test_what_tasks_send_runs_in_the_same_call(self) -> None:
        tasks.sends_more.send(3)
        assert drain() == 4

    def test_a_task_whose_sql_fails_does_not_break_the_tests_transaction(self) -> None:
        handle = tasks.breaks_sql.send()
        other = tasks.add.send(1)
        assert drain() == 2
        assert handle.get().err_value.exception["type"] == "DataError"  # type: ignore[index]
        assert other.get().ok_value == 1
        assert Group.objects.count() == 0

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
        drain()
        assert list(Task.objects.order_by("id").values_list("status", flat=True)) == ["COMPLETED", "FAILED"]
        assert list(TaskAttempt.objects.order_by("task_id").values_list("outcome", flat=True)) == [
            "COMPLETED",
            "FAILED",
        ]


class InsideATransactionTestCase(TransactionTestCase):
    def test_drain_works_without_a_transaction_around_it(self) -> None:
        handles = [tasks.note.send("committed"), tasks.anoop.send(), tasks.breaks_sql.send()]
        assert drain() == 3
        assert not connection.in_atomic_block
        assert [handle.get().is_ok() for handle in handles] == [True, True, False]
        assert Group.objects.get().name == "committed"


@pytest.mark.django_db
def test_drain_works_in_a_pytest_function() -> None:
    handle = tasks.add.send(1, b=1)
    assert drain() == 1
    assert handle.get().ok_value == 2
