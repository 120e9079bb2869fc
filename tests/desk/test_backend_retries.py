"""Retries of ``django.tasks``: how often, when and for what, by the options of a task and of its backend."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
from django.test import override_settings

from horsies_django import backends
from horsies_django.backends.retries import Retries
from horsies_django.models import Task, TaskAttempt
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import InvalidTask, TaskResultStatus, task

pytestmark = pytest.mark.django_db

BACKEND = "horsies_django.backends.HorsiesBackend"
FAILED, READY, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    tasks.CALLS.clear()
    return tasks.CALLS


def ran(task_: Any, *args: Any, until: dt.timedelta | None = None) -> Any:
    result = task_.enqueue(*args)
    drain(until=until, raise_errors=False)
    result.refresh()
    return result


def delays() -> list[float]:
    """Return how long each attempt but the first waited, in seconds."""
    found = list(TaskAttempt.objects.order_by("attempt"))
    due = Task.objects.get().next_retry_at
    ends = [one.finished_at for one in found]
    starts = [one.started_at for one in found[1:]] + ([due] if due and Task.objects.get().status == "PENDING" else [])
    return [round((start - end).total_seconds()) for end, start in zip(ends, starts, strict=False)]


def test_a_task_is_tried_as_often_as_it_says_and_counts_its_attempts() -> None:
    result = ran(tasks.tried, 2)
    assert (result.status, result.return_value, result.attempts, len(result.errors)) == (SUCCESSFUL, 3, 3, 2)
    tasks.CALLS.clear()
    result = ran(tasks.tried, 3)
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)


def test_only_what_is_listed_is_tried_again() -> None:
    assert (ran(tasks.tried, 2, "KeyError").attempts, tasks.tried.retry_on) == (1, (ValueError,))


def test_a_task_without_options_is_tried_once() -> None:
    assert ran(tasks.fails).attempts == 1
    assert Task.objects.get().max_retries == 0


def test_a_number_is_exact_and_a_list_is_one_delay_for_each_retry() -> None:
    """Naive: a delay that was asked for is changed by jitter."""
    result = ran(tasks.waits, "no")
    assert (result.status, delays()) == (READY, [90])
    policy = Retries(5, (1.0, 20.0)).policy()
    assert policy is not None
    assert [policy.delay(retry) for retry in range(1, 5)] == [1, 20, 20, 20]
    assert policy.jitter is False


def test_without_a_backoff_delays_double() -> None:
    policy = Retries(4).policy()
    assert policy is not None
    assert [policy.delay(retry) for retry in (1, 2, 3)] == [60, 120, 240]


def test_a_function_is_asked_with_the_exception_and_the_result() -> None:
    """Naive: it is asked although the attempt was the last one, or twice."""
    result = ran(tasks.paused, "no", until=dt.timedelta(minutes=5))
    assert (result.status, result.attempts) == (FAILED, 3)
    assert tasks.CALLS == [
        ("ValueError", 1, ["builtins.ValueError"]),
        ("ValueError", 2, ["builtins.ValueError", "builtins.ValueError"]),
    ]
    assert delays() == [30, 30]


def test_a_function_that_returns_none_ends_the_task() -> None:
    result = ran(tasks.paused, "never", until=dt.timedelta(minutes=5))
    assert (result.status, result.attempts) == (FAILED, 1)


@pytest.mark.parametrize("message", ["broken", "text"])
def test_a_function_that_is_wrong_does_not_lose_the_retry(message: str, caplog: pytest.LogCaptureFixture) -> None:
    """Naive: its exception takes the place of the task's, or the task is not tried again."""
    with caplog.at_level(logging.ERROR, "horsies.task"):
        result = ran(tasks.paused, message)
    assert result.status == READY
    assert [error.exception_class for error in result.errors] == [ValueError]
    assert 40 <= delays()[0] <= 76  # 60 s with jitter
    assert "backoff function of tests.apps.errands.tasks.paused" in caplog.text


def test_a_task_that_asks_for_a_retry_gets_it() -> None:
    result = ran(tasks.asks)
    assert (result.status, result.attempts) == (FAILED, 2)


def test_the_options_of_the_backend_apply_where_the_task_says_nothing() -> None:
    own = tasks.tried.using(backend="second").enqueue(0)
    other = tasks.fails.using(backend="second").enqueue()
    rows = {str(row.pk): row for row in Task.objects.all()}
    assert rows[own.id].max_retries == 2
    assert rows[own.id].options["retry"]["codes"] == ["builtins.ValueError"]
    assert rows[other.id].max_retries == 1
    assert rows[other.id].options["retry"]["codes"] == ["builtins.LookupError"]
    assert rows[other.id].options["retry"]["intervals"] == [120]


def test_a_dotted_function_of_the_settings_is_the_backoff() -> None:
    options = {"MAX_ATTEMPTS": 2, "BACKOFF": "tests.apps.errands.tasks.pause"}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}):
        result = ran(tasks.fails, "ValueError", "no")
        assert result.status == READY
    assert delays() == [30]


def test_an_interrupted_process_gives_the_task_back() -> None:
    """Naive: the task has failed, or it runs again at once, for ever."""
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
