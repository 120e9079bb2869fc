"""Tasks that are ended from outside, and processes that are killed.

The tests check the outcomes, and that other tasks are not affected and nothing is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import psycopg
import pytest
from django.contrib.auth.models import Group

from horsies_django import TaskHandle
from horsies_django.models import AuditEntry, Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import sql, wait_until
from tests.support.workers import Start, WorkerProcess, apps, database_url, gone, held_by, let_go

SHORT = {"HORSIES_TEST_KILL_GRACE_MS": "500", "HORSIES_TEST_STALE_MS": "2500"}


def code(handle: TaskHandle[object]) -> str:
    return handle.get(timeout_ms=30_000).err_value.error_code


@pytest.mark.boundary
def test_a_timeout_is_an_exception_in_the_task(
    shared_worker: WorkerProcess,
) -> None:
    """A timeout is an exception in the task, and the process goes on."""
    before = tasks.pid.send().get().ok_value

    slow = tasks.loops_too_long.send()
    error = slow.get(timeout_ms=30_000).err_value

    assert error.error_code == "TASK_TIMEOUT"
    assert error.exception is not None
    assert "loops_too_long" in error.exception["traceback"]

    (attempt,) = TaskAttempt.objects.filter(task_id=slow.task_id)
    assert (attempt.outcome, attempt.error_code) == ("FAILED", "TASK_TIMEOUT")

    assert code(tasks.sleeps_too_long.send()) == "TASK_TIMEOUT"
    # The task may clean up, and still return.
    assert tasks.cleans_up.send("x").get(timeout_ms=30_000).ok_value == "x"
    assert Group.objects.filter(name="cleaned:x").exists()
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before


@pytest.mark.boundary
def test_a_timeout_is_an_exception_in_another_thread_too(worker: Start) -> None:
    """A timeout is an exception in other threads than the main thread, too."""
    worker("--processes=1", "--threads=2", **SHORT).ready()
    tasks.hold.send("main")  # so that both threads are used
    held_by("main")
    before = tasks.pid.send().get().ok_value

    assert code(tasks.loops_too_long.send()) == "TASK_TIMEOUT"
    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == before


@pytest.fixture
def commit_gate() -> Iterator[psycopg.Connection[Any]]:
    """Make commits of new groups wait for an advisory lock; yield the session that holds it."""
    sql("""
        CREATE FUNCTION wait_for_gate() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER wait_for_gate AFTER INSERT ON auth_group
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_gate()
    """)
    with psycopg.connect(database_url(), autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(4711)")
        yield holder
    sql("DROP TRIGGER wait_for_gate ON auth_group; DROP FUNCTION wait_for_gate()")


@pytest.mark.boundary
def test_a_timeout_during_commit_is_a_timeout(
    worker: Start, commit_gate: psycopg.Connection[Any]
) -> None:
    """Fails if: the error that Django raises after the timeout counts, or the next task gets that
    session.
    """
    worker("--processes=1").ready()
    child, *_ = tasks.looks_at_its_session.send().get(timeout_ms=30_000).ok_value

    late = tasks.commits_too_long.send("x").get(timeout_ms=30_000).err_value
    commit_gate.execute("SELECT pg_advisory_unlock_all()")

    assert late.error_code == "TASK_TIMEOUT"
    assert "commits_too_long" in late.exception["traceback"]
    assert tasks.looks_at_its_session.send().get(timeout_ms=30_000).ok_value == (child, True, False)


def test_an_error_after_an_interrupt_is_a_timeout_or_cancel(shared_worker: WorkerProcess) -> None:
    """Fails if: an error that a task raises while it cleans up counts as its outcome."""
    cancelled = tasks.fails_after_its_cancel.send("cancelled")
    held_by("cancelled")
    cancelled.cancel()

    assert code(cancelled) == "TASK_CANCELLED"
    assert Task.objects.get(pk=cancelled.task_id).status == "CANCELLED"
    assert code(tasks.fails_after_its_timeout.send()) == "TASK_TIMEOUT"


@pytest.mark.boundary
def test_a_task_that_ignores_its_timeout_loses_its_process(
    worker: Start,
) -> None:
    """A task that ignores its timeout loses its process, and a long sibling is only reported."""
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


def test_an_async_task_is_cancelled_alone_at_its_timeout(
    shared_worker: WorkerProcess,
) -> None:
    """An async task is cancelled at its timeout, and the others of its loop go on."""
    other = tasks.ahold.send("other")
    child = held_by("other")

    assert code(tasks.asleep_too_long.send()) == "TASK_TIMEOUT"
    let_go("other")
    assert other.get(timeout_ms=30_000).ok_value == child


def test_the_timeout_of_the_settings_holds_for_tasks_without_one(worker: Start) -> None:
    """The timeout of the settings applies to tasks without their own."""
    worker("--processes=2", HORSIES_TEST_TIMEOUT_MS="300", **SHORT).ready()
    longer = tasks.hold.with_options(timeout_ms=60_000).send("longer")
    child = held_by("longer")

    # This one starts later, so the other has run longer than the timeout of the settings when it
    # ends.
    assert code(tasks.hold.send("endless")) == "TASK_TIMEOUT"

    let_go("longer")
    assert longer.get(timeout_ms=30_000).ok_value == child


@pytest.mark.parametrize("name", ["stops_when_asked", "astops_when_asked"], ids=["sync", "async"])
@pytest.mark.boundary
def test_a_running_task_stops_after_its_cancel(shared_worker: WorkerProcess, name: str) -> None:
    handle = getattr(tasks, name).send("running")
    child = held_by("running")

    assert handle.cancel() == "REQUESTED"
    assert code(handle) == "TASK_CANCELLED"

    attempt = TaskAttempt.objects.get(task_id=handle.task_id)
    assert (handle.info().status, attempt.outcome, attempt.child_pid) == (
        "CANCELLED",
        "CANCELLED",
        child,
    )

    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == child
    assert not AuditEntry.objects.filter(action__startswith="task.").exists()


def test_a_task_that_ignores_its_cancel_goes_on(worker: Start) -> None:
    """A task that ignores its cancel goes on, unless it is to be terminated."""
    worker("--processes=2", **SHORT).ready()
    deaf = tasks.hold.send("deaf")
    child = held_by("deaf")

    assert deaf.cancel() == "REQUESTED"
    assert tasks.add.send(1).get(timeout_ms=30_000).is_ok()
    assert deaf.info().status == "RUNNING"

    assert deaf.cancel(terminate=True) == "REQUESTED"
    assert code(deaf) == "TASK_CANCELLED"
    assert TaskAttempt.objects.get(task_id=deaf.task_id).child_pid == child


@pytest.mark.boundary
def test_a_child_that_was_stopped_alone_is_killed_by_its_parent(worker: Start) -> None:
    process = worker("--processes=2", **SHORT).ready()
    handle = tasks.holds_again.send("stopped")
    child = held_by("stopped")

    os.kill(child, signal.SIGSTOP)
    wait_until(
        lambda: TaskAttempt.objects.filter(task_id=handle.task_id).exists(),
        "the attempt is written",
    )

    attempt = TaskAttempt.objects.get(task_id=handle.task_id)
    assert (attempt.error_code, attempt.will_retry, attempt.child_pid) == (
        "WORKER_CRASHED",
        True,
        child,
    )
    assert "has been stopped for" in process.log

    Group.objects.filter(name__endswith=f":{child}").delete()
    other = held_by("stopped")
    let_go("stopped")
    assert handle.get(timeout_ms=30_000).ok_value == other != child


# Real kill -9: of everything below a worker at once, and of a worker, which leaves nothing behind,
# not even a directory

METHODS = ("--start-method=forkserver", "--start-method=spawn")


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Yield an empty directory whose name is short enough for the path of a socket."""
    with TemporaryDirectory(prefix="t") as directory:
        yield Path(directory)


