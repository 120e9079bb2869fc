"""captured_tasks(), assert_sent() and assert_nothing_sent(): what was sent, and messages that say what was sent instead."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.utils import DataError
from django.test import TestCase, TransactionTestCase, override_settings

from horsies_django import Workflow, task
from horsies_django.models.fields import aware
from horsies_django.tasks import registry
from horsies_django.testing import (
    SentTasks,
    adrain,
    assert_nothing_sent,
    assert_sent,
    captured_tasks,
    drain,
    fail_next,
    immediate,
    travel,
)
from tests.apps.errands.api import InvalidTask, TaskResultStatus, task_backends
from tests.apps.project import flows, tasks
from tests.conftest import put

HOUR = dt.timedelta(hours=1)


class Rolled(Exception):  # noqa: N818 - what a test raises to leave a transaction
    """Ends a transaction."""


@task
def framed(point: tasks.Point, day: dt.date, /, tags: tuple[str, ...] = (), *, loud: bool = False) -> None:
    """Take arguments that are stored as something else than themselves."""


class Both:
    """What is the same in a TestCase and outside of one."""

    def test_each_send_tells_what_where_and_when(self) -> None:
        """Naive: arguments are those of the JSON, positions are lost, or defaults are made up."""
        with captured_tasks() as sent:
            first = framed.send(tasks.Point(1, 2), dt.date(2026, 11, 23), loud=True)
            tasks.mail.with_options(priority=3, delay=HOUR).send("a@example.org")
        assert first.task_id == sent[0].handle.task_id
        assert sent[0].name == framed.name
        assert sent[0].kwargs == {"point": tasks.Point(1, 2), "day": dt.date(2026, 11, 23), "loud": True}
        assert (sent[0].queue, sent[0].priority, sent[0].due_at) == ("default", 100, None)
        assert (sent[1].name, sent[1].queue, sent[1].priority) == (tasks.mail.name, "mail", 3)
        due_in = sent[1].due_at - dt.datetime.now(dt.UTC)  # type: ignore[operator]
        assert HOUR - dt.timedelta(minutes=1) < due_in <= HOUR
        drain()
        assert sent[0].handle.get(0).is_ok()

    def test_the_block_has_what_was_sent_in_it_in_that_order_and_can_be_asked_in_it(self) -> None:
        """Naive: the list is empty until the block ends, or has what was sent before and after it."""
        tasks.add.send(0)
        with captured_tasks() as sent:
            assert len(sent) == 0
            for number in range(1, 4):
                tasks.add.send(number)
                assert sent[-1].kwargs == {"a": number}
        tasks.add.send(4)
        assert [each.kwargs["a"] for each in sent] == [1, 2, 3]
        assert [each.kwargs["a"] for each in sent[1:]] == [2, 3]

    def test_what_tasks_and_workflows_send_is_sent_too(self) -> None:
        """Naive: only calls of send() are noticed, and what SQL sends is not."""
        flow = Workflow("two")
        flow.add(flows.plus, a=flow.add(flows.number, 4))
        with captured_tasks() as sent, immediate():
            tasks.sends_more.send(1)
            flow.send()
        assert [each.name for each in sent] == [
            tasks.sends_more.name, tasks.sends_more.name, flows.number.name, flows.plus.name,
        ]  # fmt: skip
        assert sent[3].kwargs == {"a": 4}

    def test_what_is_rolled_back_is_told_apart(self) -> None:
        """Naive: it counts as sent, or nobody can see why the assertion fails."""
        with captured_tasks() as sent:
            with pytest.raises(Rolled), transaction.atomic():
                tasks.add.send_many([{"a": 1}, {"a": 2}])
                tasks.mail.schedule(HOUR, "a@example.org")
                raise Rolled
            tasks.add.send(3)
        assert [(each.name, each.rolled_back) for each in sent] == [
            (tasks.add.name, True), (tasks.add.name, True), (tasks.mail.name, True), (tasks.add.name, False),
        ]  # fmt: skip
        assert [each.kwargs for each in sent.assert_sent(tasks.add, count=1)] == [{"a": 3}]
        with pytest.raises(AssertionError, match=r"mail\(to='a@example.org'\) on queue 'mail', due .*, rolled back"):
            sent.assert_sent(tasks.mail)

    def test_a_send_with_a_key_that_is_rolled_back_is_seen_and_one_that_finds_a_task_is_none(self) -> None:
        """Naive: only the statement of plain sends is looked at, or what was found counts as rolled back."""
        keyed = tasks.add.with_options(key="once")
        with captured_tasks() as sent:
            with pytest.raises(Rolled), transaction.atomic():
                keyed.send(1)
                raise Rolled
            keyed.send(1)
            keyed.send(1)
        assert [each.rolled_back for each in sent] == [True, False]

    def test_a_block_of_only_rolled_back_sends_has_sent_nothing_and_in_travel_due_times_count_from_there(self) -> None:
        moment = dt.datetime(2031, 5, 1, tzinfo=dt.UTC)
        with travel(moment), captured_tasks() as sent, pytest.raises(Rolled), transaction.atomic():
            tasks.add.schedule(HOUR, 1)
            assert [each.due_at for each in sent] == [moment + HOUR]
            raise Rolled
        assert [each.due_at for each in sent] == [moment + HOUR]
        sent.assert_nothing_sent()

    def test_a_task_that_this_code_does_not_know_is_listed_with_its_plain_arguments(self) -> None:
        with captured_tasks() as sent:
            put(name="elsewhere.unknown", kwargs=['{"day": "2026-11-23"}'])
            put(name=tasks.add.name, kwargs=['{"c": 1}'])
        assert [each.kwargs for each in sent] == [{"day": "2026-11-23"}, {"c": 1}]


class InATestCase(Both, TestCase):
    def test_an_error_in_a_broken_transaction_is_not_hidden(self) -> None:
        """Naive: the list is read at the end of the block, and the error of that query replaces the one of the test."""
        for broken in ("SELECT 1 / 0", None):
            with pytest.raises((DataError, Rolled)), transaction.atomic(), captured_tasks() as sent:
                tasks.add.send(1)
                if broken:
                    with connection.cursor() as cursor:
                        cursor.execute(broken)
                transaction.set_rollback(True)
                raise Rolled
            assert [each.rolled_back for each in sent] == [True]

    async def test_in_async_tests_the_list_is_there_after_the_block(self) -> None:
        async with captured_tasks() as sent:
            await tasks.add.asend(1)
            await tasks.sends_more.asend(1)
            await adrain()
        assert [each.name for each in sent] == [tasks.add.name, tasks.sends_more.name, tasks.sends_more.name]
        sent.assert_sent(tasks.add, kwargs={"a": 1})
        with pytest.raises(RuntimeError, match="async with captured_tasks"), captured_tasks():
            pass

    async def test_sends_in_async_code_that_are_rolled_back_are_seen(self) -> None:
        @transaction.atomic
        def fail() -> None:
            tasks.add.send(1)
            raise Rolled

        async with captured_tasks() as sent:
            with pytest.raises(Rolled):
                await sync_to_async(fail)()
        assert [each.rolled_back for each in sent] == [True]


class InATransactionTestCase(Both, TransactionTestCase):
    pass


pytestmark = pytest.mark.django_db


def test_an_assertion_returns_what_it_has_found() -> None:
    assert_nothing_sent()
    handles = [tasks.add.send(1), tasks.add.send(1, b=2), tasks.add.with_options(queue="mail").send(1, b=0)]
    assert [each.handle for each in assert_sent(tasks.add)] == handles
    assert [each.handle for each in assert_sent(tasks.add, queue="mail")] == handles[2:]
    assert [each.handle for each in assert_sent("tests.apps.project.tasks.add", count=3)] == handles
    assert assert_sent(tasks.mail, count=0) == []


def test_arguments_are_compared_as_a_whole_with_their_defaults_and_by_value() -> None:
    """Naive: the JSON of the row is compared, in which a default is missing and a list is no tuple."""
    tasks.add.send(1)
    assert_sent(tasks.add, kwargs={"a": 1, "b": 0})
    assert_sent(tasks.add, kwargs={"a": 1})
    tasks.add.send(1, b=0)
    assert_sent(tasks.add, kwargs={"a": 1}, count=2)
    with pytest.raises(AssertionError):
        assert_sent(tasks.add, kwargs={"a": 1, "b": 1})
    framed.send(tasks.Point(1, 2), dt.date(2026, 11, 23), ("x", "y"))
    given = {"point": tasks.Point(1, 2), "day": dt.date(2026, 11, 23), "tags": ("x", "y"), "loud": False}
    assert_sent(framed, kwargs=given)
    with pytest.raises(AssertionError):
        assert_sent(framed, kwargs={**given, "tags": ("x",)})


def test_a_failed_assertion_says_what_was_sent_instead() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_sent(tasks.add, kwargs={"a": 1}, queue="mail")
    assert str(caught.value) == "tests.apps.project.tasks.add(a=1) on queue 'mail' was not sent. Nothing was sent."
    tasks.add.send(2, b=3)
    tasks.mail.send("a@example.org")
    with pytest.raises(AssertionError) as caught:
        assert_sent(tasks.add, kwargs={"a": 1})
    assert str(caught.value).splitlines() == [
        "tests.apps.project.tasks.add(a=1) was not sent. What was sent:",
        "- tests.apps.project.tasks.add(a=2, b=3) on queue 'default'",
        "- tests.apps.project.tasks.mail(to='a@example.org') on queue 'mail'",
    ]
    with pytest.raises(AssertionError, match="tasks.add was sent 1 times, not 2. What was sent:"):
        assert_sent(tasks.add, count=2)
    with pytest.raises(AssertionError, match=r"Tasks were sent. What was sent:\n- tests.apps.project.tasks.add\(a=2"):
        assert_nothing_sent()


def test_a_long_message_ends() -> None:
    tasks.echo.send("x" * 1_000)
    tasks.add.send_many({"a": number} for number in range(50))
    with pytest.raises(AssertionError) as caught:
        assert_nothing_sent()
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert len(lines[1]) < 200
    assert lines[-1] == "- and 31 more"


def test_an_assertion_that_can_never_hold_is_an_error_of_the_test() -> None:
    """Naive: assert_sent(count=0) passes for a task that does not exist, and for arguments that it does not take."""
    with pytest.raises(ValueError, match="cannot be sent with these arguments: .*'user'"):
        assert_sent(tasks.add, kwargs={"user": 1}, count=0)
    with pytest.raises(ValueError, match="missing a required argument: 'a'"):
        assert_sent(tasks.add, kwargs={}, count=0)
    with pytest.raises(LookupError, match="no task named 'tests.apps.project.tasks.ad'"):
        assert_sent("tests.apps.project.tasks.ad", count=0)
    with pytest.raises(TypeError, match="pass a task or the name of one"):
        assert_sent(len, count=0)  # type: ignore[arg-type]


def test_a_sequence_looks_like_one() -> None:
    with captured_tasks() as sent:
        tasks.add.send(1)
    assert isinstance(sent, SentTasks)
    assert repr(sent).startswith("<SentTasks: [SentTask(name='tests.apps.project.tasks.add', kwargs={'a': 1}")
    assert Group.objects.count() == 0


# The twins of Django's Immediate and Dummy backends, in whose place tests put them

ran: list[str] = []


def welcome(name: str, *, times: int = 1) -> list[str]:
    ran.append(name)
    return [name] * times


def breaks() -> None:
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
    task_class = task_backends["default"].task_class
    plain = {"priority": 0, "queue_name": "default", "backend": "default", "takes_context": False, "run_after": None}
    made = globals()[function.__qualname__] = task_class(func=function, **{**plain, **options})
    return made


def test_a_task_with_options_of_ours_is_declared_and_does_what_the_twin_does(kind: str) -> None:
    """Naive: with Django's own backend, the module of the task cannot be imported: unexpected keyword argument."""
    twin = declared(welcome, max_attempts=3, retry_on=[ConnectionError], backoff=60, timeout_ms=1_000)
    result = twin.using(priority=50, queue_name="mail").enqueue("ann", times=2)
    failure = declared(breaks, max_attempts=3).enqueue()
    if kind == "Immediate":
        assert ran == ["ann"]
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, ["ann", "ann"])
        assert (failure.status, failure.attempts) == (TaskResultStatus.FAILED, 1), "it is not tried again"
        assert failure.errors[0].exception_class is ConnectionError
    else:
        assert ran == []
        assert (result.status, failure.attempts) == (TaskResultStatus.READY, 0)
        kept, _ = task_backends["default"].results
        assert (kept.id, kept.args, kept.kwargs) == (result.id, ["ann"], {"times": 2})
    assert_nothing_sent()
    assert registry.find(twin.module_path) is None, "another test would find it"


