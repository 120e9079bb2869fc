"""HorsiesBackend where a site uses it: what ``enqueue`` writes and refuses, and what belongs to the caller's transaction."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
import threading
import uuid
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from horsies_django import TaskSendError, Workflow, backends, get_handle
from horsies_django.backends import HorsiesBackend, HorsiesTask
from horsies_django.models import Task
from horsies_django.tasks import registry
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import InvalidTask, InvalidTaskBackend, TaskResultStatus, api, task, task_backends

pytestmark = pytest.mark.django_db

READY = TaskResultStatus.READY
DOTTED = "horsies_django.backends.HorsiesBackend"


def row(result: Any) -> Task:
    return Task.objects.get(pk=result.id)


def test_a_task_is_one_row_that_workers_find_and_the_result_says_so() -> None:
    """Naive: ``enqueued_at`` is Python's clock, the arguments are those of ``@task``, or the id is longer than 64 characters."""
    result = tasks.note.using(priority=30, queue_name="mail").enqueue(1, ("two",), three={"f": 4})
    found = row(result)
    assert (found.task_name, found.queue_name, found.priority, found.lane) == (
        "tests.apps.errands.tasks.note", "mail", 71, "sync"
    )  # fmt: skip
    assert (found.codec, found.kwargs) == ("plain", {"args": [1, ["two"]], "kwargs": {"three": {"f": 4}}})
    assert (result.status, result.is_finished, result.attempts, result.errors) == (READY, False, 0, [])
    assert (result.enqueued_at, result.started_at, result.finished_at) == (found.sent_at, None, None)
    assert (result.args, result.kwargs, result.backend) == ([1, ["two"]], {"three": {"f": 4}}, "default")
    assert str(uuid.UUID(result.id)) == result.id
    with pytest.raises(ValueError, match="has not finished yet"):
        _ = result.return_value


def test_every_flag_of_the_backend_is_true() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, HorsiesBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert isinstance(tasks.add, HorsiesTask)
    assert isinstance(tasks.add, backend.api.task)


@pytest.mark.parametrize(("priority", "stored"), [(100, 1), (1, 100), (0, 101), (-100, 201), (3.0, 98)])
def test_larger_priorities_come_first(priority: Any, stored: int) -> None:
    result = tasks.note.using(priority=priority).enqueue()
    assert row(result).priority == stored
    assert HorsiesBackend.get_result(task_backends["default"], result.id).task.priority == priority


def test_tasks_run_in_the_order_of_their_priorities(calls: list[Any]) -> None:
    """Naive: a smaller number runs first, as in our own API."""
    for priority in (-5, 0, 100, 7):
        tasks.note.using(priority=priority).enqueue(priority)
    drain()
    assert [args[0] for args, _ in calls] == [100, 7, 0, -5]


@pytest.mark.django_db(transaction=True)
def test_a_task_belongs_to_the_transaction_of_its_caller() -> None:
    """Naive: it is sent after the commit (``on_commit``), so it is lost if the process dies between the two."""
    with transaction.atomic():
        kept = tasks.note.enqueue("kept")
        assert row(kept).task_name.endswith("note")  # inside the transaction already
        assert connection.run_on_commit == []
    assert row(kept)

    def roll_back() -> None:
        with transaction.atomic():
            tasks.note.enqueue("lost")
            raise LookupError

    with pytest.raises(LookupError):
        roll_back()
    assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_async_code_sends_and_reads_without_blocking_its_loop() -> None:
    async def view() -> tuple[Any, Any, str]:
        sent = await tasks.later.aenqueue(6)
        with pytest.raises(TaskSendError, match="aenqueue"):
            tasks.later.enqueue(6)
        found = await tasks.later.aget_result(sent.id)
        await sent.arefresh()
        return sent, found, asyncio.get_running_loop().__class__.__name__

    sent, found, _ = async_to_sync(view)()
    assert sent == found
    assert row(sent).lane == "async"
    drain()
    sent.refresh()
    assert (sent.status, sent.return_value) == (TaskResultStatus.SUCCESSFUL, 7)


def test_run_after_may_be_a_moment_or_a_time_from_now() -> None:
    """Naive: a timedelta raises AttributeError in the validation, or counts from Python's clock."""
    moment = timezone.now() + dt.timedelta(hours=3)
    at = tasks.note.using(run_after=moment).enqueue()
    assert row(at).enqueued_at == moment
    assert at.task.run_after == moment
    span = dt.timedelta(minutes=5)
    after = tasks.note.using(run_after=span).enqueue()
    assert row(after).enqueued_at - row(after).sent_at == span
    assert after.task.run_after == row(after).enqueued_at
    now = tasks.note.enqueue()
    for result in (at, after, now):
        assert tasks.note.get_result(result.id) == result
    assert drain() == 1


