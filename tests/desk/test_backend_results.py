"""Results of ``django.tasks``: each of our endings in Django's four statuses, and how often, when and for what it is retried."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskCancelled, TaskTimeout, backends, get_handle
from horsies_django.backends import HorsiesBackend
from horsies_django.backends.exceptions import CLASSES, TaskExpired, TaskFailed, WorkerCrashed
from horsies_django.backends.options import Retries
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import InvalidTask, TaskResultStatus, exceptions, signals, task, task_backends
from tests.apps.project import tasks as ours
from tests.support.factories import TaskFactory
from tests.support.factories import error as error_result

pytestmark = pytest.mark.django_db

Missing = exceptions.TaskResultDoesNotExist
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def ran(task: Any, *args: Any, until: dt.timedelta | None = None) -> Any:
    """Send a task, run it, and return its result."""
    result = task.enqueue(*args)
    drain(until=until, raise_errors=False)
    return refreshed(result)


def test_a_success_has_its_value_its_times_and_its_worker() -> None:
    result = ran(tasks.returns, "tuple")
    assert (result.status, result.return_value, result.errors, result.attempts) == (SUCCESSFUL, [1, "two"], [], 1)
    assert type(result.status) is HorsiesBackend.api.status is TaskResultStatus
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.worker_ids == [str(TaskAttempt.objects.get().worker_id)]
    assert task_backends["default"].get_result(result.id) == result


@pytest.mark.parametrize(
    ("task", "argument", "raised", "end"),
    [
        (tasks.fails, "KeyError", KeyError, "KeyError: 'no'\n"),
        (tasks.fails, "SystemExit", SystemExit, "SystemExit: no\n"),
        (tasks.returns, "function", TypeError, "Unsupported type"),
        (tasks.returns, "nan", ValueError, "NaN"),
        (tasks.returns, "nul", ValueError, "NUL byte"),
    ],
)
def test_a_failure_or_a_value_that_cannot_be_stored_has_the_class_and_the_traceback_of_its_exception(
    task: Any, argument: str, raised: type[BaseException], end: str
) -> None:
    """Naive: the task counts as successful, and the database refuses its result."""
    result = ran(task, argument)
    assert (result.status, result.attempts) == (FAILED, 1)
    (error,) = result.errors
    assert error.exception_class is raised
    assert end in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    if task is tasks.fails:
        assert error.traceback.startswith("Traceback (most recent call last):")


def test_a_cancelled_task_has_failed_and_says_so() -> None:
    result = tasks.add.enqueue(1)
    get_handle(result.id).cancel()
    (error,) = refreshed(result).errors
    assert (result.status, result.attempts, result.started_at) == (FAILED, 0, None)
    assert error.exception_class is TaskCancelled
    assert error.traceback == "TaskCancelled: the task was cancelled before it started\n"
    between = ran(tasks.waits, "first")
    get_handle(between.id).cancel()
    assert [error.exception_class for error in refreshed(between).errors] == [ValueError, TaskCancelled]


@pytest.mark.parametrize("code", [*CLASSES, "WORKER_RESOLUTION_ERROR"])
def test_every_ending_has_a_class_that_can_be_imported(code: str) -> None:
    status = {"TASK_EXPIRED": "EXPIRED", "TASK_CANCELLED": "CANCELLED", "TASK_SKIPPED": "CANCELLED"}.get(code, "FAILED")
    row = plain_row(status=status, error_code=code, result=error_result(code, "as the row says"))
    result = task_backends["default"].get_result(str(row.pk))
    (error,) = result.errors
    assert (result.status, result.is_finished) == (FAILED, True)
    own = {"TASK_CANCELLED": TaskCancelled, "TASK_TIMEOUT": TaskTimeout, "TASK_EXPIRED": TaskExpired}
    own |= {"WORKER_CRASHED": WorkerCrashed, "POISON": WorkerCrashed, "WORKER_RESOLUTION_ERROR": TaskFailed}
    assert error.exception_class is own.get(code, CLASSES.get(code))
    assert error.traceback.endswith("as the row says\n")


def plain_row(**columns: Any) -> Task:
    call = {"args": [], "kwargs": {}}
    return TaskFactory(task_name="tests.apps.errands.tasks.add", codec="plain", kwargs=call, **columns)


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


def test_a_running_task_counts_the_attempt_that_runs() -> None:
    row = plain_row(status="RUNNING")
    result = task_backends["default"].get_result(row.pk)
    assert (result.status, result.attempts, result.worker_ids) == (RUNNING, 1, [str(row.claimed_by)])
    assert result.started_at == result.last_attempted_at == row.started_at


@pytest.mark.parametrize("id_", ["123", None, 123, "'; DROP TABLE", "0190a9b2-0000-7000-8000-000000000000", "x" * 999])
def test_an_id_that_is_none_or_unknown_leaves_the_transaction_usable(id_: Any) -> None:
    """Naive: the database refuses the id, and every later query of the transaction fails."""
    with pytest.raises(Missing):
        task_backends["default"].get_result(id_)
    assert Task.objects.count() == 0


def test_a_result_belongs_to_the_task_and_the_backend_through_which_it_was_sent() -> None:
    first, second = tasks.add.enqueue(1), tasks.add.using(backend="second").enqueue(1)
    assert task_backends["second"].get_result(second.id).task.backend == "second"
    own = ours.add.send(1, 2)
    for alias, id_ in (("default", second.id), ("second", first.id), ("default", str(own.task_id))):
        with pytest.raises(Missing):
            task_backends[alias].get_result(id_)
    with pytest.raises(exceptions.TaskResultMismatch, match="tests.apps.errands.tasks.add"):
        tasks.note.get_result(first.id)


def test_a_result_outlives_the_function_and_the_queue_of_its_task() -> None:
    """Naive: ImportError, or a ``task`` of None, whose ``module_path`` cannot be read."""
    result = ran(tasks.add.using(queue_name="mail", priority=4), 20, 1)
    Task.objects.filter(pk=result.id).update(task_name="shop.tasks.gone")
    backend = {"BACKEND": "horsies_django.backends.HorsiesBackend", "QUEUES": ["other"]}
    with override_settings(TASKS={"default": backend}):
        found = task_backends["default"].get_result(result.id)
    assert (found.status, found.return_value, found.args) == (SUCCESSFUL, 21, [20, 1])
    assert (found.task.module_path, found.task.name, found.task.queue_name) == ("shop.tasks.gone", "gone", "mail")
    assert (found.task.priority, found.task.backend) == (4, "default")
    with pytest.raises(LookupError, match="there is no task 'shop.tasks.gone'"):
        found.task.call(1)
    found.refresh()


def test_a_redacted_task_keeps_its_status_and_nothing_else() -> None:
    result = ran(tasks.fails, "ValueError", "the secret")
    redact(result.id, actor="a test", reason="asked for")
    found = task_backends["default"].get_result(result.id)
    assert (found.status, found.args, found.kwargs) == (FAILED, [], {})
    assert "secret" not in repr(found)
    assert found.errors[0].exception_class is TaskFailed


def test_a_task_learns_its_id_and_attempt_without_a_query_and_its_times_when_it_asks() -> None:
    """Naive: the result for the context is read from the table before each task."""
    result, attempt = tasks.which.enqueue(), tasks.which.enqueue("attempt")
    with CaptureQueriesContext(connection) as queries:
        drain()
    assert not [query for query in queries.captured_queries if "task.codec = 'plain'" in query["sql"]]
    assert (refreshed(result).return_value, refreshed(attempt).return_value) == (result.id, 1)
    for name in ("enqueued_at", "started_at", "last_attempted_at"):
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


BACKEND = "horsies_django.backends.HorsiesBackend"


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    tasks.CALLS.clear()
    return tasks.CALLS


def delays() -> list[float]:
    """Return how long each attempt but the first waited, or has to wait, in seconds."""
    ends, starts = zip(*TaskAttempt.objects.order_by("attempt").values_list("finished_at", "started_at"), strict=True)
    row = Task.objects.get()
    due = [row.next_retry_at] if row.status == "PENDING" else []
    return [round((start - end).total_seconds()) for end, start in zip(ends, [*starts[1:], *due], strict=False)]


@pytest.mark.parametrize(
    ("task", "args", "status", "attempts"),
    [
        (tasks.tried, (2,), SUCCESSFUL, 3),
        (tasks.tried, (3,), FAILED, 3),
        (tasks.tried, (2, "KeyError"), FAILED, 1),  # only what is listed is tried again
        (tasks.fails, (), FAILED, 1),
        (tasks.paused, ("never",), FAILED, 1),  # the function says None
        (tasks.asks, (), FAILED, 2),
    ],
)
def test_a_task_is_tried_as_often_as_it_says_and_counts_its_attempts(
    task: Any, args: tuple[Any, ...], status: Any, attempts: int
) -> None:
    result = ran(task, *args, until=dt.timedelta(minutes=5))
    assert (result.status, result.attempts) == (status, attempts)
    assert len(result.errors) == (attempts - 1 if status == SUCCESSFUL else attempts)


def test_a_number_is_exact_a_list_is_one_delay_for_each_retry_and_without_either_delays_double() -> None:
    result = ran(tasks.waits, "no")
    assert (result.status, delays()) == (READY, [90])
    for retries, jitter, expected in (
        (Retries(5, (1.0, 20.0)), False, [1, 20, 20, 20]),
        (Retries(4), True, [60, 120, 240]),
    ):
        policy = retries.policy()
        assert policy is not None
        assert policy.jitter is jitter
        assert [policy.delay(retry) for retry in range(1, len(expected) + 1)] == expected


def test_a_snooze_is_neither_an_attempt_nor_an_error_nor_the_end() -> None:
    ended: list[Any] = []

    def note(task_result: Any, **values: Any) -> None:
        ended.append(task_result.status)

    signals.task_finished.connect(note)
    try:
        result = ran(tasks.rests, 2, until=dt.timedelta(minutes=5))
    finally:
        signals.task_finished.disconnect(note)
    assert (result.status, result.attempts, result.errors, result.return_value) == (SUCCESSFUL, 1, [], 3)
    assert ended == [SUCCESSFUL]


def test_a_function_is_asked_with_the_exception_and_the_result() -> None:
    """Naive: it is asked although the attempt was the last one, or twice."""
    result = ran(tasks.paused, "no", until=dt.timedelta(minutes=5))
    assert (result.status, result.attempts) == (FAILED, 3)
    assert tasks.CALLS == [
        ("ValueError", 1, ["builtins.ValueError"]),
        ("ValueError", 2, ["builtins.ValueError", "builtins.ValueError"]),
    ]
    assert delays() == [30, 30]


@pytest.mark.parametrize("message", ["broken", "text"])
def test_a_function_that_is_wrong_does_not_lose_the_retry(message: str, caplog: pytest.LogCaptureFixture) -> None:
    """Naive: its exception takes the place of the task's, or the task is not tried again."""
    with caplog.at_level(logging.ERROR, "horsies.task"):
        result = ran(tasks.paused, message)
    assert result.status == READY
    assert [error.exception_class for error in result.errors] == [ValueError]
    assert 40 <= delays()[0] <= 76  # 60 s with jitter
    assert "backoff function of tests.apps.errands.tasks.paused" in caplog.text