def test_what_is_due_later_is_taken_by_the_twin_that_can_wait(kind: str) -> None:
    """Naive: a timedelta, which HorsiesBackend takes, is an AttributeError of Django's validation."""
    twin = declared(welcome)
    if kind == "Immediate":
        with pytest.raises(InvalidTask, match="does not support run_after"):
            twin.using(run_after=dt.timedelta(hours=1))
    else:
        later = twin.using(run_after=dt.timedelta(hours=1))
        assert later.enqueue("ann").task.run_after == dt.timedelta(hours=1)


@pytest.fixture
def horsies_backend() -> Iterator[None]:
    """Use the backend itself."""
    with default_backend("backends.HorsiesBackend"):
        yield


def test_the_kit_takes_tasks_of_django(horsies_backend: None) -> None:
    """Naive: the statement of the backend is not noticed, and its arguments are shown as they are stored."""
    twin = declared(welcome)
    with captured_tasks() as sent, immediate():
        result = twin.using(queue_name="mail").enqueue("ann", times=2)
        assert ran == ["ann"]
        with pytest.raises(KeyError), transaction.atomic():
            twin.using(run_after=dt.timedelta(hours=1)).enqueue("bob")
            raise KeyError
    result.refresh()
    assert result.return_value == ["ann", "ann"]
    assert [(each.name, each.queue, each.kwargs, each.rolled_back, each.due_at is None) for each in sent] == [
        (twin.module_path, "mail", {"name": "ann", "times": 2}, False, True),
        (twin.module_path, "default", {"name": "bob"}, True, False),
    ]
    assert_sent(twin, kwargs={"name": "ann", "times": 2}, queue="mail", count=1)
    with pytest.raises(AssertionError, match=r"\(name='ann', times=2\) on queue 'mail'"):
        assert_sent(twin, kwargs={"name": "ann"})
    with pytest.raises(ValueError, match="cannot be sent with these arguments"):
        assert_sent(twin, kwargs={"user": 1})


def test_tasks_of_django_fail_and_travel(horsies_backend: None) -> None:
    twin = declared(welcome, max_attempts=3, backoff=60, retry_on=[ConnectionError])
    result = twin.enqueue("ann")
    with fail_next(twin, ConnectionError("no answer"), times=2):
        drain(until=dt.timedelta(hours=1))
    result.refresh()
    assert result.attempts == 3
    assert ran == ["ann"]
    with fail_next(twin, "NO_MAIL"), travel(dt.timedelta(days=1)) as now:
        result = twin.enqueue("bob")
        drain(raise_errors=False)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert aware(result.finished_at) == now
