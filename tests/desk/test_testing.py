"""``drain()``, ``fail_next()`` and ``travel()``, by which tests run, fail and time tasks."""

from __future__ import annotations

import asyncio
import datetime as dt
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import F
from django.test import TestCase

from horsies_django import (
    Retry,
    RetryPolicy,
    Skip,
    TaskError,
    TaskFailed,
    Workflow,
    WorkflowError,
    cancel_many,
    current_task,
    get_handle,
    get_workflow,
    queues,
    task,
)
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.fields import aware
from horsies_django.tasks.ids import uuid7
from horsies_django.testing import adrain, drain, fail_next, travel
from horsies_django.workflows import advancer
from tests.apps.project import flows, tasks
from tests.conftest import Connect
from tests.support.refusing import refused

HOUR = dt.timedelta(hours=1)
MINUTE = dt.timedelta(minutes=1)
MOMENT = dt.datetime(2031, 5, 1, 12, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "inside", [True, pytest.param(False, marks=pytest.mark.django_db(transaction=True))]
)
def test_tasks_and_their_test_see_the_writes_of_the_others(inside: bool) -> None:
    """Tasks and their test see what the others wrote, inside a transaction and outside of one."""
    handles = [
        tasks.note.send("written"),
        tasks.breaks_sql.send(),
        tasks.anoop.send(),
        tasks.araises.send(),
    ]

    assert drain(raise_errors=False) == 4
    assert connection.in_atomic_block is inside
    assert [handle.get().is_ok() for handle in handles] == [True, False, True, False]
    assert handles[1].get().err_value.exception["type"] == "DataError"
    assert Group.objects.get().name == "written"

    tasks.sends_more.send(3)
    assert drain() == 4, "what tasks send runs in the same call"
    tasks.comes_again.schedule(HOUR, 3_600)
    assert drain(until=HOUR * 2) == 2


def test_final_failures_are_raised_once_all_tasks_have_run() -> None:
    """Final failures are raised, with task and traceback, when all tasks have run."""
    retried = tasks.mails.send(1)
    raises = tasks.raises.send("no such thing")
    tasks.araises.send()
    tasks.mail.send("nowhere")
    # It expires, which is no failure.
    tasks.add.with_options(good_until=dt.timedelta(microseconds=1)).send(1)

    with pytest.raises(ExceptionGroup, match="tasks that failed: 3") as caught:
        drain()

    assert retried.get().ok_value == 2
    failures = {str(one): one for one in caught.value.exceptions}
    raised = ["UNHANDLED_ERROR: LookupError: async", "UNHANDLED_ERROR: LookupError: no such thing"]
    assert sorted(failures) == ["NO_ADDRESS: nowhere is no address", *raised]

    failure = failures[raised[1]]
    assert isinstance(failure, TaskFailed)
    assert failure.error == raises.get().err_value
    assert Task.objects.filter(finished_at=None).count() == 0

    shown = "".join(traceback.format_exception(caught.value))
    assert f"The task: tests.apps.project.tasks.raises, id {raises.task_id}, attempt 1" in shown
    assert "raise LookupError(message)" in shown
    assert "drain(raise_errors=False)" in shown


def test_retries_and_later_tasks_run_in_the_order_of_their_times() -> None:
    """Retries and later tasks run at their times, in that order."""
    policy = RetryPolicy.exponential(base_seconds=100, max_retries=5, jitter=False)
    retried = tasks.mails.with_options(retry_policy=policy).send(2)
    between = tasks.note.schedule(200, "between")
    late = tasks.note.schedule(HOUR, "late")

    assert drain() == 1, "an attempt that is tried again later is no failure yet"
    assert drain(until=HOUR / 2) == 3

    first, second, third = retried.info().attempts  # type: ignore[union-attr]
    assert second.started_at - first.finished_at == dt.timedelta(seconds=100)
    assert third.started_at - second.finished_at == dt.timedelta(seconds=200)
    assert second.finished_at < between.info().started_at < third.started_at  # type: ignore[union-attr, operator]
    assert between.info().started_at == between.info().enqueued_at  # type: ignore[union-attr]
    assert late.info().status == "PENDING"  # type: ignore[union-attr]
    assert drain(until=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) == drain(until=dt.timedelta(0)) == 0

    expires = tasks.add.with_options(good_until=HOUR).send(1)
    Task.objects.filter(pk=expires.task_id).update(
        enqueued_at=F("sent_at") + HOUR + dt.timedelta(seconds=10)
    )

    assert drain(until=HOUR + dt.timedelta(seconds=30)) == 1
    assert expires.info().status == "EXPIRED"  # type: ignore[union-attr]