def kill_all(process: WorkerProcess) -> None:
    for item in process.family():
        with suppress(psutil.NoSuchProcess):
            item.kill()


def test_a_worker_replaces_spawned_children_that_all_die_at_once(
    worker: Start, tmp_path: Path
) -> None:
    """A worker that repeatedly loses all its spawned children at once starts others and goes on."""
    closed = tmp_path / "closed"  # while this file exists, no child becomes ready
    slow = {**apps("project", "slow"), "SLOW_IMPORT": "child", "SLOW_WHILE": str(closed)}
    process = worker("--processes=2", METHODS[1], **slow).ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")

    closed.touch()
    for number in (2, 4, 6):
        kill_all(process)
        wait_until(
            lambda least=number: process.log.count("importing in the child") >= least,
            "others start",
        )

    closed.unlink()
    kill_all(process)
    goes_on(process, lost)


def goes_on(process: WorkerProcess, lost: list[Any]) -> None:
    assert {handle.get(timeout_ms=60_000).err_value.error_code for handle in lost} == {
        "WORKER_CRASHED"
    }
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    assert not Task.objects.filter(status="RUNNING").exists()
    assert process.stop() == 0


def template_of(process: WorkerProcess) -> psutil.Process:
    (template,) = psutil.Process(process.process.pid).children()
    return template


