"""What an ordered queue refuses at the send, and in the definition of a schedule: a delay and a priority of a task of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from horsies_django import TaskSendError, Workflow, queues
from horsies_django.core.errors import TaskNotRetryable, TaskSendErrorCode, WorkflowDefinitionError
from horsies_django.models import Task
from horsies_django.schedules import problems
from horsies_django.testing import drain
from tests.apps.errands import tasks as plain
from tests.apps.project import tasks

LATER = dt.datetime(2300, 1, 1, tzinfo=dt.UTC)
ORDERED = {"by_args": ["account_id"], "ordered": True}
LIVE = {"partition_by_args": ["account_id"], "partition_policy": "stop"}
SENDS: dict[str, Callable[[], Any]] = {
    "delay": lambda: tasks.add.with_options(queue="mail", delay=60).send(1, 2),
    "schedule": lambda: tasks.add.with_options(queue="mail").schedule(60, 1, 2),
    "a time": lambda: tasks.add.with_options(queue="mail").schedule(LATER, 1, 2),
    "priority": lambda: tasks.add.with_options(queue="mail", priority=5).send(1, 2),
    "many": lambda: tasks.add.with_options(queue="mail", priority=5).send_many([{"a": 1, "b": 2}]),
    "django.tasks": lambda: plain.note.using(queue_name="mail", priority=5).enqueue(1),
    "run_after": lambda: plain.note.using(queue_name="mail", run_after=LATER).enqueue(1),
}  # fmt: skip


@pytest.fixture
def declared(settings: Any) -> None:
    """Declare the queue of the sends as ordered."""
    settings.HORSIES = {**settings.HORSIES, "QUEUES": {**settings.HORSIES["QUEUES"], "mail": {"partition": ORDERED}}}


@pytest.mark.django_db
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_queue_that_the_settings_order_takes_no_delay_and_no_priority(
    declared: None, send: Callable[[], Any]
) -> None:
    with pytest.raises(TaskSendError, match="the queue 'mail' is ordered, so its tasks run in the order") as caught:
        send()
    assert (caught.value.code, caught.value.retryable) == (TaskSendErrorCode.VALIDATION_FAILED, False)
    assert "another queue" in caught.value.message
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in the caller's transaction"])
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_queue_that_was_ordered_since_refuses_them_with_the_same_error(send: Callable[[], Any], inside: bool) -> None:
    """Naive: the error of the driver goes through, as DataError."""
    queues.change("mail", LIVE, actor="ann")
    with pytest.raises(TaskSendError, match='queue "mail" is ordered: its tasks run in the order') as caught:
        if inside:
            with transaction.atomic():
                send()
        else:
            send()
    assert (caught.value.code, caught.value.retryable) == (TaskSendErrorCode.VALIDATION_FAILED, False)
    assert "\n" not in caught.value.message
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_usual_sends_to_an_ordered_queue_are_sent(declared: None) -> None:
    queues.change("mail", LIVE, actor="ann")
    tasks.add.with_options(queue="mail", priority=100).send(1, 2)
    tasks.add.with_options(queue="mail").send_many([{"a": 1, "b": 2}] * 2)
    plain.note.using(queue_name="mail").enqueue(1)
    tasks.add.with_options(priority=5, delay=60).send(1, 2)
    assert Task.objects.filter(queue_name="mail", ordered=True).count() == 4


@pytest.mark.django_db
def test_many_that_are_sent_at_once_run_in_the_order_of_the_calls(declared: None) -> None:
    """Naive: the rows of one INSERT have the same time, and their ids or the lanes decide."""
    queues.change("mail", {**LIVE, "partition_by_args": ["b"]}, actor="ann")
    handles = tasks.add.with_options(queue="mail").send_many([{"a": number, "b": 1} for number in range(20)])
    last = tasks.add.with_options(queue="mail").send(0, 1)
    assert drain() == 21
    ran = Task.objects.order_by("started_at").values_list("pk", flat=True)
    assert list(ran) == [handle.task_id for handle in (*handles, last)]


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{"delay": 60}, {"priority": 5}], ids=str)
def test_a_node_of_a_workflow_takes_neither(declared: None, options: dict[str, Any]) -> None:
    flow = Workflow("books")
    flow.add(tasks.add.with_options(queue="mail", **options), 1, 2)
    with pytest.raises(WorkflowDefinitionError, match="the queue 'mail' is ordered"):
        flow.send()


@pytest.mark.django_db(transaction=True)
def test_a_node_that_the_database_refuses_fails_with_the_reason() -> None:
    queues.change("mail", LIVE, actor="ann")
    flow = Workflow("books")
    flow.add(tasks.add.with_options(queue="mail", priority=5), 1, 2)
    error = flow.send().results()["add"].err_value
    assert (error.error_code, 'queue "mail" is ordered' in error.message) == ("NODE_NOT_SENT", True)


@pytest.mark.parametrize(
    ("more", "wrong"), [({}, []), ({"priority": 100}, []), ({"priority": 5}, ["priority"])], ids=str
)
def test_a_schedule_for_an_ordered_queue_has_no_priority(
    declared: None, more: dict[str, Any], wrong: list[str]
) -> None:
    definition = {
        "task": tasks.add.name,
        "pattern": "daily at 04:30",
        "queue": "mail",
        "kwargs": {"a": 1, "b": 2},
        **more,
    }
    found = problems("nightly", definition)
    assert [key for key, _ in found] == wrong
    assert all("'mail' run in the order in which they were sent" in text for _, text in found)


@pytest.mark.django_db
def test_a_merged_task_is_not_retried_and_says_which_one_ran_for_it() -> None:
    merging = {"partition_by_args": [], "partition_by_task": True, "partition_policy": "coalesce"}
    queues.change("mail", merging, actor="ann")
    one, two = (tasks.add.with_options(queue="mail", priority=5).send(1, 2) for _ in range(2))
    assert drain() == 1
    merged, ran = (one, two) if one.info().error_code == "MERGED" else (two, one)
    assert (merged.info().status, ran.get(timeout_ms=0).ok_value) == ("CANCELLED", 3)
    with pytest.raises(TaskNotRetryable, match=f"was merged into task {ran.task_id}, which ran for it: retry that one"):
        merged.retry()