def test_sends_of_a_task_count_from_the_moment_of_its_run() -> None:
    """The delay of a task that a task sends counts from the moment of the sender's run."""
    tasks.comes_again.send(600)
    assert drain(until=HOUR + dt.timedelta(seconds=30)) == 7

    (waiting,) = Task.objects.filter(status="PENDING")
    assert waiting.enqueued_at - waiting.sent_at == dt.timedelta(minutes=10)

    tasks.add.send(1)
    assert Task.objects.latest("id").sent_at < waiting.sent_at  # the time is back


def test_what_is_later_or_not_drained_is_not_touched() -> None:
    tasks.add.schedule(HOUR * 5, 1)
    tasks.mail.schedule(HOUR, "a@example.org")
    queues.pause("bulk", actor="ann")
    tasks.add.with_options(queue="bulk").schedule(HOUR, 1)
    before = list(Task.objects.order_by("id").values())

    assert drain(queues=["default", "bulk"], until=HOUR * 4) == 0
    assert list(Task.objects.order_by("id").values()) == before
    assert drain(queues=["mail"], until=HOUR * 4) == 1


def test_a_run_that_cannot_be_advanced_ends_the_drain(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that cannot be advanced ends the drain with the error of the database.

    Fails if: the advance is repeated again and again, and the test never ends.
    """
    monkeypatch.setattr(advancer, "BUSY_TRIES", 3)
    flow = Workflow("refused")
    flow.add(flows.number, 1)
    handle = flow.send()
    said = f"^workflow run {handle.workflow_id} cannot be advanced: "

    with (
        refused("horsies_workflow_nodes", f"new.workflow_id = '{handle.workflow_id}'"),
        pytest.raises(WorkflowError, match=f"{said}refused$"),
    ):
        drain()

    with (
        connect().transaction() as other,
        pytest.raises(WorkflowError, match=f"{said}another trans"),
    ):
        other.connection.execute("SELECT FROM horsies_workflows FOR UPDATE")
        drain()

    drain()
    assert handle.status() == "COMPLETED"


@task(retry_policy=RetryPolicy.fixed([60, 60, 60], jitter=False))
def record(name: str) -> str:
    Group.objects.create(name=name)
    return name


@task(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["BUSY"], jitter=False))
async def call() -> int:
    return await Group.objects.acount()


def attempts(handle: Any) -> list[tuple[str, str | None]]:
    found = TaskAttempt.objects.filter(task_id=handle.task_id)
    return list(found.order_by("started_at").values_list("outcome", "error_code"))


def test_the_next_attempts_fail_without_running_their_task() -> None:
    """The next attempts of the task fail without running it, and the later ones run."""
    handle = record.send("done")

    with fail_next(record, "BUSY", times=2, message="the line is busy"):
        tasks.note.send("other")
        assert drain() == 2
        assert [group.name for group in Group.objects.all()] == ["other"]
        assert drain(until=MINUTE * 10) == 2

    assert handle.get(0).ok_value == "done"
    assert attempts(handle) == [("FAILED", "BUSY"), ("FAILED", "BUSY"), ("COMPLETED", None)]
    assert handle.info().attempts[0].error_message == "the line is busy"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("handle", "failing", "error", "first"),
    [
        (lambda: call.send(), call, "BUSY", ("FAILED", "BUSY")),
        (
            lambda: record.send("done"),
            record,
            "WORKER_CRASHED",
            ("WORKER_FAILURE", "WORKER_CRASHED"),
        ),
        (lambda: record.send("done"), record, "TASK_TIMEOUT", ("FAILED", "TASK_TIMEOUT")),
        (
            lambda: tasks.mails.send(0),
            tasks.mails,
            tasks.MailDown("no answer"),
            ("FAILED", "MAIL_DOWN"),
        ),
    ],
)
def test_a_failure_is_mapped_and_retried_as_a_real_one(
    handle: Any, failing: Any, error: Any, first: Any
) -> None:
    """A failure of ``fail_next()`` is mapped and retried like an exception of the task.

    Fails if: it counts as an error that the task returned, which the usual policy does not retry.
    """
    sent = handle()

    with fail_next(failing, error):
        drain(until=MINUTE * 2)

    assert sent.get(0).is_ok()
    assert attempts(sent) == [first, ("COMPLETED", None)]


def test_a_failure_that_is_not_retried_is_final() -> None:
    """A failure that no policy retries is final.

    ``fail_next()`` also accepts what a task can raise, such as ``Retry`` and ``Skip``.
    """
    gone = call.send()
    declined = record.send("never")
    returned = TaskError("CARD_DECLINED", "no funds", data={"code": 51})  # as a task returns it

    with (
        fail_next(call, "GONE"),
        fail_next(record, returned),
        pytest.raises(ExceptionGroup, match="that failed: 2"),
    ):
        drain()

    assert gone.get(0).err_value.error_code == "GONE"
    assert declined.get(0).err_value == returned

    handle = record.send("later")
    skipped = record.send("never")

    with (
        fail_next(record, Retry("not yet", delay_seconds=600, code="TOO_EARLY")),
        fail_next(record, Skip("no need")),
    ):
        drain()

    info: Any = handle.info()
    assert info.next_retry_at - info.attempts[0].finished_at == MINUTE * 10
    assert skipped.get(0).err_value.error_code == "TASK_SKIPPED"


def test_a_failure_that_did_not_happen_fails_the_test() -> None:
    """A failure that no attempt used is an error of the test.

    Fails if: the test passes although the task did not run in the block, and the failure hits the
    next test.
    """
    record.send("done")
    words = r"2 attempts of .*record should have failed, but only 1 were made"

    with pytest.raises(AssertionError, match=words), fail_next(record, "BUSY", times=2):
        drain()

    drain(until=MINUTE * 2)
    assert Group.objects.get().name == "done"

    with pytest.raises(KeyError), fail_next(record, "BUSY"):
        raise KeyError("the error of the block comes first")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: drain(until=dt.datetime(2030, 1, 1)), "no time zone"),
        (lambda: drain(until=dt.timedelta(seconds=-1)), "is in the past"),
        (lambda: drain(until=3600), "an aware datetime or a timedelta, not int"),
        (lambda: drain(queues=["mial"]), "queues not declared: mial"),
        (lambda: fail_next(record, "busy"), "upper-case letters"),
        (lambda: fail_next(record, "TASK_EXPIRED"), "is reserved.*WORKER_CRASHED and TASK_TIMEOUT"),
        (lambda: fail_next(record, ConnectionError), "an error code, a TaskError or an exception"),
        (lambda: fail_next(record, "BUSY", times=0), "times must be an int of at least 1"),
        (lambda: fail_next(record, "BUSY", times=True), "times must be an int of at least 1"),
        (lambda: fail_next("nowhere.record", "BUSY"), "no task named 'nowhere.record'"),
        (
            lambda: ExitStack().enter_context(travel(dt.datetime(2031, 5, 1))),
            "to=.* has no time zone",
        ),
        (lambda: ExitStack().enter_context(travel(60)), "to takes an aware datetime"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError), match=words):
        call()


class InAsyncTests(TestCase):
    async def test_failures_and_time_are_those_of_async_code_too(self) -> None:
        """Failures and time apply to async code, too.

        Fails if: the time is set in the thread that entered the block, where async code cannot read
        it.
        """
        async with travel(MOMENT), fail_next(call, "GONE"):
            handle = await call.asend()
            assert await adrain(raise_errors=False) == 1

        assert (await handle.aget(0)).err_value.error_code == "GONE"
        assert aware((await handle.ainfo()).finished_at) == MOMENT  # type: ignore[union-attr, arg-type]

        with travel(MOMENT):
            there = await tasks.add.asend(1)
        after = await tasks.add.asend(1)

        assert aware((await there.ainfo()).sent_at) == MOMENT  # type: ignore[union-attr]
        assert aware((await after.ainfo()).sent_at) < MOMENT  # type: ignore[union-attr]

    @travel(MOMENT)
    @fail_next(record, "BUSY")
    async def test_they_decorate_tests(self) -> None:
        handle = await record.asend("done")
        await adrain()

        info: Any = await handle.ainfo()
        assert (aware(info.sent_at), info.retry_count) == (MOMENT, 1)


@pytest.mark.parametrize("to", [MOMENT, dt.timedelta(days=-40)])
def test_what_is_sent_there_is_sent_at_that_time_and_runs_at_it(
    to: dt.datetime | dt.timedelta,
) -> None:
    with travel(to) as now:
        assert now == to or isinstance(to, dt.timedelta)
        handle = tasks.add.send(1)
        later = tasks.add.schedule(HOUR, 2)
        assert drain() == 1

    info: Any = handle.info()
    assert info.sent_at == info.enqueued_at == info.started_at == info.finished_at
    assert (aware(info.sent_at), aware(later.info().enqueued_at)) == (now, now + HOUR)  # type: ignore[union-attr]


def test_due_tasks_run_at_the_moved_time() -> None:
    """Tasks that are due by the moved time run at that time, as if no worker had run before.

    Fails if: tasks run at their own times, as in ``drain(until=...)``, so that none expires.
    """
    policy = RetryPolicy.fixed([60], jitter=False)
    late = tasks.add.schedule(HOUR, 1)
    retried = tasks.mails.with_options(retry_policy=policy).send(1)
    expired = tasks.add.with_options(good_until=HOUR).send(1)
    future = tasks.add.schedule(HOUR * 3, 1)

    with travel(HOUR * 2) as now:
        assert drain() == 2
        assert expired.info().status == "EXPIRED"  # type: ignore[union-attr]
        assert aware(late.info().started_at) == now  # type: ignore[union-attr, arg-type]
        assert aware(retried.info().next_retry_at) == now + MINUTE  # type: ignore[union-attr, arg-type]
        assert drain() == 0, "time stands still"
        assert drain(until=dt.timedelta(minutes=2)) == 1, "it moves on from there"

    assert retried.get(0).ok_value == 2
    assert future.info().status == "PENDING"  # type: ignore[union-attr]


def test_blocks_add_up_and_end_where_they_began() -> None:
    with pytest.raises(KeyError), travel(MOMENT), travel(HOUR) as now, travel(-HOUR * 3) as before:
        assert (now, before) == (MOMENT + HOUR, MOMENT - HOUR * 2)
        handle = tasks.add.send(1)
        raise KeyError

    assert aware(handle.info().sent_at) == before  # type: ignore[union-attr]
    assert abs(aware(tasks.add.send(1).info().sent_at) - dt.datetime.now(dt.UTC)) < HOUR  # type: ignore[union-attr]


def test_waits_of_workflows_end_there() -> None:
    flow = Workflow("patient")
    flow.add(flows.number, 1, after=flow.sleep(dt.timedelta(days=30)))
    handle = flow.send()
    drain()

    with travel(dt.timedelta(days=29)):
        drain()
        assert handle.status() == "RUNNING"

    with travel(dt.timedelta(days=31)):
        drain()
        assert handle.status() == "COMPLETED"


# A clock that the test has moved


@pytest.fixture(params=[2020, 2031])
def moved_clock(request: pytest.FixtureRequest) -> Iterator[dt.datetime]:
    """Yield the time of Python's clock, which stands still in another year than the database's."""
    moment = dt.datetime(request.param, 1, 1, tzinfo=dt.UTC)
    with time_machine.travel(moment, tick=False):
        yield moment


def test_a_timedelta_counts_from_the_clock_of_the_database(moved_clock: dt.datetime) -> None:
    """Fails if: it counts from Python's clock, so that all tasks or none are due."""
    year = dt.timedelta(days=365)
    soon = tasks.add.schedule(HOUR, 1)
    late = tasks.add.schedule(year, 1)
    expired = tasks.add.with_options(good_until=HOUR).send(1)

    with travel(HOUR * 2):
        there = tasks.add.send(2)
        ran = drain()

    assert (ran, expired.info().status) == (2, "EXPIRED")  # type: ignore[union-attr]
    assert drain(until=HOUR * 3) == 0
    assert drain(until=year + HOUR) == 1
    assert [handle.get(0).ok_value for handle in (soon, there, late)] == [1, 2, 1]


def test_retries_and_timers_end_under_a_moved_clock(moved_clock: dt.datetime) -> None:
    policy = RetryPolicy.fixed([60], jitter=False)
    retried = tasks.mails.with_options(retry_policy=policy).send(1)
    flow = Workflow("patient")
    flow.add(flows.number, 1, after=flow.sleep(HOUR))
    flow.send()

    counts = [drain(), drain(until=MINUTE * 5), drain(until=HOUR * 2)]

    assert counts == [1, 1, 1]
    assert retried.get(0).ok_value == 2


def test_a_datetime_of_a_moved_clock_is_that_time(moved_clock: dt.datetime) -> None:
    tasks.add.schedule(moved_clock + HOUR, 1)

    assert drain(until=moved_clock + HOUR * 2) == 1


def test_a_plain_with_that_needs_the_database_is_refused() -> None:
    async def enter() -> None:
        with travel(HOUR):
            pass

    with pytest.raises(RuntimeError, match=r"use 'async with travel\(\.\.\.\)'"):
        asyncio.run(enter())


def test_ids_do_not_stay_in_the_future_of_a_moved_clock() -> None:
    with time_machine.travel(MOMENT):
        there = uuid7()

    after = [uuid7(), uuid7()]

    assert after[0] < after[1] < there


# Cancels


@task
def cancels_itself(checks: bool) -> str:
    handle = get_handle(current_task().task_id)  # type: ignore[arg-type]
    assert not current_task().cancel_requested
    handle.cancel()

    if checks:
        current_task().raise_if_cancelled()
    return "done"


@task
async def acancels_itself() -> str:
    await get_handle(current_task().task_id).acancel()  # type: ignore[arg-type]
    await asyncio.get_running_loop().create_future()
    return "done"


@task
async def acancels_another(other: str) -> str:
    return await get_handle(other).acancel()


@task
async def awaits() -> str:
    await asyncio.get_running_loop().create_future()
    return "done"


@task
def cancels_others(ids: list[str]) -> list[str]:
    return sorted(cancel_many(map(uuid.UUID, ids)).values())


@task
def checks() -> None:
    current_task().raise_if_cancelled()


@task
def cancels_run() -> None:
    run = Task.objects.values_list("workflow_id", flat=True).get(pk=current_task().task_id)
    get_workflow(run).cancel()
    current_task().raise_if_cancelled()


def test_a_cancel_of_a_running_task_ends_it_as_a_worker_would() -> None:
    """A task that is cancelled while it runs ends as in a worker.

    Fails if: the running task gets no request to stop and completes, unlike in production.
    """
    handles = [cancels_itself.send(True), cancels_itself.send(False), acancels_itself.send()]

    assert drain() == 3

    assert [handle.info().status for handle in handles] == ["CANCELLED", "COMPLETED", "CANCELLED"]  # type: ignore[union-attr]
    assert (
        handles[0].get(0).err_value.error_code
        == handles[2].get(0).err_value.error_code
        == "TASK_CANCELLED"
    )


def test_a_cancel_before_a_claimed_task_begins_is_passed_on() -> None:
    sync = checks.send()
    late = awaits.send()
    first = cancels_others.with_options(priority=1).send([str(one.task_id) for one in (sync, late)])

    drain()

    assert first.get(0).ok_value == ["REQUESTED", "REQUESTED"]
    assert [handle.info().status for handle in (sync, late)] == ["CANCELLED", "CANCELLED"]  # type: ignore[union-attr]


def test_the_cancel_of_a_run_reaches_its_running_task() -> None:
    flow = Workflow("cancels itself")
    flow.add(cancels_run)
    handle = flow.send()

    drain()

    assert handle.status() == "CANCELLED"
    assert Task.objects.get().status == "CANCELLED"


def test_async_tasks_that_run_together_cancel_one_another() -> None:
    late = awaits.send()
    other = acancels_another.send(str(late.task_id))

    assert drain() == 2

    assert [handle.info().status for handle in (late, other)] == ["CANCELLED", "COMPLETED"]  # type: ignore[union-attr]