def test_a_worker_goes_on_after_its_fork_servers_are_killed(
    worker: Start,
) -> None:
    """A worker goes on whenever its fork servers are killed, alone or with their children."""
    process = worker("--processes=2").ready()
    lost = [tasks.hold.send("lost"), tasks.ahold.send("lost")]
    wait_until(lambda: Group.objects.count() == 2, "both run")
    template = template_of(process)

    for blow in range(3):
        (server,) = template.children()
        for item in [*(server.children() if blow else []), server]:
            with suppress(psutil.NoSuchProcess):
                item.kill()
        wait_until(lambda old=server: template.children() not in ([], [old]), "another one starts")

    goes_on(process, lost)
    assert "ended with its fork server" in process.log


def test_a_worker_ends_when_its_template_is_killed(worker: Start) -> None:
    """A worker whose template is killed ends, and its tasks crash.

    Fails if: the worker waits for children that no process can start any more.
    """
    process = worker("--processes=2").ready()
    lost = tasks.hold.send("lost")
    wait_until(lambda: Group.objects.count() == 1, "it runs")

    template_of(process).kill()

    assert process.wait() == 1
    assert "the process from which children are forked was killed; the worker ends" in process.log
    assert lost.get(0).err_value.error_code == "WORKER_CRASHED"


def leaves_nothing(
    process: WorkerProcess, number: int, below: list[psutil.Process], place: Path
) -> None:
    process.signal(number)
    process.wait()
    gone(below)
    assert list(place.rglob("*")) == []


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("--processes=2", METHODS[0]), signal.SIGKILL),
        (("--processes=2", METHODS[0]), signal.SIGTERM),
        (("--processes=2", METHODS[1]), signal.SIGKILL),
        (("--processes=0",), signal.SIGKILL),
    ],
)
def test_no_process_or_directory_remains_of_a_killed_worker(
    worker: Start, short_directory: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    """A worker that is killed in the middle of tasks leaves no process and no directory."""
    process = worker(*options, TMPDIR=str(short_directory)).ready()
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1

    if options != ("--processes=0",):
        os.kill(tasks.pid.send().get(timeout_ms=60_000).ok_value, signal.SIGKILL)  # another child
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1

    if number == signal.SIGKILL:
        tasks.deaf.send("sync")
        tasks.adeaf.send("async")
        held_by("sync")
        held_by("async")

    below = process.family()
    leaves_nothing(process, number, below, short_directory)


def test_no_directory_remains_of_a_worker_killed_during_a_load(
    worker: Start, short_directory: Path
) -> None:
    """A worker that is killed while a fresh template loads the project leaves no directory."""
    slow = {**apps("project", "hasty", "slow"), "SLOW_IMPORT": "child", "HASTY_WORKER": "1"}
    process = worker("--processes=1", TMPDIR=str(short_directory), **slow)
    wait_until(lambda: "importing in the child" in process.log, "it imports")

    leaves_nothing(process, signal.SIGKILL, process.family(), short_directory)


# Many children that die in a row


def test_a_backlog_of_tasks_that_end_their_child_fails_each_once(
    worker: Start,
) -> None:
    """Each task of a backlog fails once if it ignores its timeout or kills its process.

    Each of them costs its child. The first ones come while the children of the others are still
    being started.
    """
    stubborn = [tasks.ignores_its_timeout.send() for _ in range(24)]
    deadly = [tasks.dies.send(how) for how in ("exit", "kill") * 6]
    good = tasks.add.send(1, b=1)
    process = worker("--processes=4", HORSIES_TEST_KILL_GRACE_MS="100")

    assert {handle.get(None).err_value.error_code for handle in stubborn} == {"TASK_TIMEOUT"}
    assert {handle.get(None).err_value.error_code for handle in deadly} == {"WORKER_CRASHED"}
    assert good.get(None).ok_value == 2
    assert sorted(TaskAttempt.objects.values_list("task_id", "attempt")) == sorted(
        (handle.task_id, 1) for handle in (*stubborn, *deadly, good)
    )
    assert process.stop() == 0
