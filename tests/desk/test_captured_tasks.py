"""``captured_tasks()``, ``assert_sent()`` and ``assert_nothing_sent()``, and their messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.utils import DataError
from django.test import TestCase, TransactionTestCase, override_settings

from horsies_django import Workflow, backends, task
from horsies_django.models.fields import aware
from horsies_django.testing import (
    adrain,
    assert_nothing_sent,
    assert_sent,
    captured_tasks,
    drain,
    fail_next,
    immediate,
    travel,
)
from tests.apps.errands import tasks as errands
from tests.apps.errands.api import InvalidTask, TaskResultStatus, task_backends
from tests.apps.project import flows, tasks
from tests.conftest import put

HOUR = dt.timedelta(hours=1)


@task
def framed(
    point: tasks.Point, day: dt.date, /, tags: tuple[str, ...] = (), *, loud: bool = False
) -> None:
    """Take arguments that are stored in another form than their own."""


class Both:
    """Tests that hold in a TestCase and outside of one."""

    def test_each_send_has_its_name_arguments_queue_and_due_time(self) -> None:
        """Fails if: arguments are those of the JSON, positions are lost, or defaults are added."""
        with captured_tasks() as sent:
            first = framed.send(tasks.Point(1, 2), dt.date(2026, 11, 23), loud=True)
            tasks.mail.with_options(priority=3, delay=HOUR).send("a@example.org")

        assert first.task_id == sent[0].handle.task_id
        assert sent[0].name == framed.name
        assert sent[0].kwargs == {
            "point": tasks.Point(1, 2),
            "day": dt.date(2026, 11, 23),
            "loud": True,
        }

        assert (sent[0].queue, sent[0].priority, sent[0].due_at) == ("default", 100, None)
        assert (sent[1].name, sent[1].queue, sent[1].priority) == (tasks.mail.name, "mail", 3)
        due_in = sent[1].due_at - dt.datetime.now(dt.UTC)  # type: ignore[operator]
        assert HOUR - dt.timedelta(minutes=1) < due_in <= HOUR

        drain()
        assert sent[0].handle.get(0).is_ok()

    def test_the_block_lists_sent_tasks_in_order(self) -> None:
        """The list has the tasks that were sent in the block, in that order, and is filled at once.

        Fails if: the list is empty until the block ends, or has tasks that were sent before or
        after it.
        """
        tasks.add.send(0)

        with captured_tasks() as sent:
            for number in range(1, 4):
                tasks.add.send(number)
                assert (len(sent), sent[-1].kwargs) == (number, {"a": number})
        tasks.add.send(4)

        assert [each.kwargs["a"] for each in sent] == [1, 2, 3]
        assert [each.kwargs["a"] for each in sent[1:]] == [2, 3]
        assert repr(sent).startswith(
            "<SentTasks: [SentTask(name='tests.apps.project.tasks.add', kwargs={'a': 1}"
        )

    def test_what_tasks_and_workflows_send_is_sent_too(self) -> None:
        """Fails if: only calls of ``send()`` are noticed, and tasks that SQL sends are not."""
        flow = Workflow("two")
        flow.add(flows.plus, a=flow.add(flows.number, 4))

        with captured_tasks() as sent, immediate():
            tasks.sends_more.send(1)
            flow.send()

        assert [each.name for each in sent] == [
            tasks.sends_more.name,
            tasks.sends_more.name,
            flows.number.name,
            flows.plus.name,
        ]
        assert sent[3].kwargs == {"a": 4}

    def test_a_rolled_back_send_does_not_count_as_sent(self) -> None:
        """A send that was rolled back is listed as such, but does not count as sent.

        A send that finds a task with its key is not listed.

        Fails if: it counts as sent, or is missing in the message of the assertion; or only plain
        sends are noticed.
        """
        keyed = tasks.echo.with_options(key="once")

        with captured_tasks() as sent:
            with pytest.raises(LookupError), transaction.atomic():
                tasks.add.send_many([{"a": 1}, {"a": 2}])
                tasks.mail.schedule(HOUR, "a@example.org")
                keyed.send("text")
                raise LookupError

            tasks.add.send(3)
            keyed.send("text")
            keyed.send("text")

        assert [(each.name, each.rolled_back) for each in sent] == [
            (tasks.add.name, True),
            (tasks.add.name, True),
            (tasks.mail.name, True),
            (tasks.echo.name, True),
            (tasks.add.name, False),
            (tasks.echo.name, False),
        ]
        assert [each.kwargs for each in sent.assert_sent(tasks.add, count=1)] == [{"a": 3}]

        with pytest.raises(
            AssertionError, match=r"mail\(to='a@example.org'\) on queue 'mail', due .*, rolled back"
        ):
            sent.assert_sent(tasks.mail)

    def test_a_block_of_only_rolled_back_sends_has_sent_nothing(
        self,
    ) -> None:
        """A block of only rolled back sends has sent nothing.

        In ``travel()``, due times count from the moved time.
        """
        moment = dt.datetime(2031, 5, 1, tzinfo=dt.UTC)

        with (
            travel(moment),
            captured_tasks() as sent,
            pytest.raises(LookupError),
            transaction.atomic(),
        ):
            tasks.add.schedule(HOUR, 1)
            raise LookupError

        assert [each.due_at for each in sent] == [moment + HOUR]
        sent.assert_nothing_sent()

    def test_an_unknown_task_is_listed_with_its_plain_arguments(self) -> None:
        """A task that is missing in the code is listed with its plain arguments."""
        with captured_tasks() as sent:
            put(name="elsewhere.unknown", kwargs=['{"day": "2026-11-23"}'])
            put(name=tasks.add.name, kwargs=['{"c": 1}'])

        assert [each.kwargs for each in sent] == [{"day": "2026-11-23"}, {"c": 1}]


class InATestCase(Both, TestCase):
    def test_an_error_in_a_broken_transaction_is_not_hidden(self) -> None:
        """An error in a broken transaction leaves the block as it is.

        Fails if: the list is read at the end of the block, and the error of that query replaces
        that of the test.
        """
        for broken in ("SELECT 1 / 0", None):
            with (
                pytest.raises((DataError, LookupError)),
                transaction.atomic(),
                captured_tasks() as sent,
            ):
                tasks.add.send(1)
                if broken:
                    with connection.cursor() as cursor:
                        cursor.execute(broken)
                transaction.set_rollback(True)
                raise LookupError

            assert [each.rolled_back for each in sent] == [True]

    async def test_in_async_tests_the_list_is_filled_after_the_block(
        self,
    ) -> None:
        """In async tests the list is filled after the block, and includes what was rolled back."""

        @transaction.atomic
        def fail() -> None:
            tasks.mail.send("a@example.org")
            raise LookupError

        async with captured_tasks() as sent:
            await tasks.add.asend(1)
            await tasks.sends_more.asend(1)
            with pytest.raises(LookupError):
                await sync_to_async(fail)()
            await adrain()

        names = [tasks.add.name, tasks.sends_more.name, tasks.sends_more.name, tasks.mail.name]
        assert sorted(each.name for each in sent) == sorted(names)
        assert [each.name for each in sent if each.rolled_back] == [tasks.mail.name]
        sent.assert_sent(tasks.add, kwargs={"a": 1})

        with pytest.raises(RuntimeError, match="async with captured_tasks"), captured_tasks():
            pass


class InATransactionTestCase(Both, TransactionTestCase):
    pass


pytestmark = pytest.mark.django_db


def test_an_assertion_returns_the_matching_sends() -> None:
    assert_nothing_sent()

    handles = [
        tasks.add.send(1),
        tasks.add.send(1, b=2),
        tasks.add.with_options(queue="mail").send(1, b=0),
    ]

    assert [each.handle for each in assert_sent(tasks.add)] == handles
    assert [each.handle for each in assert_sent(tasks.add, queue="mail")] == handles[2:]
    assert [each.handle for each in assert_sent("tests.apps.project.tasks.add", count=3)] == handles
    assert assert_sent(tasks.mail, count=0) == []


def test_arguments_are_compared_by_value_with_their_defaults() -> None:
    """Arguments are compared as a whole, by value, including their defaults.

    Fails if: the JSON of the row is compared, in which a default is missing and a tuple is a list.
    """
    tasks.add.send(1)
    assert_sent(tasks.add, kwargs={"a": 1, "b": 0})
    assert_sent(tasks.add, kwargs={"a": 1})

    tasks.add.send(1, b=0)
    assert_sent(tasks.add, kwargs={"a": 1}, count=2)

    with pytest.raises(AssertionError):
        assert_sent(tasks.add, kwargs={"a": 1, "b": 1})

    framed.send(tasks.Point(1, 2), dt.date(2026, 11, 23), ("x", "y"))
    given = {
        "point": tasks.Point(1, 2),
        "day": dt.date(2026, 11, 23),
        "tags": ("x", "y"),
        "loud": False,
    }

    assert_sent(framed, kwargs=given)
    with pytest.raises(AssertionError):
        assert_sent(framed, kwargs={**given, "tags": ("x",)})


def test_a_failed_assertion_lists_the_sent_tasks() -> None:
    """A failed assertion lists the tasks that were sent instead, and shortens a long list."""
    with pytest.raises(
        AssertionError, match=r"tasks.add\(a=1\) on queue 'mail' was not sent. Nothing was sent.$"
    ):
        assert_sent(tasks.add, kwargs={"a": 1}, queue="mail")

    tasks.add.send(2, b=3)
    tasks.echo.send("x" * 1_000)

    with pytest.raises(AssertionError) as caught:
        assert_sent(tasks.add, kwargs={"a": 1})

    first, *others = str(caught.value).splitlines()
    assert first == "tests.apps.project.tasks.add(a=1) was not sent. What was sent:"
    assert others[0] == "- tests.apps.project.tasks.add(a=2, b=3) on queue 'default'"
    assert (len(others), len(others[1]) < 200) == (2, True)

    with pytest.raises(AssertionError, match="tasks.add was sent 1 times, not 2. What was sent:"):
        assert_sent(tasks.add, count=2)

    tasks.add.send_many({"a": number} for number in range(50))
    with pytest.raises(
        AssertionError, match=r"Tasks were sent. What was sent:\n(- tests.*\n){20}- and 32 more$"
    ):
        assert_nothing_sent()


def test_an_assertion_that_can_never_hold_raises() -> None:
    """An assertion that can never hold is an error of the test.

    Fails if: ``assert_sent(count=0)`` passes for a task that does not exist, or for arguments that
    it does not take.
    """
    with pytest.raises(ValueError, match="cannot be sent with these arguments: .*'user'"):
        assert_sent(tasks.add, kwargs={"user": 1}, count=0)
    with pytest.raises(ValueError, match="missing a required argument: 'a'"):
        assert_sent(tasks.add, kwargs={}, count=0)

    with pytest.raises(LookupError, match="no task named 'tests.apps.project.tasks.ad'"):
        assert_sent("tests.apps.project.tasks.ad", count=0)
    with pytest.raises(TypeError, match="pass a task or the name of one"):
        assert_sent(len, count=0)  # type: ignore[arg-type]


# The twins of Django's Immediate and Dummy backends, which replace them in tests


@pytest.fixture(params=["Immediate", "Dummy"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Use a twin of one of Django's backends as the default backend."""
    backend = {
        "BACKEND": f"horsies_django.testing.{request.param}Backend",
        "QUEUES": ["default", "mail"],
    }

    with override_settings(TASKS={"default": backend}):
        yield request.param


