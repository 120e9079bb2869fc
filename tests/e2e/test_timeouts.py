"""Tasks that are ended from outside, and tasks that are tried again: when that is, on which worker, and what attempts keep."""

from __future__ import annotations

import os
import signal

import pytest
from django.contrib.auth.models import Group

from horsies_django import RetryPolicy, TaskHandle
from horsies_django.models import AuditEntry, Task, TaskAttempt, Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, held_by, let_go

SHORT = {"HORSIES_TEST_KILL_GRACE_MS": "500", "HORSIES_TEST_STALE_MS": "2500"}


def code(handle: TaskHandle[object]) -> str:
    return handle.get(timeout_ms=30_000).err_value.error_code


def status(handle: TaskHandle[object]) -> str:
    return str(Task.objects.get(pk=handle.task_id).status)


@pytest.mark.boundary
def test_a_timeout_is_an_exception_in_the_task_and_the_process_goes_on(shared_worker: WorkerProcess) -> None:
    before = tasks.pid.send().get().ok_value
    slow = tasks.loops_too_long.send()
    error = slow.get(timeout_ms=30_000).err_value
    assert error.error_code == "TASK_TIMEOUT"
    assert error.exception is not None
    assert "loops_too_long" in error.exception["traceback"]
    (attempt,) = TaskAttempt.objects.filter(task_id=slow.task_id)
    assert (attempt.outcome, attempt.error_code) == ("FAILED", "TASK_TIMEOUT")
    assert code(tasks.sleeps_too_long.send("inside the kernel")) == "TASK_TIMEOUT"
    assert tasks.cleans_up.send("x").get(timeout_ms=30_000).ok_value == "x"  # it may clean up, and still return
    assert Group.objects.filter(name="cleaned:x").exists()
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before


@pytest.mark.boundary
def test_a_timeout_is_an_exception_in_another_thread_than_the_main_one_too(worker: Start) -> None:
    worker("--processes=1", "--threads=2", **SHORT).ready()
    tasks.hold.send("main")  # so that both threads are tried
    held_by("main")
    before = tasks.pid.send().get().ok_value
    error = tasks.loops_too_long.send().get(timeout_ms=30_000).err_value
    assert error.error_code == "TASK_TIMEOUT"
    assert error.exception is not None
    assert "loops_too_long" in error.exception["traceback"]
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before
    let_go("main")


@pytest.mark.boundary
def test_a_task_that_ignores_its_timeout_loses_its_process_and_a_long_sibling_is_only_reported(worker: Start) -> None:
    process = worker("--processes=2", HORSIES_TEST_REPORT_MS="1000", **SHORT).ready()
    held = tasks.hold.send("sibling")
    child = held_by("sibling")
    stubborn = tasks.ignores_its_timeout.send()
    assert code(stubborn) == "TASK_TIMEOUT"
    assert "; killing process" in process.log
    wait_until(lambda: f"task {held.task_id}" in process.log, "the sibling is reported")
    let_go("sibling")
    assert held.get(timeout_ms=30_000).ok_value == child
    assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert TaskAttempt.objects.get(task_id=stubborn.task_id).child_pid != child
    assert process.log.count("has been running for more than 1 s") == 1


def test_an_async_task_is_cancelled_at_its_timeout_and_the_others_of_its_loop_go_on(
    shared_worker: WorkerProcess,
) -> None:
    other = tasks.ahold.send("other")
    child = held_by("other")
    assert code(tasks.asleep_too_long.send()) == "TASK_TIMEOUT"
    let_go("other")
    assert other.get(timeout_ms=30_000).ok_value == child


def test_the_timeout_of_the_settings_holds_for_tasks_without_their_own(worker: Start) -> None:
    worker("--processes=2", HORSIES_TEST_TIMEOUT_MS="300", **SHORT).ready()
    longer = tasks.hold.with_options(timeout_ms=60_000).send("longer")
    child = held_by("longer")
    # This one starts later, so the other has outlived the timeout of the settings once it is over.
    assert code(tasks.hold.send("endless")) == "TASK_TIMEOUT"
    let_go("longer")
    assert longer.get(timeout_ms=30_000).ok_value == child


@pytest.mark.parametrize("name", ["stops_when_asked", "astops_when_asked"], ids=["sync", "async"])
@pytest.mark.boundary
def test_a_running_task_hears_that_it_was_cancelled(shared_worker: WorkerProcess, name: str) -> None:
    handle = getattr(tasks, name).send("running")
    child = held_by("running")
    assert handle.cancel() == "REQUESTED"
    assert code(handle) == "TASK_CANCELLED"
    attempt = TaskAttempt.objects.get(task_id=handle.task_id)
    assert (status(handle), attempt.outcome, attempt.child_pid) == ("CANCELLED", "CANCELLED", child)
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == child
    assert not AuditEntry.objects.filter(action__startswith="task.").exists()


def test_a_task_that_does_not_listen_goes_on_unless_it_shall_be_terminated(worker: Start) -> None:
    worker("--processes=2", **SHORT).ready()
    deaf = tasks.hold.send("deaf")
    child = held_by("deaf")
    assert deaf.cancel() == "REQUESTED"
    assert tasks.add.send(1).get(timeout_ms=30_000).is_ok()
    assert status(deaf) == "RUNNING"
    assert deaf.cancel(terminate=True) == "REQUESTED"
    assert code(deaf) == "TASK_CANCELLED"
    assert TaskAttempt.objects.get(task_id=deaf.task_id).child_pid == child


@pytest.mark.boundary
def test_a_child_that_was_stopped_alone_is_killed_by_its_parent(worker: Start) -> None:
    process = worker("--processes=2", **SHORT).ready()
    handle = tasks.holds_again.send("stopped")
    child = held_by("stopped")
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: TaskAttempt.objects.filter(task_id=handle.task_id).exists(), "the attempt is written")
    attempt = TaskAttempt.objects.get(task_id=handle.task_id)
    assert (attempt.error_code, attempt.will_retry, attempt.child_pid) == ("WORKER_CRASHED", True, child)
    assert "has been stopped for" in process.log
    Group.objects.filter(name__endswith=f":{child}").delete()
    other = held_by("stopped")
    let_go("stopped")
    assert handle.get(timeout_ms=30_000).ok_value == other != child


# Retries


def test_a_retry_runs_when_it_is_due_though_nobody_polls_so_soon(worker: Start) -> None:
    worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    policy = RetryPolicy.fixed([0.5, 1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    assert tasks.mails.with_options(retry_policy=policy).send(2).get(timeout_ms=30_000).ok_value == 3


def test_a_retry_that_is_due_runs_on_another_worker_while_its_own_is_busy(worker: Start) -> None:
    first = worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    policy = RetryPolicy.fixed([1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    handle = tasks.mails.with_options(retry_policy=policy).send(1)
    wait_until(lambda: TaskAttempt.objects.filter(task_id=handle.task_id).exists(), "it failed once")
    busy = tasks.hold.send("busy")
    held_by("busy")
    second = worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    assert handle.get(timeout_ms=30_000).ok_value == 2
    workers = dict(Worker.objects.values_list("id", "pid"))
    attempts = TaskAttempt.objects.filter(task_id=handle.task_id).order_by("attempt")
    assert [workers[one.worker_id] for one in attempts] == [first.process.pid, second.process.pid]
    let_go("busy")
    assert busy.get(timeout_ms=30_000).is_ok()
