"""Retries as a project writes them: on the decorator, by mapped exceptions, from inside the task."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from horsies_django import RetryPolicy, TaskDefinitionError, TaskSendError, task
from horsies_django.conf import parse
from horsies_django.models import Task, TaskAttempt
from horsies_django.testing import drain
from tests.apps.project import tasks

pytestmark = pytest.mark.django_db


def test_a_task_that_fails_with_a_listed_code_is_tried_again_until_it_succeeds() -> None:
    handle = tasks.mails.send(2)
    assert drain() == 3
    assert handle.get(0).ok_value == 3
    attempts = TaskAttempt.objects.order_by("attempt")
    assert [(one.outcome, one.error_code, one.will_retry) for one in attempts] == [
        ("FAILED", "MAIL_DOWN", True), ("FAILED", "MAIL_DOWN", True), ("COMPLETED", None, False),
    ]  # fmt: skip
    info = handle.info()
    assert info is not None
    assert (info.retry_count, info.max_retries, len(info.attempts)) == (2, 2, 3)


def test_a_task_that_fails_more_often_than_its_policy_allows_keeps_its_last_error() -> None:
    handle = tasks.mails.send(9)
    assert drain(raise_errors=False) == 3
    error = handle.get(0).err_value
    assert (error.error_code, error.message) == ("MAIL_DOWN", "MailDown: no answer")


@pytest.mark.parametrize(
    ("policy", "ran"),
    [
        (RetryPolicy.fixed([0, 0]), 3),  # without a list: any exception
        (RetryPolicy.fixed([0, 0], auto_retry_for=[tasks.MailDown]), 3),  # whatever code its mapper gives it
        (RetryPolicy.fixed([0, 0], auto_retry_for=[OSError]), 3),
        (RetryPolicy.fixed([0, 0], auto_retry_for=["tests.apps.project.tasks.MailDown"]), 3),
        (RetryPolicy.fixed([0, 0], auto_retry_for=[LookupError, "OTHER"]), 1),
        (RetryPolicy.fixed([0, 0], auto_retry_for=[]), 1),
    ],
)
def test_an_exception_is_tried_again_without_a_list_by_its_class_or_by_a_base_class(
    policy: RetryPolicy, ran: int
) -> None:
    handle = tasks.mails.with_options(retry_policy=policy).send(9)
    assert drain(raise_errors=False) == ran
    assert handle.get(0).err_value.error_code == "MAIL_DOWN"


@pytest.mark.parametrize(("send", "ran"), [("araises", 2), ("raises", 2), ("breaks_sql", 2), ("exits", 1)])
def test_without_a_list_an_exception_of_any_kind_of_task_is_tried_again_and_an_exit_is_not(send: str, ran: int) -> None:
    arguments = {"raises": ["no"], "exits": [3]}.get(send, [])
    getattr(tasks, send).with_options(retry_policy=RetryPolicy.fixed([0])).send(*arguments)
    assert drain(raise_errors=False) == ran


@pytest.mark.parametrize(("listed", "ran"), [({}, 1), ({"auto_retry_for": ["NO_ADDRESS"]}, 2)])
def test_an_error_that_was_returned_is_an_answer_and_tried_again_only_where_it_is_listed(
    listed: dict[str, Any], ran: int
) -> None:
    tasks.mail.with_options(retry_policy=RetryPolicy.fixed([0], **listed)).send("nowhere")
    assert drain(raise_errors=False) == ran


def test_a_send_may_choose_another_policy() -> None:
    handle = tasks.mails.with_options(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["MAIL_DOWN"])).send(1)
    assert drain() == 1
    row = Task.objects.get(pk=handle.task_id)
    assert (row.status, row.retry_count, row.max_retries) == ("PENDING", 1, 1)
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT"


@pytest.mark.parametrize(("delay", "code", "expected"), [(7.5, None, "RETRY_REQUESTED"), (None, "BUSY", "BUSY")])
def test_a_task_asks_for_its_retry_itself(delay: float | None, code: str | None, expected: str) -> None:
    handle = tasks.asks_again.send(delay, code)
    drain()
    row, attempt = Task.objects.get(pk=handle.task_id), TaskAttempt.objects.get()
    assert row.status == "PENDING"
    assert row.next_retry_at is not None
    assert row.next_retry_at - attempt.finished_at == dt.timedelta(seconds=60 if delay is None else delay)
    assert (attempt.error_code, attempt.error_message, attempt.will_retry) == (expected, "come back later", True)


def test_the_last_request_is_what_the_task_failed_with() -> None:
    handle = tasks.asks_again.send(0, None)
    assert drain(raise_errors=False) == 2
    error = handle.get(0).err_value
    assert (error.error_code, error.data) == ("RETRY_REQUESTED", {"after": 0})
    assert error.exception is not None
    assert error.exception["type"] == "MailDown"


def test_asking_without_a_policy_fails_and_says_what_to_write() -> None:
    handle = tasks.asks_again_without_a_policy.send()
    assert drain(raise_errors=False) == 1
    assert "write @task(retry_policy=RetryPolicy.fixed([60, 300]))" in handle.get(0).err_value.message


def test_the_mapper_of_the_settings_holds_for_all_tasks(settings: Any) -> None:
    mapper = {"builtins.LookupError": "NOT_THERE", OSError: "IO"}
    settings.HORSIES = {**settings.HORSIES, "EXCEPTION_MAPPER": mapper}
    handle = tasks.raises.send("x")
    drain(raise_errors=False)
    assert handle.get(0).err_value.error_code == "NOT_THERE"


def test_a_mapper_in_the_settings_that_cannot_be_used_is_a_problem_for_each_entry() -> None:
    mapper = {"no.such.Error": "X", OSError: "WORKER_CRASHED", 7: "Y", "builtins.KeyError": "FINE"}
    config, problems = parse({"EXCEPTION_MAPPER": mapper}, databases={"default"})
    assert [problem.id for problem in problems] == ["E020", "E020", "E020"]
    assert dict(config.exception_mapper) == {KeyError: "FINE"}
    assert [one.id for one in parse({"EXCEPTION_MAPPER": []}, databases={"default"})[1]] == ["E001"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry_policy": [60]}, "RetryPolicy.fixed"),
        ({"exception_mapper": {OSError: "lower"}}, "exception_mapper"),
        ({"timeout_ms": 5}, "timeout_ms must be"),
        ({"timeout_ms": dt.timedelta(days=40)}, "timeout_ms must be"),
    ],
)
def test_a_task_with_options_that_cannot_be_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskDefinitionError, match=said):

        @task(**options)
        def never() -> None: ...


def test_a_send_with_options_that_cannot_be_is_refused() -> None:
    with pytest.raises(TaskSendError, match="timeout_ms"):
        tasks.noop.with_options(timeout_ms=True).send()
    with pytest.raises(TaskSendError, match="RetryPolicy"):
        tasks.noop.with_options(retry_policy=3).send()  # type: ignore[arg-type]
    assert not Task.objects.exists()
