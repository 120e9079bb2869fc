"""A rolling deploy: workers of the old and of the new code run side by side, and no task is lost between them."""

from __future__ import annotations

import datetime as dt

import pytest

from horsies_django import TaskHandle, get_handle
from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import limit, put, wait_until
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


def test_workers_that_know_as_little_do_not_pass_a_task_to_and_fro(worker: Start) -> None:
    limit("default", max_concurrency=4)
    olds = [worker("--processes=2", **OLD).ready() for _ in range(2)]
    first = tasks.add.send(1)
    wait_until(lambda: all(GIVEN_BACK in old.log for old in olds), "both have met it")
    wait_until(lambda: (row(first).status, row(first).claim_generation) == ("PENDING", 2), "each has given it back")
    more = [tasks.add.send(number) for number in range(10)]
    noops = [tasks.noop.send() for _ in range(30)]  # each frees a permit while the others wait
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in noops)
    assert row(first).claim_generation == 2
    assert {row(handle).claim_generation for handle in more} == {0}
    worker("--processes=2").ready()
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in (first, *more))


@pytest.mark.promise("S2.21")
def test_a_task_that_nobody_knows_fails_as_soon_as_the_grace_ends(worker: Start) -> None:
    late = {"HORSIES_TEST_GRACE_MS": "3000", "HORSIES_TEST_POLL_MS": "300000"}
    process = worker("--processes=1", **late).ready()
    (id_,) = put(name="gone.tasks.vanished")
    (async_id,) = put(name="gone.tasks.avanished", lane="async")
    for handle in (get_handle(id_), get_handle(async_id)):
        assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKER_RESOLUTION_ERROR"
        info = handle.info()
        assert (info.started_at - info.enqueued_at).total_seconds() >= 3
        assert len(info.attempts) == 1
    assert GIVEN_BACK in process.log


@pytest.mark.usefixtures("shared_worker")
def test_what_a_newer_release_sent_waits_for_it_and_fails_when_none_comes() -> None:
    young, aged = put(2, name="tests.apps.project.tasks.noop", options='{"wire": 3}')
    Task.objects.filter(pk=aged).update(enqueued_at=now() - 2 * GRACE)
    found = get_handle(aged).get(timeout_ms=30_000).err_value
    assert found.error_code == "WORKER_RESOLUTION_ERROR"
    assert "update the workers" in found.message
    task = wait_until(
        lambda: Task.objects.filter(pk=young, status="PENDING").first(), "the young one is left to others"
    )
    assert task.retry_count == 0
    assert not TaskAttempt.objects.filter(task_id=young).exists()


def test_a_worker_that_ends_when_nothing_is_left_to_do_leaves_to_others_what_it_does_not_know(worker: Start) -> None:
    strange, known, aged = tasks.add.send(1), tasks.noop.send(), tasks.add.send(2)
    Task.objects.filter(pk=aged.task_id).update(enqueued_at=now() - 2 * GRACE)
    assert worker("--processes=1", "--until-empty", **OLD).wait() == 0
    assert (row(strange).status, row(strange).retry_count) == ("PENDING", 0)
    assert row(known).status == "COMPLETED"
    assert row(aged).error_code == "WORKER_RESOLUTION_ERROR"
    assert not TaskAttempt.objects.filter(task_id=strange.task_id).exists()