@pytest.mark.parametrize("run_after", [dt.timedelta(seconds=-1), dt.timedelta(days=40_000), 60, "tomorrow"])
def test_a_run_after_that_cannot_be_is_refused(run_after: Any) -> None:
    with pytest.raises(InvalidTask, match="run_after must be"):
        tasks.note.using(run_after=run_after)


def test_a_naive_moment_is_refused_where_time_zones_are_used(settings: Any) -> None:
    naive = dt.datetime(2040, 1, 1, 12)  # noqa: DTZ001
    if settings.USE_TZ:
        with pytest.raises(InvalidTask, match="aware"):
            tasks.note.using(run_after=naive)
    else:
        result = tasks.note.using(run_after=naive).enqueue()
        assert row(result).enqueued_at == result.task.run_after == naive
        assert tasks.note.get_result(result.id) == result


@pytest.mark.parametrize("priority", [True, "5", 101, -101, 3.5, None])
def test_a_priority_that_is_none_is_refused(priority: Any) -> None:
    """Naive: True is 1, and a text raises TypeError."""
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        HorsiesTask(**options(tasks.add, priority=priority))


def options(known: Any, **changes: Any) -> dict[str, Any]:
    """Give the fields of a task for another one."""
    names = ("func", "priority", "backend", "queue_name", "run_after", "takes_context")
    return {name: getattr(known, name) for name in names} | changes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "a\x00b", "\ud800", {1: 2}, {"x": [float("nan")]}])
@pytest.mark.django_db(transaction=True)
def test_what_postgresql_cannot_hold_is_refused_before_it_breaks_the_transaction(value: Any) -> None:
    """Naive: the database refuses the row, and with it everything else in the caller's transaction."""
    with transaction.atomic():
        with pytest.raises(TaskSendError, match="tests.apps.errands.tasks.note"):
            tasks.note.enqueue(value)
        result = tasks.note.enqueue("still fine")
    assert [str(one.pk) for one in Task.objects.all()] == [result.id]


def test_what_is_no_json_is_a_type_error_as_with_other_backends() -> None:
    for value in (dt.date(2030, 1, 1), {1, 2}, object(), uuid.uuid4()):
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.note.enqueue(value)
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.note.enqueue(x=[value])
    assert Task.objects.count() == 0


def test_a_call_that_does_not_fit_the_function_is_refused_at_once() -> None:
    """Naive: it fails in the worker, where nobody can tell who sent it."""
    with pytest.raises(TaskSendError, match="too many positional arguments"):
        tasks.add.enqueue(1, 2, 3)
    with pytest.raises(TaskSendError, match="missing a required argument: 'a'"):
        tasks.add.enqueue(b=1)
    with pytest.raises(TaskSendError, match="unexpected keyword argument 'context'"):
        tasks.which.enqueue(context=1)


def test_a_queue_that_horsies_does_not_have_is_refused_at_the_send() -> None:
    with pytest.raises(TaskSendError, match="queue 'nowhere' is not declared"):
        tasks.note.using(queue_name="nowhere").enqueue()


def test_without_queues_in_tasks_each_declared_queue_may_be_named() -> None:
    """Naive: Django's default, under which an app's own queue cannot be used until TASKS repeats all of HORSIES["QUEUES"]."""
    with override_settings(TASKS={"default": {"BACKEND": DOTTED}}):
        assert tasks.note.using(queue_name="bulk").enqueue().task.queue_name == "bulk"
        with pytest.raises(TaskSendError, match="queue 'nowhere' is not declared"):
            tasks.note.using(queue_name="nowhere").enqueue()
    for twin in ("Immediate", "Dummy"):
        with override_settings(TASKS={"default": {"BACKEND": f"horsies_django.testing.{twin}Backend"}}):
            tasks.note.using(queue_name="bulk").enqueue()


def test_settings_that_changed_count_at_the_send() -> None:
    """Naive: only the construction of the task is validated."""
    elsewhere = tasks.note.using(queue_name="bulk")
    with override_settings(TASKS={"default": {"BACKEND": DOTTED, "QUEUES": ["mail"]}}):
        with pytest.raises(InvalidTask, match="Queue 'bulk' is not valid for backend"):
            elsewhere.enqueue()
        with pytest.raises(InvalidTask, match="Queue 'bulk' is not valid for backend"):
            async_to_sync(elsewhere.aenqueue)()


