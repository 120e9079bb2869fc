"""The twins of Django's Immediate and Dummy backends, in whose place tests put them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import django
import pytest
from django.db import transaction
from django.test import override_settings

from horsies_django.models.fields import aware
from horsies_django.tasks import registry
from horsies_django.testing import assert_nothing_sent, assert_sent, captured_tasks, drain, fail_next, immediate, travel

pytest.importorskip("horsies_django.backends", reason="horsies_django.backends is not there")
PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
api: Any = pytest.importorskip(PACKAGE, reason=f"{PACKAGE} is not installed")
pytestmark = pytest.mark.django_db

ran: list[str] = []


def welcome(name: str, *, times: int = 1) -> list[str]:
    ran.append(name)
    return [name] * times


def fail() -> None:
    raise ConnectionError("no answer")


@contextmanager
def default_backend(name: str) -> Iterator[None]:
    ran.clear()
    with override_settings(TASKS={"default": {"BACKEND": f"horsies_django.{name}", "QUEUES": ["default", "mail"]}}):
        yield


@pytest.fixture(params=["Immediate", "Dummy"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Use a twin as the default backend."""
    with default_backend(f"testing.{request.param}Backend"):
        yield request.param


def declared(function: Any, **options: Any) -> Any:
    """Declare a task with options of HorsiesTask, under a name of its own."""
    function.__qualname__ = f"{function.__name__}_{uuid.uuid4().hex}"
    task_class = api.task_backends["default"].task_class
    plain = {"priority": 0, "queue_name": "default", "backend": "default", "takes_context": False, "run_after": None}
    made = globals()[function.__qualname__] = task_class(func=function, **{**plain, **options})
    return made


def test_a_task_with_options_of_ours_is_declared_and_does_what_the_twin_does(kind: str) -> None:
    """Naive: with Django's own backend, the module of the task cannot be imported: unexpected keyword argument."""
    task = declared(welcome, max_attempts=3, retry_on=[ConnectionError], backoff=60, timeout_ms=1_000)
    result = task.using(priority=50, queue_name="mail").enqueue("ann", times=2)
    failure = declared(fail, max_attempts=3).enqueue()
    if kind == "Immediate":
        assert ran == ["ann"]
        assert (result.status, result.return_value) == (api.TaskResultStatus.SUCCESSFUL, ["ann", "ann"])
        assert (failure.status, failure.attempts) == (api.TaskResultStatus.FAILED, 1), "it is not tried again"
        assert failure.errors[0].exception_class is ConnectionError
    else:
        assert ran == []
        assert (result.status, failure.attempts) == (api.TaskResultStatus.READY, 0)
        kept, _ = api.task_backends["default"].results
        assert (kept.id, kept.args, kept.kwargs) == (result.id, ["ann"], {"times": 2})
    assert_nothing_sent()
    assert registry.find(task.module_path) is None, "another test would find it"


def test_what_is_due_later_is_taken_by_the_twin_that_can_wait(kind: str) -> None:
    """Naive: a timedelta, which HorsiesBackend takes, is an AttributeError of Django's validation."""
    task = declared(welcome)
    if kind == "Immediate":
        invalid = getattr(import_module(f"{PACKAGE}.exceptions"), "InvalidTask", None)
        invalid = invalid or import_module(f"{PACKAGE}.exceptions").InvalidTaskError
        with pytest.raises(invalid, match="does not support run_after"):
            task.using(run_after=dt.timedelta(hours=1))
    else:
        later = task.using(run_after=dt.timedelta(hours=1))
        assert later.enqueue("ann").task.run_after == dt.timedelta(hours=1)


@pytest.fixture
def horsies_backend() -> Iterator[None]:
    """Use the backend itself."""
    with default_backend("backends.HorsiesBackend"):
        yield


def test_the_kit_takes_tasks_of_django(horsies_backend: None) -> None:
    """Naive: the statement of the backend is not noticed, and its arguments are shown as they are stored."""
    task = declared(welcome)
    with captured_tasks() as sent, immediate():
        result = task.using(queue_name="mail").enqueue("ann", times=2)
        assert ran == ["ann"]
        with pytest.raises(KeyError), transaction.atomic():
            task.using(run_after=dt.timedelta(hours=1)).enqueue("bob")
            raise KeyError
    result.refresh()
    assert result.return_value == ["ann", "ann"]
    assert [(each.name, each.queue, each.kwargs, each.rolled_back, each.due_at is None) for each in sent] == [
        (task.module_path, "mail", {"name": "ann", "times": 2}, False, True),
        (task.module_path, "default", {"name": "bob"}, True, False),
    ]
    assert_sent(task, kwargs={"name": "ann", "times": 2}, queue="mail", count=1)
    with pytest.raises(AssertionError, match=r"\(name='ann', times=2\) on queue 'mail'"):
        assert_sent(task, kwargs={"name": "ann"})
    with pytest.raises(ValueError, match="cannot be sent with these arguments"):
        assert_sent(task, kwargs={"user": 1})


def test_tasks_of_django_fail_and_travel(horsies_backend: None) -> None:
    task = declared(welcome, max_attempts=3, backoff=60, retry_on=[ConnectionError])
    result = task.enqueue("ann")
    with fail_next(task, ConnectionError("no answer"), times=2):
        drain(until=dt.timedelta(hours=1))
    result.refresh()
    assert result.attempts == 3
    assert ran == ["ann"]
    with fail_next(task, "NO_MAIL"), travel(dt.timedelta(days=1)) as now:
        result = task.enqueue("bob")
        drain(raise_errors=False)
    result.refresh()
    assert result.status == api.TaskResultStatus.FAILED
    assert aware(result.finished_at) == now
