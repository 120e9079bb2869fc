"""Tasks of ``django.tasks`` through real workers: their results, their retries after crashes, and all that holds for any task."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from horsies_django.backends.exceptions import WorkerCrashed
from horsies_django.models import TaskAttempt
from tests.apps.errands import tasks
from tests.apps.errands.api import TaskResultStatus
from tests.conftest import wait_until
from tests.support.workers import Start

ERRANDS = {"DJANGO_SETTINGS_MODULE": "tests.settings.errands"}
FAILED, READY, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL


@pytest.fixture
def errands(worker: Start) -> Start:
    """Give a function that starts workers of a project whose app has tasks of ``django.tasks``."""
    return lambda *options, **environment: worker(*options, **ERRANDS, **environment).ready()


def finished(result: Any) -> Any:
    wait_until(lambda: result.refresh() or result.is_finished, f"{result.task.module_path} has finished")
    return result


@pytest.mark.boundary
def test_tasks_of_both_lanes_run_and_their_results_are_there_for_everybody(errands: Start) -> None:
    errands("--processes=1")
    sent = [tasks.add.enqueue(2, b=3), tasks.later.enqueue(4), tasks.which.enqueue(), tasks.which_async.enqueue()]
    sent.append(tasks.add.using(run_after=dt.timedelta(seconds=1)).enqueue(1))
    done = [finished(result) for result in sent]
    assert [result.status for result in done] == [SUCCESSFUL] * 5
    assert [result.return_value for result in done[:3]] == [5, 5, sent[2].id]
    assert done[3].return_value == [sent[3].id, 1, str(sent[3].enqueued_at), "default"]
    for result in done:
        assert result.enqueued_at <= result.started_at <= result.finished_at
    assert done[4].started_at - done[4].enqueued_at >= dt.timedelta(seconds=1)


def test_failures_come_back_with_the_traceback_of_the_process_that_ran_them_and_crashes_are_tried_again(
    errands: Start, tmp_path: Path
) -> None:
    """Naive: a crash loses the task, or its attempt is not counted."""
    errands("--processes=1")
    results = [finished(task.enqueue()) for task in (tasks.fails, tasks.fails_async)]
    for result in results:
        (error,) = result.errors
        assert error.exception_class is ValueError
        assert "in fails" in error.traceback
    assert finished(tasks.returns.enqueue("function")).errors[0].exception_class is TypeError
    path = tmp_path / "attempts"
    result = finished(tasks.survives.enqueue(str(path)))
    assert result.return_value == [2, 2, 3]
    assert result.attempts == 2
    assert result.errors[0].exception_class is WorkerCrashed
    assert len({line.split()[1] for line in path.read_text().splitlines()}) == 2
    died = finished(tasks.dies.enqueue())
    assert (died.status, died.errors[0].exception_class, died.attempts) == (FAILED, WorkerCrashed, 1)


def test_an_interrupt_gives_the_task_back_and_the_worker_goes_on(errands: Start) -> None:
    """Naive: a KeyboardInterrupt ends the worker, or fails the task."""
    running = errands("--processes=1")
    result = tasks.interrupted.enqueue()
    wait_until(lambda: TaskAttempt.objects.exists(), "it was interrupted")
    result.refresh()
    assert (result.status, result.attempts) == (READY, 1)
    assert result.errors[0].exception_class is KeyboardInterrupt
    assert finished(tasks.add.enqueue(1)).status == SUCCESSFUL
    assert running.process.poll() is None
    assert "given back, it runs again at" in running.log
    assert f"{result.id} path=tests.apps.errands.tasks.interrupted state=FAILED" not in running.log
    assert "[ERROR]" not in running.log