def test_nothing_is_sent_while_modules_of_tasks_are_imported() -> None:
    """Naive: every process that imports the module sends the task again."""
    with registry.suppressed_sends(), pytest.raises(TaskSendError, match="SEND_SUPPRESSED"):
        tasks.note.enqueue()


def counts():  # type: ignore[no-untyped-def]
    yield 1


def test_functions_that_cannot_be_tasks_are_refused() -> None:
    with pytest.raises(InvalidTask, match="generator"):
        task()(counts)
    with pytest.raises(InvalidTask, match="module level"):
        task()(lambda: None)
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(tasks.add.func)


def test_two_functions_of_one_name_are_refused() -> None:
    """Naive: a wrapper has the name of the function that it wraps, so the worker runs that one, or whichever came last."""
    import functools

    @functools.wraps(tasks.add.func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return tasks.add.func(*args, **kwargs)

    with pytest.raises(InvalidTask, match="Two functions are tasks named tests.apps.errands.tasks.add"):
        task()(wrapper)
    assert task()(tasks.add.func) == tasks.add  # the same function is no second one


def test_a_function_that_is_a_task_of_ours_is_none_of_django() -> None:
    from tests.apps.project.tasks import add

    with pytest.raises(InvalidTask, match="module level"):
        task()(add)
    with pytest.raises(InvalidTask, match="Two functions are tasks named tests.apps.project.tasks.add"):
        task()(add.definition.function)


def test_the_result_is_also_known_to_our_own_api() -> None:
    result = tasks.add.enqueue(2, b=3)
    drain()
    assert get_handle(result.id).get(0).ok_value == 5
    info = get_handle(result.id).info()
    assert info is not None
    assert (info.codec, info.priority) == ("plain", 101)


def test_each_thread_has_a_backend_of_its_own_and_all_of_them_send() -> None:
    """Naive: the backend keeps a connection or a cache, and Django makes one per thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(task_backends["default"]))
    thread.start()
    thread.join(30)
    assert found[0] is not task_backends["default"]
    assert found[0].__dict__.keys() <= {"alias", "queues", "options", "_horsies_options"}


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks are pickled since Django 6.1")
def test_a_task_and_its_result_can_be_pickled() -> None:
    chosen = tasks.tried.using(priority=5)
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    result = chosen.enqueue(0)
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_task_is_sent_through_the_backend_that_using_names() -> None:
    result = tasks.add.using(backend="second").enqueue(1)
    assert result.backend == "second"
    found = row(result)
    assert (found.max_retries, found.options["timeout_ms"]) == (1, 90_000)
    assert found.options["retry"]["intervals"] == [120]
    with pytest.raises(InvalidTaskBackend, match="doesn't exist"):
        tasks.add.using(backend="unknown")


def test_our_decorator_makes_a_task_of_the_backend_that_it_names() -> None:
    """Naive: with Django's own backends, as in tests, the options make the import of the module fail."""
    assert isinstance(tasks.tried, HorsiesTask)
    assert (tasks.tried.max_attempts, tasks.tried.retry_on) == (3, (ValueError,))
    immediate = f"{api.__name__}.backends.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": {"BACKEND": immediate, "QUEUES": []}}):
        made = backends.task(max_attempts=3, backoff=[1], retry_on=ValueError)(tasks.add.func)
        assert not isinstance(made, HorsiesTask)
        assert made.enqueue(1, 2).return_value == 3
        assert tasks.add.enqueue(2, 2).return_value == 4  # made for the other backend


def test_a_task_may_be_a_node_of_a_workflow_with_its_own_options() -> None:
    """Naive: the node has the options of the decorator, not those of ``using``."""
    flow = Workflow("sums")
    first = flow.add(tasks.add, 2, b=3)
    flow.add(tasks.tried.using(priority=50, queue_name="mail"), 0)
    last = flow.add(tasks.add, first, b=10)
    handle = flow.send()
    drain()
    assert handle.results()[last.name].ok_value == 15
    found = Task.objects.get(task_name=tasks.tried.module_path)
    assert (found.queue_name, found.priority, found.max_retries) == ("mail", 51, 2)
    assert tasks.add.get_result(str(Task.objects.filter(task_name=tasks.add.module_path)[0].pk)).return_value in (5, 15)


@pytest.fixture
def calls() -> list[Any]:
    tasks.CALLS.clear()
    return tasks.CALLS
