"""Keys of sends: the same key gives the first task, whatever became of it, also when several send it at the same time."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection, transaction

from horsies_django import TaskSendError, Workflow, WorkflowDefinitionError
from horsies_django.models import SendKey, Task
from horsies_django.store.retention import RetentionStore
from horsies_django.tasks import redaction
from horsies_django.testing import drain
from tests.apps.project import tasks
from tests.conftest import Connect, sql
from tests.db.conftest import Aside, wait_for_anybody

pytestmark = pytest.mark.django_db(transaction=True)
once = tasks.add.with_options(key="evt_1")


def test_the_same_key_gives_the_first_task_whatever_became_of_it() -> None:
    first = once.send(1, 2)
    assert first.is_new
    again = once.send(1, b=2)  # the same arguments, given in another way
    assert (again.task_id, again.is_new) == (first.task_id, False)
    drain()
    assert once.send(1, 2).get(0).ok_value == 3
    assert Task.objects.count() == 1
    Task.objects.all().delete()  # as the pruner does
    gone = once.schedule(60, 1, 2)
    assert (gone.task_id, gone.is_new) == (first.task_id, False)
    assert gone.get(0).err_value.error_code == "TASK_NOT_FOUND"


def test_a_key_is_of_one_task_and_other_keys_are_other_work() -> None:
    sent = [
        once.send(1, 2),
        tasks.add.with_options(key="evt_2").send(1, 2),
        tasks.noop.with_options(key="evt_1").send(),
    ]
    assert [handle.is_new for handle in sent] == [True] * 3
    assert Task.objects.count() == 3


def test_other_arguments_are_a_conflict() -> None:
    """Naive: the second request is lost, and its caller believes that it was taken."""
    first = once.send(1, 2)
    with pytest.raises(
        TaskSendError, match=f"'evt_1' was used for task {first.task_id}, with other arguments"
    ) as caught:
        once.send(1, 3)
    assert (caught.value.code, caught.value.retryable) == ("KEY_CONFLICT", False)
    assert Task.objects.count() == 1


def test_a_rolled_back_send_frees_its_key() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        once.send(1, 2)
        assert not once.send(1, 2).is_new
        raise ZeroDivisionError
    assert not SendKey.objects.exists()
    assert once.send(1, 3).is_new


def test_an_old_key_is_taken_over_and_pruned(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "RETENTION": {"KEY_HOURS": 2}}
    first = once.send(1, 2)
    two_hours = dt.timedelta(hours=2)
    SendKey.objects.update(sent_at=SendKey.objects.get().sent_at - two_hours)
    second = once.send(1, 3)
    assert second.is_new
    assert second.task_id != first.task_id
    assert not once.send(1, 3).is_new
    store = RetentionStore(connection)
    assert store.prune_keys(two_hours, 10) == 0
    SendKey.objects.update(sent_at=SendKey.objects.get().sent_at - two_hours)
    assert store.prune_keys(two_hours, 10) == 1
    settings.HORSIES = {**settings.HORSIES, "RETENTION": {"KEY_HOURS": None}}
    once.send(1, 3)
    SendKey.objects.update(sent_at="2000-01-01 00:00Z")
    assert not once.send(1, 3).is_new, "it is kept for ever"


def test_redaction_removes_the_key_of_the_task() -> None:
    handle = once.send(1, 2)
    drain()
    redaction.redact(handle.task_id, actor="ada", reason="asked for")
    assert not SendKey.objects.exists()


def sent_aside(aside: Aside, sender: Any) -> Future[tuple[Any, bool]]:
    def send() -> tuple[Any, bool]:
        handle = sender.send(1, 2)
        return handle.task_id, handle.is_new

    return aside(send)


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_sender_waits_for_the_first_and_finds_what_became_of_it(
    aside: Aside, connect: Connect, commits: bool
) -> None:
    with transaction.atomic():
        first = once.send(1, 2)
        second = sent_aside(aside, once)
        wait_for_anybody(connect())
        transaction.set_rollback(not commits)
    id_, is_new = second.result(30)
    assert is_new is not commits
    assert (id_ == first.task_id) is commits
    assert Task.objects.count() == 1


def test_a_sender_that_waits_for_too_long_is_told_to_try_again(aside: Aside, settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "UNIQUE_LOCK_TIMEOUT_MS": 50}
    with transaction.atomic():
        once.send(1, 2)
        with pytest.raises(TaskSendError) as caught:
            sent_aside(aside, once).result(30)
    assert (caught.value.code, caught.value.retryable) == ("ENQUEUE_FAILED", True)
    assert sql("SHOW lock_timeout") == [("0",)], "the session has its own again"


def test_many_senders_of_one_key_send_one_task(aside: Aside) -> None:
    found = [sent_aside(aside, once) for _ in range(8)]
    results = [each.result(30) for each in found]
    assert sum(is_new for _, is_new in results) == 1
    assert len({id_ for id_, _ in results}) == Task.objects.count() == 1


def test_a_key_is_refused_where_it_has_no_meaning() -> None:
    for wrong in ("", 7, "x" * 256, "a\0b"):
        with pytest.raises(TaskSendError, match="key"):
            tasks.add.with_options(key=wrong).send(1, 2)  # type: ignore[arg-type]
    with pytest.raises(TaskSendError, match="send_many"):
        once.send_many([{"a": 1, "b": 2}])
    flow = Workflow("keyed")
    flow.add(once, 1, 2)
    with pytest.raises(WorkflowDefinitionError, match="a node takes no key"):
        flow.send()
