"""fail_next(): attempts that fail instead of running, as retries, workflows and undos see them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth.models import Group
from django.test import TestCase

from horsies_django import Retry, RetryPolicy, Skip, TaskError, Workflow, task
from horsies_django.models import TaskAttempt
from horsies_django.testing import adrain, drain, fail_next, immediate
from tests.apps.project import flows, tasks

pytestmark = pytest.mark.django_db
MINUTE = dt.timedelta(minutes=1)


@task(retry_policy=RetryPolicy.fixed([60, 60, 60], jitter=False))
def record(name: str) -> str:
    Group.objects.create(name=name)
    return name


@task(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["BUSY"], jitter=False))
async def call() -> int:
    return await Group.objects.acount()


def attempts() -> list[tuple[str, str | None]]:
    return list(TaskAttempt.objects.order_by("started_at").values_list("outcome", "error_code"))


def test_the_next_attempts_fail_without_running_and_the_later_ones_run() -> None:
    """Naive: the function runs, and only its result is replaced; or every attempt fails."""
    handle = record.send("done")
    with fail_next(record, "BUSY", times=2, message="the line is busy"):
        assert drain() == 1
        assert not Group.objects.exists()
        assert drain(until=MINUTE * 10) == 2
    assert handle.get(0).ok_value == "done"
    assert attempts() == [("FAILED", "BUSY"), ("FAILED", "BUSY"), ("COMPLETED", None)]
    assert handle.info().attempts[0].error_message == "the line is busy"  # type: ignore[union-attr]


def test_only_that_task_fails() -> None:
    with fail_next(record, "BUSY"):
        record.send("one")
        other = tasks.note.send("other")
        drain()
    assert other.get(0).is_ok()
    assert [group.name for group in Group.objects.all()] == ["other"]


def test_a_code_is_retried_as_an_exception_with_that_code_would_be() -> None:
    """Naive: it is an error that the task returned, which the usual policy does not retry."""
    handles = [record.send("by class"), call.send()]
    with fail_next(record, "BUSY"), fail_next(call, "BUSY"):
        assert drain() == 2
    assert [handle.info().status for handle in handles] == ["PENDING", "PENDING"]  # type: ignore[union-attr]
    drain(until=MINUTE * 2)
    assert [handle.get(0).is_ok() for handle in handles] == [True, True]
    handle = call.send()
    with fail_next(call, "GONE"), pytest.raises(ExceptionGroup, match="tasks that failed: 1"):
        drain()
    assert handle.get(0).err_value.error_code == "GONE"


def test_an_exception_is_mapped_and_retried_as_if_the_task_had_raised_it() -> None:
    handle = tasks.mails.send(0)
    with fail_next(tasks.mails, tasks.MailDown("no answer")):
        drain()
    assert handle.get(0).ok_value == 1
    assert attempts() == [("FAILED", "MAIL_DOWN"), ("COMPLETED", None)]


def test_what_a_task_can_ask_for_can_be_asked_for() -> None:
    handle, skipped = record.send("later"), record.send("never")
    with fail_next(record, Retry("not yet", delay_seconds=600, code="TOO_EARLY")), fail_next(record, Skip("no need")):
        drain()
    info = handle.info()
    assert info is not None
    assert info.next_retry_at - info.attempts[0].finished_at == MINUTE * 10  # type: ignore[operator]
    assert skipped.get(0).err_value.error_code == "TASK_SKIPPED"


def test_a_task_error_is_one_that_the_task_returned() -> None:
    """Naive: it is retried, as no returned error is."""
    handle = record.send("never")
    with fail_next(record, TaskError("CARD_DECLINED", "no funds", data={"code": 51})):
        drain(raise_errors=False)
    assert handle.get(0).err_value == TaskError("CARD_DECLINED", "no funds", data={"code": 51})


@pytest.mark.parametrize(("code", "outcome"), [("WORKER_CRASHED", "WORKER_FAILURE"), ("TASK_TIMEOUT", "FAILED")])
def test_a_crash_and_a_timeout_are_retried_as_real_ones(code: str, outcome: str) -> None:
    handle = record.send("done")
    with fail_next(record, code):
        drain(until=MINUTE * 2)
    assert handle.get(0).ok_value == "done"
    assert attempts() == [(outcome, code), ("COMPLETED", None)]


def test_a_workflow_takes_its_path_for_failures_and_undoes_what_was_done() -> None:
    flow = Workflow("book")
    flow.add(flows.number, 1, after=flow.add(flows.charge, 7, undo=flows.refund))
    handle = flow.send()
    with fail_next(flows.number, "SOLD_OUT"):
        drain(raise_errors=False)
    assert handle.status() == "FAILED"
    flow = Workflow("book")
    flow.add(flows.broken, after=flow.add(flows.charge, 8, undo=flows.refund))
    handle = flow.send()
    with fail_next(flows.refund, "BANK_CLOSED"):
        drain(raise_errors=False)
    assert handle.get(0).err_value.error_code == "COMPENSATION_FAILED"


def test_in_immediate_the_attempt_of_the_send_fails() -> None:
    with immediate(raise_errors=False), fail_next("tests.apps.project.tasks.add", "NO_NUMBERS"):
        assert tasks.add.send(1).get(0).err_value.error_code == "NO_NUMBERS"
        assert tasks.add.send(1).get(0).is_ok()


def test_a_failure_that_did_not_happen_fails_the_test() -> None:
    """Naive: the test passes although the task was never run in the block, and the next test gets the failure."""
    record.send("done")
    words = r"2 attempts of .*record were to fail, and 1 were made"
    with pytest.raises(AssertionError, match=words), fail_next(record, "BUSY", times=2):
        drain()
    drain(until=MINUTE * 2)
    assert Group.objects.get().name == "done"


def test_the_error_of_the_block_comes_first() -> None:
    with pytest.raises(KeyError), fail_next(record, "BUSY"):
        raise KeyError("first")


def test_what_cannot_be_is_refused() -> None:
    for error, words in [
        ("busy", "upper-case letters"),
        ("TASK_EXPIRED", "is reserved.*WORKER_CRASHED and TASK_TIMEOUT"),
        (ConnectionError, "an error code, a TaskError or an exception"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            fail_next(record, error)  # type: ignore[arg-type]
    for times in (0, True, "2"):
        with pytest.raises(ValueError, match="times must be an int of at least 1"):
            fail_next(record, "BUSY", times=times)  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="no task named 'nowhere.record'"):
        fail_next("nowhere.record", "BUSY")


class InAsyncTests(TestCase):
    @fail_next(record, "BUSY")
    async def test_it_decorates_them(self) -> None:
        handle = await record.asend("done")
        await adrain()
        assert (await handle.ainfo()).retry_count == 1  # type: ignore[union-attr]

    async def test_async_tasks_fail_too(self) -> None:
        handle = await call.asend()
        async with fail_next(call, "GONE"):
            assert await adrain(raise_errors=False) == 1
        assert (await handle.aget(0)).err_value.error_code == "GONE"
