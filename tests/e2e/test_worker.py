"""A real worker runs tasks to their end, and outlives what tasks do to it."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections.abc import Callable

import psutil
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from horsies_django import TaskResult, get_handle
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from tests.apps.project import tasks, unspeakable
from tests.conftest import put, wait_until
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SHAPES = [
    ("--processes=2",),
    ("--processes=0",),
    ("--processes=1", "--threads=2"),
    ("--processes=1", "--start-method=spawn"),
]


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
@pytest.mark.promise("S1.6", "S2.1", "S2.2", "S2.9", "S3.2", "S3.3", "S3.6")
@pytest.mark.boundary
def test_results_of_sync_and_async_tasks_come_back_in_every_shape_of_worker(
    worker: Start, options: tuple[str, ...]
) -> None:
    process = worker(*options).ready()
    assert tasks.add.send(2, b=3).get() == TaskResult(ok=5)
    assert tasks.mirror.send(tasks.Point(1, 2)).get() == TaskResult(ok=tasks.Point(2, 1))
    assert tasks.anoop.send().get() == TaskResult(ok=None)
    handle = tasks.raises.send("no such thing")
    error = handle.get().err_value
    assert (error.error_code, error.exception["type"]) == ("UNHANDLED_ERROR", "LookupError")
    assert "no such thing" in error.exception["traceback"]
    assert process.stop() == 0


@pytest.mark.promise("S2.2")
def test_without_children_tasks_run_in_the_process_of_the_worker(worker: Start) -> None:
    process = worker("--processes=0").ready()
    assert tasks.pid.send().get().ok_value == process.process.pid
    assert unspeakable.apid.send().get().ok_value == process.process.pid
    assert psutil.Process(process.process.pid).children(recursive=True) == []
    assert process.stop() == 0


def test_a_task_sent_before_the_worker_started_runs(worker: Start) -> None:
    handle = tasks.add.send(1)
    worker("--processes=1")
    assert handle.get().ok_value == 1


def test_until_empty_runs_what_is_due_and_exits_zero(worker: Start) -> None:
    handles = tasks.add.send_many([{"a": number} for number in range(50)])
    later = tasks.add.schedule(3600, 1)
    process = worker("--processes=2", "--until-empty")
    assert process.wait() == 0
    assert [handle.get(0).ok_value for handle in handles] == list(range(50))
    assert later.info().status == "PENDING"


@pytest.mark.promise("S0.11", "S1.51", "S2.11")
def test_the_start_up_lines_name_the_configuration(worker: Start) -> None:
    process = worker(
        "--processes=2", "--threads=3", "--async-concurrency=7", "--queues=mail,bulk", "--queues=default"
    ).ready()
    assert (
        "Concurrency config: processes=2, cluster_wide_cap=None, max_claim_per_worker=20, max_claim_batch=0"
        in process.log
    )
    assert "Slots: 6 sync (3 threads per process), 14 async (7 coroutines per process)" in process.log
    row = Worker.objects.get()
    assert (row.processes, row.threads, row.async_concurrency) == (2, 3, 7)
    assert row.queues == ["bulk", "default", "mail"]


@pytest.mark.promise("S2.11")
def test_a_worker_serves_only_the_queues_it_was_given(worker: Start) -> None:
    other = tasks.add.send(1)
    mine = tasks.mail.send("a@example.org")
    worker("--processes=1", "--queues=mail", "--until-empty").wait()
    assert mine.get(0).ok_value == "sent to a@example.org"
    assert other.info().status == "PENDING"


@pytest.mark.parametrize(
    ("how", "words"), [("exit", "exited with code 3"), ("kill", "killed by SIGKILL"), ("segv", "killed by SIGSEGV")]
)
@pytest.mark.promise("S2.15")
@pytest.mark.boundary
def test_a_child_that_dies_fails_its_task_and_nobody_elses(worker: Start, how: str, words: str) -> None:
    process = worker("--processes=2").ready()
    sibling = tasks.hold.send("sibling")
    held_by("sibling")
    error = tasks.dies.send(how).get().err_value
    assert error.error_code == "WORKER_CRASHED"
    assert words in error.message
    assert tasks.add.send(1).get().ok_value == 1  # by the replacement: the sibling is busy
    let_go("sibling")
    assert sibling.get().is_ok()
    assert process.stop() == 0


def test_a_crash_is_recorded_as_an_attempt_that_its_process_did_not_survive(worker: Start) -> None:
    worker("--processes=1").ready()
    handle = tasks.dies.send("kill")
    handle.get()
    info = handle.info()
    (attempt,) = info.attempts
    assert (info.status, info.error_code) == ("FAILED", "WORKER_CRASHED")
    assert (attempt.outcome, attempt.error_code, attempt.will_retry) == ("WORKER_FAILURE", "WORKER_CRASHED", False)
    assert attempt.child_pid is not None


def test_a_child_killed_from_outside_is_replaced_by_another_process(worker: Start) -> None:
    worker("--processes=1").ready()
    handle = tasks.hold.send("victim")
    victim = held_by("victim")
    os.kill(victim, signal.SIGKILL)
    assert handle.get().err_value.error_code == "WORKER_CRASHED"
    assert tasks.pid.send().get().ok_value != victim


def test_a_task_dispatched_to_a_stopped_child_goes_back_when_the_child_dies(worker: Start) -> None:
    process = worker("--processes=1").ready()
    child = tasks.pid.send().get().ok_value
    os.kill(child, signal.SIGSTOP)
    handle = tasks.add.send(5)
    wait_until(lambda: handle.info().status == "RUNNING", "the task is dispatched")
    os.kill(child, signal.SIGKILL)
    assert handle.get().ok_value == 5
    assert [attempt.attempt for attempt in handle.info().attempts] == [1]
    assert Task.objects.get(pk=handle.task_id).claim_generation == 2
    assert "1 given back" in process.log


def test_a_task_starts_when_it_is_due_and_not_at_the_next_poll(worker: Start) -> None:
    worker("--processes=1", HORSIES_TEST_POLL_MS="300000").ready()
    handle = tasks.add.schedule(0.3, 1)
    assert handle.get().ok_value == 1
    info = handle.info()
    assert info.started_at >= info.enqueued_at  # and get() did not wait as long as that poll


def test_a_heap_of_expired_tasks_is_cleared_without_waiting_for_the_poll(worker: Start) -> None:
    put(20_000, good_until=dt.datetime.now(dt.UTC))
    handle = tasks.add.send(1)
    worker("--processes=1", HORSIES_TEST_POLL_MS="300000").ready()
    assert handle.get(60_000).ok_value == 1
    wait_until(lambda: Task.objects.filter(status="EXPIRED").count() == 20_000, "all of them are expired")


@pytest.mark.promise("S0.32")
def test_what_runs_does_not_count_against_what_a_worker_may_have_claimed(worker: Start) -> None:
    worker("--processes=1", "--async-concurrency=6", "--max-claim-per-worker=2", HORSIES_TEST_POLL_MS="300000").ready()
    handles = tasks.ahold.send_many([{"name": "held"}] * 6)
    wait_until(
        lambda: Group.objects.filter(name__startswith="held:").count() == 6, "all slots are taken, two at a time"
    )
    Group.objects.all().delete()
    assert all(handle.get().is_ok() for handle in handles)


@pytest.mark.promise("S2.14", "S3.10")
def test_a_task_that_made_no_noise_is_found_by_the_poll(worker: Start) -> None:
    worker("--processes=1").ready()
    assert tasks.noop.send().get().is_ok()
    for _ in range(3):  # the looks at the start, and those after the last news, are over before the last of them
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL session_replication_role = replica")  # the trigger does not see this insert
            (id_,) = put(name="tests.apps.project.tasks.noop")
        assert get_handle(id_).get().is_ok()


@pytest.mark.promise("S2.21")
def test_a_task_name_that_no_worker_knows_fails_and_its_row_stays(worker: Start) -> None:
    (id_,) = put(name="gone.tasks.vanished", kwargs=['{"a": 1}'])
    (other,) = put(name="gone.tasks.avanished", lane="async")
    worker("--processes=1", "--until-empty", HORSIES_TEST_GRACE_MS="0").wait()
    for handle in (get_handle(id_), get_handle(other)):
        info = handle.info()
        assert (info.status, info.error_code) == ("FAILED", "WORKER_RESOLUTION_ERROR")
        assert info.worker_id is not None
        assert "vanished" in handle.get(0).err_value.message


@pytest.mark.promise("S2.4")
def test_async_tasks_run_together_in_one_process(worker: Start) -> None:
    worker("--processes=1").ready()
    handles = [tasks.ahold.send("crowd") for _ in range(20)]
    wait_until(lambda: Group.objects.filter(name__startswith="crowd:").count() == 20, "all twenty run at once")
    let_go("crowd")
    assert len({handle.get().ok_value for handle in handles}) == 1


@pytest.mark.promise("S0.8", "S1.6", "S2.3")
def test_each_of_the_processes_runs_one_task_at_a_time_and_the_worker_no_more_than_it_has_processes(
    worker: Start,
) -> None:
    worker("--processes=2").ready()
    names = ["a", "b", "c", "d"]
    handles = [tasks.hold.send(name) for name in names]
    first = {held_by("a"), held_by("b")}
    assert len(first) == 2
    for ended, begins in (("a", "c"), ("b", "d")):
        tasks.anoop.send().get()  # the engine has come round since, and started none of the others
        assert Task.objects.filter(status="RUNNING").count() == 2
        let_go(ended)
        assert held_by(begins) in first
    for name in names:
        let_go(name)
    assert {handle.get().ok_value for handle in handles} == first


@pytest.mark.promise("S2.11")
def test_a_worker_logs_from_the_level_on_that_it_was_given(worker: Start) -> None:
    process = worker("--processes=1", "--loglevel=error")
    assert tasks.dies.send("kill").get().err_value.error_code == "WORKER_CRASHED"
    assert process.stop() == 0
    assert "killed by SIGKILL" in process.log  # an error
    assert "Worker started" not in process.log
    assert "Stopping" not in process.log


def test_a_busy_sync_lane_does_not_hold_up_async_tasks(worker: Start) -> None:
    worker("--processes=1").ready()
    handle = tasks.hold.send("busy")
    held_by("busy")
    assert tasks.anoop.send().get().is_ok()
    let_go("busy")
    assert handle.get().is_ok()


@pytest.mark.promise("S1.8")
def test_one_child_runs_one_task_after_another(worker: Start) -> None:
    worker("--processes=1").ready()
    assert len({tasks.pid.send().get().ok_value for _ in range(5)}) == 1


def test_sync_tasks_run_in_the_main_thread_of_a_child(worker: Start) -> None:
    worker("--processes=1").ready()
    assert tasks.main_thread.send().get().ok_value is True


def test_threads_run_sync_tasks_side_by_side(worker: Start) -> None:
    worker("--processes=1", "--threads=3").ready()
    handles = [tasks.hold.send("thread") for _ in range(3)]
    wait_until(lambda: Group.objects.filter(name__startswith="thread:").count() == 3, "all three run at once")
    let_go("thread")
    assert len({handle.get().ok_value for handle in handles}) == 1


@pytest.mark.promise("S1.17", "S3.4")
def test_a_worker_beats_for_each_of_its_processes(worker: Start) -> None:
    process = worker("--processes=2").ready()
    wait_until(lambda: Heartbeat.objects.count() == 3, "parent and two children beat")
    assert set(Heartbeat.objects.filter(role="claimer").values_list("pid", flat=True)) == {process.process.pid}
    first = Heartbeat.objects.get(role="claimer").sent_at
    wait_until(lambda: Heartbeat.objects.get(role="claimer").sent_at > first, "another beat")
    assert Heartbeat.objects.count() == 3
    row = Worker.objects.get()
    assert row.memory_usage_mb > 10
    assert row.children_memory_mb > 10


def test_a_worker_holds_three_connections_beside_those_of_user_code(worker: Start) -> None:
    worker("--processes=2").ready()
    tasks.noop.send().get()
    wait_until(lambda: Heartbeat.objects.count() == 3, "the heart beats")

    def names() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
            return sorted(row[0] for row in cursor.fetchall())

    wait_until(lambda: "horsies waiting" not in names(), "the connection of our own get() has ended")
    assert names() == ["horsies engine", "horsies listener", "horsies maintenance"]


def test_connections_that_tasks_open_are_closed_after_them(worker: Start) -> None:
    worker("--processes=1").ready()
    pids = [tasks.backend_pid.send().get().ok_value]
    tasks.ahold.send("x")
    held_by("x")
    let_go("x")
    pids.append(tasks.backend_pid.send().get().ok_value)

    def gone() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND application_name NOT LIKE 'horsies %%' AND backend_type = 'client backend'"
            )
            return bool(cursor.fetchone()[0] == 0)

    wait_until(gone, "no connection of user code is left")
    assert pids[0] != pids[1]


def test_a_failed_task_is_logged_with_its_traceback_and_without_its_arguments(worker: Start) -> None:
    process = worker("--processes=1").ready()
    tasks.returns_wrong_type.send().get()
    handle = tasks.breaks_sql.send()
    assert handle.get().err_value.error_code == "UNHANDLED_ERROR"
    secret = tasks.echo.send("the-secret-argument")
    secret.get()
    tasks.mail.send("the-secret@address").get()
    process.stop()
    assert "division by zero" in process.log
    assert "Traceback" in process.log
    assert "the-secret" not in process.log


@pytest.mark.promise("S2.13", "S3.14")
def test_a_cut_connection_is_replaced_and_no_task_is_lost(worker: Start) -> None:
    process = worker("--processes=2").ready()
    busy = tasks.hold.send("through")
    held_by("through")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'horsies %%'"
        )
        assert len(cursor.fetchall()) == 3
    let_go("through")
    assert busy.get().is_ok()
    assert tasks.add.send(1).get().ok_value == 1
    assert TaskAttempt.objects.filter(task_id=busy.task_id).count() == 1
    assert process.stop() == 0


def test_what_a_worker_claimed_and_never_heard_of_is_given_back(worker: Start) -> None:
    worker("--processes=1").ready()
    wait_until(lambda: Worker.objects.exists(), "the worker has a row")
    (id_,) = put(name="tests.apps.project.tasks.noop", delay=dt.timedelta(hours=1))
    Task.objects.filter(pk=id_).update(
        status="RUNNING", claimed_by=Worker.objects.get().pk, claim_generation=1,
        claimed_at=dt.datetime.now(dt.UTC), started_at=dt.datetime.now(dt.UTC), enqueued_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip
    assert get_handle(id_).get(60_000).is_ok()
    assert Task.objects.get(pk=id_).claim_generation == 2
