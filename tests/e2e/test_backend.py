"""Tasks of ``django.tasks`` through real workers: their results, their retries after crashes, and all that holds for any task."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command

from horsies_django import get_handle, schedules
from horsies_django.backends.exceptions import WorkerCrashed
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks.operations import copy
from tests.apps.errands import elsewhere, tasks
from tests.apps.errands.api import TaskResultStatus
from tests.conftest import limit, put, wait_until
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


def test_a_partition_by_the_name_of_an_argument_finds_it_among_positional_ones(transactional_db: None) -> None:
    limit("mail", partition_by_args=["who"], partition_max_concurrency=1, partition_version=1)
    sent = [tasks.mails.enqueue(who) for who in ("ann", "bob", "ann")]
    keys = [Task.objects.get(pk=result.id).partition_key for result in sent]
    assert keys[0] == keys[2] != keys[1]


def test_a_schedule_sends_one_by_its_name(errands: Start, settings: Any) -> None:
    hourly = {"task": tasks.add.module_path, "pattern": "every hour", "kwargs": {"a": 2}}
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"sum": hourly}}
    schedules.declare(actor="a test")
    sent = schedules.run_now("sum", actor="a test")
    errands("--processes=1")
    result = finished(tasks.add.get_result(str(sent)))
    assert (result.return_value, result.kwargs) == (2, {"a": 2})


def test_one_that_failed_is_run_again_from_the_admin_or_the_shell(errands: Start) -> None:
    """Naive: the copy has lost its backend, its form or its options."""
    result = tasks.writes.using(priority=9).enqueue("staff")
    Group.objects.create(name="staff")  # unique
    errands("--processes=1")
    assert finished(result).status == FAILED
    Group.objects.all().delete()
    get_handle(result.id).retry()
    result.refresh()
    assert finished(result).status == SUCCESSFUL
    Group.objects.all().delete()
    again = tasks.writes.get_result(str(copy(get_handle(result.id).task_id, actor="a test")))
    assert finished(again).status == SUCCESSFUL
    assert (again.task.priority, again.args) == (9, ["staff"])


def test_a_row_that_names_a_module_which_exits_ends_no_worker_and_delays_no_other_task(errands: Start) -> None:
    """Naive: the worker imports the module, and ends; or it leaves what it did not know when it started to others for minutes."""
    process = errands("--processes=1")
    (id_,) = put(name="tests.apps.errands.leaves.no_task")
    wait_until(lambda: "unknown to this worker: tests.apps.errands.leaves.no_task" in process.log, "it is given back")
    assert finished(elsewhere.far_away.enqueue(5)).return_value == 50
    assert Task.objects.get(pk=id_).status == "PENDING"
    assert process.stop() == 0


def test_the_commands_show_them(transactional_db: None, capsys: pytest.CaptureFixture[str]) -> None:
    result = tasks.add.using(priority=30).enqueue(1, b=2)
    call_command("horsies_task", "show", result.id)
    shown = capsys.readouterr().out
    assert "71 (django.tasks: 30)" in shown
    assert "tests.apps.errands.tasks.add" in shown
