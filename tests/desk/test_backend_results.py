"""Results of ``django.tasks``: each of our endings in Django's four statuses, and the retries."""

from __future__ import annotations

import datetime as dt
import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import django
import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskCancelled, TaskTimeout, get_handle
from horsies_django.backends import HorsiesBackend
from horsies_django.backends.exceptions import (
    CLASSES_BY_CODE,
    TaskExpired,
    TaskFailed,
    WorkerCrashed,
)
from horsies_django.backends.options import Retries
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import TaskResultStatus, exceptions, task_backends
from tests.apps.project import tasks as ours
from tests.support.factories import TaskFactory
from tests.support.factories import error as error_result

pytestmark = pytest.mark.django_db

BACKEND = "horsies_django.backends.HorsiesBackend"
READY = TaskResultStatus.READY
RUNNING = TaskResultStatus.RUNNING
FAILED = TaskResultStatus.FAILED
SUCCESSFUL = TaskResultStatus.SUCCESSFUL


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

    assert (result.status, result.return_value, result.errors, result.attempts) == (
        SUCCESSFUL,
        [1, "two"],
        [],
        1,
    )
    assert type(result.status) is HorsiesBackend.api.status is TaskResultStatus
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.worker_ids == [str(TaskAttempt.objects.get().worker_id)]
    assert task_backends["default"].get_result(result.id) == result

    # A snooze is neither an attempt nor an error.
    result = ran(tasks.rests, 2, until=dt.timedelta(minutes=5))
    assert (result.status, result.attempts, result.errors, result.return_value) == (
        SUCCESSFUL,
        1,
        [],
        3,
    )


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
def test_a_failure_has_the_class_and_traceback_of_its_exception(
    task: Any, argument: str, raised: type[BaseException], end: str
) -> None:
    """A failed task has the class and the traceback of its exception.

    So has a task whose value cannot be stored.

    Fails if: such a task counts as successful, and the database refuses its result.
    """
    result = ran(task, argument)

    assert (result.status, result.attempts) == (FAILED, 1)
    (error,) = result.errors
    assert error.exception_class is raised
    assert end in error.traceback

    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value

    if task is tasks.fails:
        assert error.traceback.startswith("Traceback (most recent call last):")


def test_a_cancelled_task_fails_with_a_task_cancelled_error() -> None:
    result = tasks.add.enqueue(1)
    get_handle(result.id).cancel()

    (error,) = refreshed(result).errors
    assert (result.status, result.attempts, result.started_at) == (FAILED, 0, None)
    assert error.exception_class is TaskCancelled
    assert error.traceback == "TaskCancelled: the task was cancelled before it started\n"

    between = ran(tasks.waits, "first")
    get_handle(between.id).cancel()
    assert [error.exception_class for error in refreshed(between).errors] == [
        ValueError,
        TaskCancelled,
    ]


@pytest.mark.parametrize("code", [*CLASSES_BY_CODE, "WORKER_RESOLUTION_ERROR"])
def test_every_ending_has_a_class_that_can_be_imported(code: str) -> None:
    status = {
        "TASK_EXPIRED": "EXPIRED",
        "TASK_CANCELLED": "CANCELLED",
        "TASK_SKIPPED": "CANCELLED",
    }.get(code, "FAILED")
    row = plain_row(status=status, error_code=code, result=error_result(code, "as the row says"))

    result = task_backends["default"].get_result(str(row.pk))

    (error,) = result.errors
    assert (result.status, result.is_finished) == (FAILED, True)

    own = {
        "TASK_CANCELLED": TaskCancelled,
        "TASK_TIMEOUT": TaskTimeout,
        "TASK_EXPIRED": TaskExpired,
    }
    own |= {
        "WORKER_CRASHED": WorkerCrashed,
        "POISON": WorkerCrashed,
        "WORKER_RESOLUTION_ERROR": TaskFailed,
    }

    assert error.exception_class is own.get(code, CLASSES_BY_CODE.get(code))
    assert error.traceback.endswith("as the row says\n")


def plain_row(**columns: Any) -> Task:
    call = {"args": [], "kwargs": {}}
    return TaskFactory(
        task_name="tests.apps.errands.tasks.add", codec="plain", kwargs=call, **columns
    )