def test_a_task_with_options_of_ours_runs_without_our_backend(kind: str) -> None:
    """A task with options of ours can be declared and runs as the twin runs tasks.

    Fails if: the module of the task cannot be imported with such a backend, because of an
    unexpected keyword argument.
    """
    declare: Any = backends.task(
        max_attempts=3, retry_on=[ConnectionError], backoff=60, timeout_ms=1_000
    )
    added = declare(errands.add.func)
    failed = declare(errands.fails.func)

    assert added.max_attempts == 3

    result = added.using(priority=50, queue_name="mail").enqueue(1, b=2)
    failure = failed.enqueue()

    if kind == "Immediate":
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        assert (failure.status, failure.attempts) == (TaskResultStatus.FAILED, 1), (
            "it is not tried again"
        )
        assert failure.errors[0].exception_class is ValueError

        # Django's own raises AttributeError.
        with pytest.raises(InvalidTask, match="does not support run_after"):
            added.using(run_after=HOUR)
    else:
        assert (result.status, failure.attempts) == (TaskResultStatus.READY, 0)
        kept, _ = task_backends["default"].results
        assert (kept.id, kept.args, kept.kwargs) == (result.id, [1], {"b": 2})
        assert added.using(run_after=HOUR).enqueue(1).task.run_after == HOUR

    assert_nothing_sent()


