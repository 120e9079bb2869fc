"""Tasks that are ended from outside: by their timeout, by somebody who cancels them, by whoever stopped their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group

from horsies_django import TaskHandle
from horsies_django.models import AuditEntry, Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SHORT = {"HORSIES_TEST_KILL_GRACE_MS": "500", "HORSIES_TEST_STALE_MS": "2500"}


def code(handle: TaskHandle[object]) -> str:
    return handle.get(timeout_ms=30_000).err_value.error_code


def status(handle: TaskHandle[object]) -> str:
    return str(Task.objects.get(pk=handle.task_id).status)


@pytest.mark.parametrize("options", [["--threads=1"], ["--threads=2"]], ids=["the main thread", "another thread"])
@pytest.mark.boundary
def test_a_timeout_is_an_exception_in_the_task_and_the_process_goes_on(worker: Start, options: list[str]) -> None:
    worker("--processes=1", *options, **SHORT).ready()
    if options == ["--threads=2"]:
        tasks.hold.send("main")  # so that both threads are tried
        held_by("main")
    before = tasks.pid.send().get().ok_value
    slow = tasks.loops_too_long.send()
    error = slow.get(timeout_ms=30_000).err_value
    assert error.error_code == "TASK_TIMEOUT"
    assert error.exception is not None
    assert "loops_too_long" in error.exception["traceback"]
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before
    (attempt,) = TaskAttempt.objects.filter(task_id=slow.task_id)
    assert (attempt.outcome, attempt.error_code) == ("FAILED", "TASK_TIMEOUT")
    let_go("main")


def test_a_timeout_ends_a_wait_inside_the_kernel(worker: Start) -> None:
    worker("--processes=1", **{**SHORT, "HORSIES_TEST_KILL_GRACE_MS": "30000"}).ready()
    before = tasks.pid.send().get(timeout_ms=30_000).ok_value
    assert code(tasks.sleeps_too_long.send("slow")) == "TASK_TIMEOUT"
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before


def test_a_task_may_clean_up_when_its_time_is_over_and_still_return(worker: Start) -> None:
    worker("--processes=1", **SHORT).ready()
    assert tasks.cleans_up.send("x").get(timeout_ms=30_000).ok_value == "x"
    assert Group.objects.filter(name="cleaned:x").exists()


@pytest.mark.boundary
def test_a_task_that_ignores_its_timeout_loses_its_process_and_its_siblings_nothing(worker: Start) -> None:
    process = worker("--processes=2", **SHORT).ready()
    held = tasks.hold.send("sibling")
    child = held_by("sibling")
    stubborn = tasks.ignores_its_timeout.send()
    assert code(stubborn) == "TASK_TIMEOUT"
    assert "; killing process" in process.log
    let_go("sibling")
    assert held.get(timeout_ms=30_000).ok_value == child
    assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert TaskAttempt.objects.get(task_id=stubborn.task_id).child_pid != child


def test_a_listed_timeout_is_tried_again(worker: Start) -> None:
    worker("--processes=1", **SHORT).ready()
    assert tasks.too_long_the_first_time.send().get(timeout_ms=30_000).ok_value == 2


def test_an_async_task_is_cancelled_at_its_timeout_and_the_others_of_its_loop_go_on(worker: Start) -> None:
    worker("--processes=1", **SHORT).ready()
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


def test_what_has_not_started_is_cancelled_at_once_and_never_runs(worker: Start) -> None:
    handle = tasks.note.send("ran")
    assert handle.cancel() == "CANCELLED"
    assert handle.cancel() == "FINISHED"
    worker("--processes=1", "--until-empty", **SHORT).wait()
    assert (status(handle), code(handle)) == ("CANCELLED", "TASK_CANCELLED")
    assert not Group.objects.filter(name="ran").exists()


@pytest.mark.parametrize("name", ["stops_when_asked", "astops_when_asked"], ids=["sync", "async"])
@pytest.mark.boundary
def test_a_running_task_hears_that_it_was_cancelled(worker: Start, name: str) -> None:
    worker("--processes=1", **SHORT).ready()
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


def test_a_cancelled_task_that_fails_is_not_tried_again(worker: Start) -> None:
    worker("--processes=1", **SHORT).ready()
    handle = tasks.holds_again.send("once")
    child = held_by("once")
    handle.cancel()
    os.kill(child, signal.SIGKILL)
    assert code(handle) == "WORKER_CRASHED"
    assert TaskAttempt.objects.filter(task_id=handle.task_id).count() == 1


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


def test_a_task_that_runs_very_long_is_reported_once(worker: Start) -> None:
    process = worker("--processes=1", HORSIES_TEST_REPORT_MS="1000", **SHORT).ready()
    handle = tasks.hold.send("long")
    held_by("long")
    wait_until(lambda: f"task {handle.task_id}" in process.log, "it is reported")
    let_go("long")
    handle.get(timeout_ms=30_000)
    assert process.log.count("has been running for more than 1 s") == 1