def test_a_task_that_waits_for_a_retry_keeps_its_errors() -> None:
    """A task that waits for its next attempt has the status READY and keeps its errors.

    Fails if: the next attempt overwrites the error of the one before, or ``started_at`` is that of
    the last attempt.
    """
    result = ran(tasks.waits, "first")

    assert (result.status, result.attempts, result.finished_at) == (READY, 1, None)
    assert task_backends["default"].get_result(result.id).task.run_after > result.last_attempted_at

    drain(until=dt.timedelta(minutes=5), raise_errors=False)
    result.refresh()

    assert (result.status, result.attempts, len(set(result.worker_ids))) == (FAILED, 2, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    first, second = TaskAttempt.objects.order_by("attempt")
    assert (result.started_at, result.last_attempted_at) == (first.started_at, second.started_at)


NO_IDS = (None, 123, "'; DROP TABLE", "0190a9b2-0000-7000-8000-000000000000", "x" * 999)


def test_a_result_belongs_to_its_task_and_its_backend() -> None:
    """A result is found only through its own task and backend; a text that is no id finds nothing.

    Fails if: the database refuses such a text, and every later query of the transaction fails.
    """
    first = tasks.add.enqueue(1)
    second = tasks.add.using(backend="second").enqueue(1)
    own = ours.add.send(1, 2)
    others = [("default", second.id), ("second", first.id), ("default", str(own.task_id))]

    for alias, id_ in [*others, *(("default", no_id) for no_id in NO_IDS)]:
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            task_backends[alias].get_result(id_)

    assert task_backends["second"].get_result(second.id).task.backend == "second"
    with pytest.raises(exceptions.TaskResultMismatch, match="tests.apps.errands.tasks.add"):
        tasks.note.get_result(first.id)


def test_a_result_outlives_the_function_and_queue_of_its_task() -> None:
    """A result can be read after the function and the queue of its task were removed.

    Fails if: reading it raises ImportError, or its ``task`` is None, which has no ``module_path``.
    """
    result = ran(tasks.add.using(queue_name="mail", priority=4), 20, 1)
    Task.objects.filter(pk=result.id).update(task_name="shop.tasks.gone")

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["other"]}}):
        found = task_backends["default"].get_result(result.id)

    assert (found.status, found.return_value, found.args) == (SUCCESSFUL, 21, [20, 1])
    assert (found.task.module_path, found.task.name, found.task.queue_name) == (
        "shop.tasks.gone",
        "gone",
        "mail",
    )
    assert (found.task.priority, found.task.backend) == (4, "default")

    with pytest.raises(LookupError, match="there is no task 'shop.tasks.gone'"):
        found.task.call(1)
    found.refresh()


def test_a_redacted_task_keeps_only_its_status() -> None:
    """A redacted task keeps only its status.

    A running task counts its current attempt.
    """
    result = ran(tasks.fails, "ValueError", "the secret")
    redact(result.id, actor="a test", reason="asked for")

    found = task_backends["default"].get_result(result.id)

    assert (found.status, found.args, found.kwargs) == (FAILED, [], {})
    assert "secret" not in repr(found)
    assert found.errors[0].exception_class is TaskFailed

    row = plain_row(status="RUNNING")
    running = task_backends["default"].get_result(row.pk)

    assert (running.status, running.attempts, running.worker_ids) == (
        RUNNING,
        1,
        [str(row.claimed_by)],
    )
    assert running.started_at == running.last_attempted_at == row.started_at


def test_a_task_learns_its_id_and_attempt_without_a_query() -> None:
    """A task reads its id and attempt without a query; only its times need one.

    Fails if: the result for the context is read from the table before each task.
    """
    result = tasks.which.enqueue()
    attempt = tasks.which.enqueue("attempt")

    with CaptureQueriesContext(connection) as queries:
        drain()

    assert not [
        query for query in queries.captured_queries if "task.codec = 'plain'" in query["sql"]
    ]
    assert (refreshed(result).return_value, refreshed(attempt).return_value) == (result.id, 1)

    for name in ("enqueued_at", "started_at", "last_attempted_at"):
        result = ran(tasks.which, name)
        assert result.return_value == str(getattr(result, name))

    result = ran(tasks.which_async)  # on whose loop Django refuses a query
    assert result.return_value == [result.id, 1, str(result.enqueued_at), "default"]


@pytest.mark.parametrize("alias", ["default", "second"])
def test_a_running_task_reads_the_backend_of_its_send(alias: str) -> None:
    """Fails if: the backend is the decorator's, and a refresh in the task finds no result."""
    assert ran(tasks.which.using(backend=alias), "backend").return_value == alias
    assert ran(tasks.refreshes.using(backend=alias)).return_value == ["RUNNING", 1]


@pytest.fixture(autouse=True)
def no_calls() -> None:
    tasks.CALLS.clear()


def delays() -> list[float]:
    """Return how long each attempt but the first waited, or has to wait, in seconds."""
    ends, starts = zip(
        *TaskAttempt.objects.order_by("attempt").values_list("finished_at", "started_at"),
        strict=True,
    )

    row = Task.objects.get()
    due = [row.next_retry_at] if row.status == "PENDING" else []
    return [
        round((start - end).total_seconds())
        for end, start in zip(ends, [*starts[1:], *due], strict=False)
    ]


def test_a_backoff_given_as_a_number_is_exact() -> None:
    """A number is an exact delay, a list has one delay for each retry, and the default doubles."""
    result = ran(tasks.waits, "no")
    assert (result.status, delays()) == (READY, [90])

    for retries, jitter, expected in (
        (Retries(5, (1.0, 20.0)), False, [1, 20, 20, 20]),
        (Retries(4), True, [60, 120, 240]),
    ):
        policy = retries.policy()
        assert policy.jitter is jitter
        assert [policy.delay(retry) for retry in range(1, len(expected) + 1)] == expected


