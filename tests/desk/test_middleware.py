"""Middleware around the bodies of tasks: what it gets, what it may do, and entries that are wrong."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from horsies_django import Retry, RetryPolicy, TaskResult, checks, task
from horsies_django.core.errors import WorkerStartError
from horsies_django.tasks import registry
from horsies_django.testing import drain
from horsies_django.worker import startup
from horsies_django.worker.child import middleware
from tests.apps.hooked import around
from tests.apps.project import tasks

pytestmark = pytest.mark.django_db

AROUND = "tests.apps.hooked.around"


@contextmanager
def using(*names: str) -> Iterator[None]:
    paths = [name if "." in name else f"{AROUND}.{name}" for name in names]
    with override_settings(HORSIES={**settings.HORSIES, "MIDDLEWARE": paths}):
        yield


@pytest.fixture(autouse=True)
def seen() -> Iterator[list[tuple[Any, ...]]]:
    around.seen.clear()
    yield around.seen
    around.seen.clear()


@pytest.fixture
def own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def test_it_gets_the_task_and_its_arguments_and_gives_the_result(seen: list[Any], own_tasks: None) -> None:
    @task(name="tests.mixed")
    def mixed(a: int, /, b: int, *, c: int = 3) -> list[int]:
        return [a, b, c]

    handle = mixed.with_options(metadata={"tenant": 7}).send(1, b=2)
    with using("Noting"):
        drain()
    assert handle.get().ok_value == [1, 2, 3]
    assert seen == [("noting", "tests.mixed", [1], {"b": 2}, {"tenant": 7})]


def test_the_first_entry_is_the_outermost_for_sync_and_async_tasks(seen: list[Any]) -> None:
    with using("Noting", "not_used", "doubling"):
        tasks.add.send(1, b=4)
        drain()
        tasks.anoop.send()
        drain()
    assert [entry[:2] for entry in seen] == [
        ("noting", tasks.add.name),
        ("doubling", tasks.add.name),
        ("noting", tasks.anoop.name),
        ("doubling", tasks.anoop.name),
    ]


def test_it_may_change_arguments_and_result() -> None:
    handle = tasks.add.send(1, b=4)
    with using("doubling"):
        drain()
    assert handle.get() == TaskResult(ok=2 * (1 + 8))


@pytest.mark.parametrize("send", [tasks.noop.send, tasks.anoop.send], ids=["sync", "async"])
def test_what_it_raises_is_the_error_of_the_task(send: Any) -> None:
    """Naive: an exception outside of the function ends the child, or leaves the task RUNNING."""
    handle = send()
    with using("raising"):
        assert drain(raise_errors=False) == 1
    error = handle.get().err_value
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.exception["type"] == "PermissionError"
    assert "has no tenant" in error.message


def test_it_sees_what_the_function_raises_and_policies_hold(own_tasks: None) -> None:
    attempts = []

    @task(name="tests.again", retry_policy=RetryPolicy.fixed([1]))
    def again() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise Retry(delay_seconds=5)
        return 5

    handle = again.send()
    with using("Noting", "doubling"):
        assert drain(until=dt.timedelta(minutes=1)) == 2
    assert handle.get().ok_value == 10


def test_without_middleware_the_function_is_called_directly() -> None:
    """Naive: a chain of nothing costs a call or two for each task."""
    drain()
    task = tasks.add.definition
    assert middleware.call(None, task, [1], {}) == 1  # type: ignore[arg-type]
    assert middleware.chain(("tests.apps.hooked.around.not_used",), "sync") is middleware.body


def test_something_else_passed_on_is_an_error_that_says_so() -> None:
    handles = [tasks.noop.send(), tasks.anoop.send()]
    with using("passes_something_else"):
        drain(raise_errors=False)
    for handle in handles:
        assert "a middleware passed 'tests.apps.project.tasks." in handle.get().err_value.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("returns_nothing", "around.returns_nothing returned None instead of a callable: a factory takes 'call'"),
        (
            "sync_only",
            "around.sync_only returned a sync callable for async tasks: return an async one when iscoroutinefunction",
        ),
    ],
)
def test_a_factory_that_returns_something_else_is_named_before_the_first_task(name: str, message: str) -> None:
    """Naive: each task fails with "'NoneType' object is not callable"."""
    handle = tasks.noop.send()
    with using(name), pytest.raises(ImproperlyConfigured, match=message):
        drain()
    assert handle.info().status == "PENDING"  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["MIDDLEWARE", "METADATA"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("shop.gone.timing", r"'shop\.gone\.timing' cannot be imported: ModuleNotFoundError: No module named 'shop'"),
        (f"{AROUND}.gone", r"'tests\.apps\.hooked\.around\.gone' cannot be imported: ImportError: .*\"gone\""),
        (f"{AROUND}.NOTHING_TO_CALL", "is not a function or a class, but of type int"),
    ],
)
def test_a_path_that_leads_nowhere_is_found_by_a_check_and_refused_by_a_worker(
    key: str, path: str, message: str
) -> None:
    with override_settings(HORSIES={**settings.HORSIES, key: [path]}):
        (found,) = [one for one in checks.check_tasks() if one.id == "horsies.E024"]
        assert found.obj == f"HORSIES[{key!r}]"
        with pytest.raises(WorkerStartError, match=message) as refused:
            startup.refuse_paths(key, [path])
    assert f"HORSIES[{key!r}]: {found.msg}" == f"{refused.value}."


@pytest.mark.parametrize("key", ["MIDDLEWARE", "METADATA"])
@pytest.mark.parametrize("value", ["shop.tracing.middleware", ["timing"], ["shop.no-name"], [len], None])
def test_what_is_no_list_of_paths_is_a_problem_of_the_settings(key: str, value: Any) -> None:
    """Naive: a str is a list of letters, each of which "cannot be imported"."""
    with override_settings(HORSIES={**settings.HORSIES, key: value}):
        (found,) = checks.check_settings()
    assert (found.id, str(found.obj)) == ("horsies.E001", f"HORSIES['{key}']")
    assert "['shop.tracing." in (found.hint or "")