def test_the_options_of_the_backend_that_using_names_apply_where_the_task_says_nothing() -> None:
    found = {}
    for task_ in (tasks.tried, tasks.fails):
        result = task_.using(backend="second").enqueue(0)
        assert result.backend == "second"
        row = Task.objects.get(pk=result.id)
        retry = row.options["retry"]
        found[task_] = (row.max_retries, row.options["timeout_ms"], retry["codes"], retry["intervals"])
    assert found[tasks.tried] == (2, 90_000, ["builtins.ValueError"], [0])
    assert found[tasks.fails] == (1, 90_000, ["builtins.LookupError"], [120])


def test_a_dotted_function_of_the_settings_is_the_backoff() -> None:
    options = {"MAX_ATTEMPTS": 2, "BACKOFF": "tests.apps.errands.tasks.pause"}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}):
        assert ran(tasks.fails, "ValueError", "no").status == READY
    assert delays() == [30]


def test_an_interrupted_process_gives_the_task_back() -> None:
    result = tasks.interrupted.enqueue()
    drain()
    result.refresh()
    row = Task.objects.get()
    assert (result.status, row.status, result.attempts) == (READY, "PENDING", 1)
    assert row.next_retry_at is not None
    assert 8 < (row.next_retry_at - row.sent_at).total_seconds() < 60
    assert TaskAttempt.objects.get().outcome == "WORKER_FAILURE"
    assert drain() == 0  # not yet
    drain(until=dt.timedelta(seconds=30))
    result.refresh()
    assert (result.status, result.attempts > 1) == (READY, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attempts": 0}, "max_attempts must be an int from 1 to 101"),
        ({"max_attempts": True}, "max_attempts must be an int"),
        ({"backoff": -1}, "backoff must be seconds"),
        ({"backoff": []}, "backoff must be seconds"),
        ({"backoff": "soon"}, "backoff must be seconds"),
        ({"retry_on": ["no.such.Error"]}, "cannot be imported"),
        ({"retry_on": [int]}, "neither an error code"),
        ({"retry_on": 5}, "not iterable"),
        ({"timeout_ms": 0}, "timeout_ms must be milliseconds"),
    ],
)
def test_options_that_cannot_be_are_refused_where_they_are_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidTask, match=said):
        backends.task(**options)(tasks.note.func)
    if task.__module__ != "django.tasks.base":  # the backport takes them, too
        with pytest.raises(InvalidTask, match=said):
            task(**options)(tasks.note.func)