def test_a_backoff_function_receives_the_exception_and_result() -> None:
    """A backoff function is called once for each retry, with the exception and the result.

    Fails if: it is called after the last attempt, or twice for one retry.
    """
    result = ran(tasks.paused, "no", until=dt.timedelta(minutes=5))

    assert (result.status, result.attempts) == (FAILED, 3)
    assert tasks.CALLS == [
        ("ValueError", 1, ["builtins.ValueError"]),
        ("ValueError", 2, ["builtins.ValueError", "builtins.ValueError"]),
    ]
    assert delays() == [30, 30]


@pytest.mark.parametrize("message", ["broken", "text"])
def test_a_function_that_is_wrong_does_not_lose_the_retry(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: its exception replaces that of the task, or the task is not retried."""
    with caplog.at_level(logging.ERROR, "horsies.task"):
        result = ran(tasks.paused, message)

    assert result.status == READY
    assert [error.exception_class for error in result.errors] == [ValueError]
    assert 40 <= delays()[0] <= 76  # 60 s with jitter
    assert "backoff function of tests.apps.errands.tasks.paused" in caplog.text


def test_the_options_of_a_backend_apply_to_tasks_without_options() -> None:
    """The options of the backend that ``using`` names apply where the task has no options."""
    for task_, expected in (
        (tasks.tried, (2, 90_000, ["builtins.ValueError"], [0])),
        (tasks.fails, (1, 90_000, ["builtins.LookupError"], [120])),
    ):
        row = Task.objects.get(pk=task_.using(backend="second").enqueue(0).id)
        retry = row.options["retry"]
        assert (
            row.max_retries,
            row.options["timeout_ms"],
            retry["codes"],
            retry["intervals"],
        ) == expected

    Task.objects.all()._raw_delete("default")
    options = {"MAX_ATTEMPTS": 2, "BACKOFF": "tests.apps.errands.tasks.pause"}
    with override_settings(
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}
    ):
        assert ran(tasks.fails, "ValueError", "no").status == READY

    assert delays() == [30], "of a dotted function"


def test_an_interrupted_process_gives_the_task_back() -> None:
    result = tasks.interrupted.enqueue()
    drain()
    result.refresh()

    row = Task.objects.get()
    assert (result.status, row.status, result.attempts) == (READY, "PENDING", 1)
    assert 8 < (row.next_retry_at - row.sent_at).total_seconds() < 60
    assert TaskAttempt.objects.get().outcome == "WORKER_FAILURE"


# Django's own package and the backport in one project, some apps of which still import the
# backport

HAVE_BOTH = django.VERSION >= (6, 0) and find_spec("django_tasks") is not None
with_backport = pytest.mark.skipif(
    not HAVE_BOTH, reason="Django has no tasks of its own, or the backport is not installed"
)


def backport() -> Any:
    return import_module("django_tasks")


def of_the_backport(n):  # type: ignore[no-untyped-def]
    if n < 0:
        raise ValueError("less than nothing")
    return n * 2


@with_backport
def test_an_app_with_the_backport_sends_through_djangos_backend() -> None:
    """An app that imports the backport sends and reads through the backend of Django."""
    made = backport().task(priority=3)(tasks.add.func)

    result = made.enqueue(1, b=2)
    drain()

    assert (refreshed(result).status, result.return_value) == (
        backport().TaskResultStatus.SUCCESSFUL,
        3,
    )
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert backport().task_backends["default"].get_result(result.id) == task_backends[
        "default"
    ].get_result(result.id)
    assert made.using(queue_name="mail").get_result(result.id).task.priority == 3


@with_backport
def test_the_backport_keeps_its_own_classes_and_signals() -> None:
    """The backend of the backport has its own classes and signals, beside Django's backend."""
    from django_tasks.signals import task_finished

    from horsies_django.backends.backport import HorsiesBackend

    heard: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        heard.append((task_result.id, task_result.status))

    task_finished.connect(hear, sender=HorsiesBackend)  # for as long as this function lives
    old = {"BACKEND": "horsies_django.backends.backport.HorsiesBackend", "QUEUES": []}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}, "old": old}):
        made = backport().task(backend="old", max_attempts=2, backoff=60)(of_the_backport)
        first = made.enqueue(4)
        second = made.enqueue(-1)
        own = tasks.add.enqueue(1)
        drain(raise_errors=False)

        assert refreshed(first).return_value == 8
        assert (refreshed(second).status, second.errors[0].exception_class) == ("READY", ValueError)
        assert refreshed(own).return_value == 1
        assert isinstance(made, backport().base.Task)
        assert [isinstance(result, backport().TaskResult) for result in (first, own)] == [
            True,
            False,
        ]

        with pytest.raises(backport().exceptions.TaskResultDoesNotExist):
            backport().task_backends["old"].get_result(own.id)

    assert heard == [(first.id, "SUCCESSFUL")]