def test_the_kit_takes_tasks_of_django() -> None:
    """Fails if: the backend's statement is not noticed, or arguments are shown as stored."""
    with captured_tasks() as sent, immediate():
        result = errands.add.using(queue_name="mail").enqueue(1, b=2)
        result.refresh()
        assert result.return_value == 3

        with pytest.raises(LookupError), transaction.atomic():
            errands.add.using(run_after=HOUR).enqueue(5)
            raise LookupError

    assert [
        (each.name, each.queue, each.kwargs, each.rolled_back, each.due_at is None) for each in sent
    ] == [
        (errands.add.module_path, "mail", {"a": 1, "b": 2}, False, True),
        (errands.add.module_path, "default", {"a": 5}, True, False),
    ]

    assert_sent(errands.add, kwargs={"a": 1, "b": 2}, queue="mail", count=1)
    with pytest.raises(AssertionError, match=r"\(a=1, b=2\) on queue 'mail'"):
        assert_sent(errands.add, kwargs={"a": 1})
    with pytest.raises(ValueError, match="cannot be sent with these arguments"):
        assert_sent(errands.add, kwargs={"user": 1})


def test_tasks_of_django_fail_and_travel() -> None:
    errands.CALLS.clear()
    result = errands.tried.enqueue(0)

    with fail_next(errands.tried, ValueError("no answer"), times=2):
        drain()

    result.refresh()
    assert (result.attempts, result.return_value) == (3, 1)

    with fail_next(errands.tried, "NO_MAIL"), travel(dt.timedelta(days=1)) as now:
        result = errands.tried.enqueue(0)
        drain(raise_errors=False)

    result.refresh()
    assert (result.status, aware(result.finished_at)) == (TaskResultStatus.FAILED, now)
