"""Results of ``django.tasks``: each of our endings in Django's four statuses, with errors that can be imported."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskCancelled, TaskTimeout, get_handle
from horsies_django.backends import HorsiesBackend
from horsies_django.backends.exceptions import CLASSES, TaskExpired, TaskFailed, WorkerCrashed
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks import registry
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import TaskResultStatus, exceptions, task_backends
from tests.apps.project import tasks as ours
from tests.support.factories import TaskAttemptFactory, TaskFactory

pytestmark = pytest.mark.django_db

Missing = exceptions.TaskResultDoesNotExist
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def ran(task: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a task, run it, and return its result."""
    result = task.enqueue(*args, **kwargs)
    drain(raise_errors=False)
    return refreshed(result)


def test_a_success_has_its_value_its_times_and_its_worker() -> None:
    result = ran(tasks.add, 2, b=3)
    assert (result.status, result.return_value, result.errors, result.attempts) == (SUCCESSFUL, 5, [], 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.worker_ids == [str(TaskAttempt.objects.get().worker_id)]
    assert task_backends["default"].get_result(result.id) == result


def test_a_failure_has_the_class_and_the_traceback_of_the_exception() -> None:
    result = ran(tasks.fails, "KeyError", "who")
    assert (result.status, result.attempts) == (FAILED, 1)
    (error,) = result.errors
    assert error.exception_class is KeyError
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith("KeyError: 'who'\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_system_exit_is_a_failure_of_the_task() -> None:
    assert ran(tasks.fails, "SystemExit", "bye").errors[0].exception_class is SystemExit


@pytest.mark.parametrize(
    ("what", "raised", "said"),
    [("function", TypeError, "Unsupported type"), ("nan", ValueError, "NaN"), ("nul", ValueError, "NUL byte")],
)
def test_a_value_that_cannot_be_stored_is_a_failure_of_the_task(what: str, raised: type, said: str) -> None:
    """Naive: the task counts as successful, and the database refuses its result."""
    (error,) = ran(tasks.returns, what).errors
    assert error.exception_class is raised
    assert said.lower() in error.traceback.lower()


def test_a_value_becomes_json() -> None:
    assert ran(tasks.returns, "tuple").return_value == [1, "two"]


def test_a_cancelled_task_has_failed_and_says_so() -> None:
    """Naive: there is no error, because no attempt raised one."""
    result = tasks.add.enqueue(1)
    get_handle(result.id).cancel()
    (error,) = refreshed(result).errors
    assert (result.status, result.attempts, result.started_at) == (FAILED, 0, None)
    assert error.exception_class is TaskCancelled
    assert error.traceback == "TaskCancelled: the task was cancelled before it started\n"


@pytest.mark.parametrize("code", [*CLASSES, "WORKER_RESOLUTION_ERROR"])
def test_every_ending_has_a_class_that_can_be_imported(code: str) -> None:
    name = "tests.apps.errands.tasks.add"
    kwargs = {"args": [1], "kwargs": {}, "names": ["a"]}
    status = {"TASK_EXPIRED": "EXPIRED", "TASK_CANCELLED": "CANCELLED", "TASK_SKIPPED": "CANCELLED"}.get(code, "FAILED")
    row = TaskFactory(
        task_name=name, codec="plain", kwargs=kwargs, status=status, error_code=code,
        result={"err": {"error_code": code, "message": "as the row says", "data": None, "exception": None}},
    )  # fmt: skip
    result = task_backends["default"].get_result(str(row.pk))
    (error,) = result.errors
    assert (result.status, result.is_finished) == (FAILED, True)
    assert error.exception_class is CLASSES.get(code, TaskFailed)
    assert error.traceback.endswith("as the row says\n")


def test_the_classes_of_endings_are_those_of_our_own_api_where_it_has_one() -> None:
    assert CLASSES["TASK_CANCELLED"] is TaskCancelled
    assert CLASSES["TASK_TIMEOUT"] is TaskTimeout
    assert (CLASSES["TASK_EXPIRED"], CLASSES["WORKER_CRASHED"], CLASSES["POISON"]) == (
        TaskExpired, WorkerCrashed, WorkerCrashed
    )  # fmt: skip


def test_a_task_that_waits_for_its_next_attempt_is_ready_and_keeps_its_errors() -> None:
    """Naive: the next attempt overwrites the error of the one before, or ``started_at`` is that of the last attempt."""
    result = ran(tasks.waits, "first")
    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    assert task_backends["default"].get_result(result.id).task.run_after > result.last_attempted_at
    drain(until=dt.timedelta(minutes=5), raise_errors=False)
    result.refresh()
    assert (result.status, result.attempts, len(set(result.worker_ids))) == (FAILED, 2, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    first, second = TaskAttempt.objects.order_by("attempt")
    assert (result.started_at, result.last_attempted_at) == (first.started_at, second.started_at)


def test_a_task_that_is_cancelled_between_attempts_tells_both() -> None:
    result = ran(tasks.waits, "first")
    get_handle(result.id).cancel()
    assert [error.exception_class for error in refreshed(result).errors] == [ValueError, TaskCancelled]


def test_a_running_task_counts_the_attempt_that_runs() -> None:
    worker = TaskAttemptFactory.build().worker_id
    row = TaskFactory(
        task_name="tests.apps.errands.tasks.add", codec="plain", kwargs={"args": [], "kwargs": {}}, status="RUNNING"
    )
    result = task_backends["default"].get_result(row.pk)
    assert (result.status, result.attempts, result.worker_ids) == (RUNNING, 1, [str(row.claimed_by)])
    assert result.started_at == result.last_attempted_at == row.started_at
    assert worker != row.claimed_by


@pytest.mark.parametrize(
    "id_", ["123", "", None, 123, "'; DROP TABLE", "0190a9b2-0000-7000-8000-000000000000", "x" * 999]
)
@pytest.mark.django_db(transaction=True)
def test_an_id_that_is_none_or_unknown_leaves_the_transaction_usable(id_: Any) -> None:
    """Naive: the database refuses the id, and every later query of the transaction fails."""
    with transaction.atomic():
        with pytest.raises(Missing):
            task_backends["default"].get_result(id_)
        assert Task.objects.count() == 0


def test_a_result_belongs_to_the_backend_through_which_the_task_was_sent() -> None:
    first, second = tasks.add.enqueue(1), tasks.add.using(backend="second").enqueue(1)
    assert task_backends["second"].get_result(second.id).task.backend == "second"
    for alias, result in (("default", second), ("second", first)):
        with pytest.raises(Missing):
            task_backends[alias].get_result(result.id)


def test_a_task_of_our_own_api_is_no_result_of_django() -> None:
    handle = ours.add.send(1, 2)
    with pytest.raises(Missing):
        task_backends["default"].get_result(str(handle.task_id))


def test_another_task_does_not_take_a_result_for_its_own() -> None:
    result = tasks.add.enqueue(1)
    with pytest.raises(exceptions.TaskResultMismatch, match="tests.apps.errands.tasks.add"):
        tasks.note.get_result(result.id)


def test_a_result_outlives_the_function_and_the_queue_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: ImportError, or a ``task`` of None, whose ``module_path`` cannot be read."""
    result = ran(tasks.add.using(queue_name="mail", priority=4), 20, 1)
    Task.objects.filter(pk=result.id).update(task_name="shop.tasks.gone")
    with override_settings(
        TASKS={"default": {"BACKEND": "horsies_django.backends.HorsiesBackend", "QUEUES": ["other"]}}
    ):
        found = task_backends["default"].get_result(result.id)
    assert (found.status, found.return_value, found.args) == (SUCCESSFUL, 21, [20, 1])
    assert (found.task.module_path, found.task.name, found.task.queue_name) == ("shop.tasks.gone", "gone", "mail")
    assert (found.task.priority, found.task.backend) == (4, "default")
    with pytest.raises(LookupError, match="there is no task 'shop.tasks.gone'"):
        found.task.call(1)
    found.refresh()
    monkeypatch.delitem(registry._tasks, "tests.apps.errands.tasks.add")
    assert registry.find("tests.apps.errands.tasks.add") is None


def test_a_redacted_task_keeps_its_status_and_nothing_else() -> None:
    result = ran(tasks.fails, "ValueError", "the secret")
    redact(result.id, actor="a test", reason="asked for")
    found = task_backends["default"].get_result(result.id)
    assert (found.status, found.args, found.kwargs) == (FAILED, [], {})
    assert "secret" not in repr(found)
    assert found.errors[0].exception_class is TaskFailed


def test_a_task_learns_its_id_and_attempt_without_a_query() -> None:
    """Naive: the result for the context is read from the table before each task."""
    result = tasks.which.enqueue()
    attempt = tasks.which.enqueue("attempt")
    with CaptureQueriesContext(connection) as queries:
        drain()
    assert not [query for query in queries.captured_queries if "task.codec = 'plain'" in query["sql"]]
    assert (refreshed(result).return_value, refreshed(attempt).return_value) == (result.id, 1)


@pytest.mark.parametrize("name", ["enqueued_at", "started_at", "last_attempted_at"])
def test_a_task_reads_its_times_from_its_row_when_it_asks(name: str) -> None:
    result = ran(tasks.which, name)
    assert result.return_value == str(getattr(result, name))


@pytest.mark.parametrize("alias", ["default", "second"])
def test_a_task_knows_through_which_backend_it_was_sent(alias: str) -> None:
    """Naive: it is the backend that the decorator names, and a refresh in the task finds nothing."""
    assert ran(tasks.which.using(backend=alias), "backend").return_value == alias
    assert ran(tasks.refreshes.using(backend=alias)).return_value == ["RUNNING", 1]


def test_an_async_task_gets_a_context_that_it_can_read() -> None:
    """Naive: reading a field queries the database on the event loop, which Django refuses."""
    result = ran(tasks.which_async)
    assert result.return_value == [result.id, 1, str(result.enqueued_at), "default"]


def test_the_statuses_are_members_of_the_package_of_the_backend() -> None:
    assert HorsiesBackend.api.status is TaskResultStatus
    assert type(ran(tasks.add, 1).status) is TaskResultStatus
