"""A rolling deploy: workers of the old and of the new code run side by side, and no task is lost between them."""

from __future__ import annotations

import datetime as dt

import pytest

from horsies_django import TaskHandle
from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.factories import now
from tests.support.workers import Start

OLD = {"DJANGO_SETTINGS_MODULE": "tests.settings.old_code"}
GRACE = dt.timedelta(minutes=5)
GIVEN_BACK = "unknown to this worker"


def row(handle: TaskHandle[object]) -> Task:
    return Task.objects.get(pk=handle.task_id)


@pytest.mark.parametrize("soft", ["", "1"], ids=["hard mode", "soft mode"])
def test_a_new_task_waits_for_a_worker_of_the_new_code_and_the_old_one_runs_the_rest(worker: Start, soft: str) -> None:
    old = worker("--processes=1", HORSIES_TEST_SOFT=soft, **OLD).ready()
    new_tasks = [tasks.add.send(number) for number in range(8)]
    wait_until(lambda: GIVEN_BACK in old.log, "the old worker gives back")
    assert tasks.noop.send().get(timeout_ms=30_000).is_ok(), "it goes on with what it knows"
    wait_until(lambda: Task.objects.filter(status="PENDING").count() == 8, "all of them are back")
    assert TaskAttempt.objects.count() == 1
    worker("--processes=1").ready()
    assert [handle.get(timeout_ms=30_000).ok_value for handle in new_tasks] == list(range(8))
    attempts = TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in new_tasks])
    assert [attempt.attempt for attempt in attempts] == [1] * 8
    assert old.log.count(GIVEN_BACK) == 1
    assert old.stop() == 0


def test_a_worker_that_ends_when_nothing_is_left_to_do_leaves_to_others_what_it_does_not_know(worker: Start) -> None:
    strange, known, aged = tasks.add.send(1), tasks.noop.send(), tasks.add.send(2)
    Task.objects.filter(pk=aged.task_id).update(enqueued_at=now() - 2 * GRACE)
    assert worker("--processes=1", "--until-empty", **OLD).wait() == 0
    assert (row(strange).status, row(strange).retry_count) == ("PENDING", 0)
    assert row(known).status == "COMPLETED"
    assert row(aged).error_code == "WORKER_RESOLUTION_ERROR"
    assert not TaskAttempt.objects.filter(task_id=strange.task_id).exists()
