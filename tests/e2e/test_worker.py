"""A real worker runs tasks to their end, and survives the damage that tasks do to it."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from horsies_django import TaskResult, current_task, get_handle
from horsies_django.models import Heartbeat, History, Task, Worker
from tests.apps.errands import tasks as errands
from tests.apps.errands.api import TaskResultStatus
from tests.apps.project import tasks, unspeakable
from tests.conftest import put, sql, wait_until
from tests.support.workers import Start, WorkerProcess, apps, held_by, let_go

SHAPES = [
    ("--processes=2",),
    ("--processes=0",),
    ("--processes=1", "--threads=2"),
    ("--processes=1", "--start-method=spawn"),
]


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
@pytest.mark.promise("S1.6", "S2.1", "S2.2", "S2.9", "S3.2", "S3.3", "S3.6")
@pytest.mark.boundary
def test_results_of_both_lanes_return_with_every_worker_layout(
    worker: Start, options: tuple[str, ...]
) -> None:
    """Results of sync and async tasks come back with every layout of a worker."""
    process = worker(*options).ready()

    assert tasks.add.send(2, b=3).get() == TaskResult(ok=5)
    assert tasks.mirror.send(tasks.Point(1, 2)).get() == TaskResult(ok=tasks.Point(2, 1))
    assert tasks.anoop.send().get() == TaskResult(ok=None)

    handle = tasks.raises.send("no such thing")
    error = handle.get().err_value
    assert (error.error_code, error.exception["type"]) == ("UNHANDLED_ERROR", "LookupError")
    assert "no such thing" in error.exception["traceback"]

    ran_in = {task.send().get().ok_value for task in (tasks.pid, unspeakable.apid)}
    if options == ("--processes=0",):
        assert (ran_in, process.family()) == ({process.process.pid}, [])
    else:
        assert ran_in <= {one.pid for one in process.family()}
    assert process.stop() == 0


@pytest.mark.promise("S2.11")
def test_until_empty_runs_due_tasks_of_its_queues_and_exits_zero(
    worker: Start,
) -> None:
    """``--until-empty`` runs the due tasks of its queues and exits with 0.

    Fails if: the last minute of every worker is missing in the history, and so the whole history of
    a worker that lives for less than a minute.
    """
    handles = tasks.add.send_many([{"a": number} for number in range(20)])
    tasks.raises.send("oh no")
    later = tasks.add.schedule(3600, 1)
    other = tasks.mail.send("a@example.org")

    process = worker("--processes=2", "--until-empty", "--queues=default")

    assert process.wait() == 0
    assert [handle.get(0).ok_value for handle in handles] == list(range(20))
    assert (later.info().status, other.info().status) == ("PENDING", "PENDING")
    assert set(History.objects.filter(width=3_600).values_list("task", "result", "n")) == {
        ("", "CLAIMED", 21),
        (tasks.add.name, "COMPLETED", 20),
        (tasks.raises.name, "UNHANDLED_ERROR", 1),
    }


@pytest.mark.promise("S0.11", "S1.51", "S2.11")
def test_the_start_up_lines_name_the_configuration(worker: Start) -> None:
    process = worker(
        "--processes=2",
        "--threads=3",
        "--async-concurrency=7",
        "--queues=mail,bulk",
        "--queues=default",
    ).ready()

    config = "processes=2, cluster_wide_cap=None, max_claim_per_worker=20, max_claim_batch=0"
    assert f"Concurrency config: {config}" in process.log
    assert (
        "Slots: 6 sync (3 threads per process), 14 async (7 coroutines per process)" in process.log
    )
    assert Worker.objects.get().queues == ["bulk", "default", "mail"]


@pytest.mark.promise("S2.15")
@pytest.mark.boundary
def test_a_child_that_dies_fails_its_task_and_nobody_elses(worker: Start) -> None:
    process = worker("--processes=2").ready()
    sibling = tasks.hold.send("sibling")
    held_by("sibling")

    for how, words in (
        ("exit", "exited with code 3"),
        ("kill", "killed by SIGKILL"),
        ("segv", "killed by SIGSEGV"),
    ):
        handle = tasks.dies.send(how)
        error = handle.get().err_value
        assert error.error_code == "WORKER_CRASHED"
        assert words in error.message

        info = handle.info()
        (attempt,) = info.attempts
        assert (info.status, info.error_code) == ("FAILED", "WORKER_CRASHED")
        assert (attempt.outcome, attempt.error_code, attempt.will_retry) == (
            "WORKER_FAILURE",
            "WORKER_CRASHED",
            False,
        )
        assert attempt.child_pid is not None
        assert tasks.add.send(1).get().ok_value == 1  # by the replacement, not the sibling

    let_go("sibling")
    assert sibling.get().is_ok()
    assert process.stop() == 0


def test_expired_tasks_are_cleared_without_waiting_for_the_poll(worker: Start) -> None:
    """A heap of expired tasks is cleared without waiting for the poll."""
    put(5_000, good_until=dt.datetime.now(dt.UTC))
    handle = tasks.add.send(1)
    worker("--processes=1", HORSIES_TEST_POLL_MS="300000").ready()

    assert handle.get(60_000).ok_value == 1
    wait_until(
        lambda: Task.objects.filter(status="EXPIRED").count() == 5_000, "all of them are expired"
    )


@pytest.mark.promise("S2.14", "S3.10")
def test_a_task_that_made_no_noise_is_found_by_the_poll(shared_worker: WorkerProcess) -> None:
    assert tasks.noop.send().get().is_ok()

    # The looks at the start, and those after the last notification, are over before the last of
    # them.
    for _ in range(3):
        with transaction.atomic():
            sql("SET LOCAL session_replication_role = replica")
            (id_,) = put(name="tests.apps.project.tasks.noop")
        assert get_handle(id_).get().is_ok()


@pytest.mark.promise("S2.4")
def test_async_tasks_run_concurrently_beside_a_busy_sync_lane(
    shared_worker: WorkerProcess,
) -> None:
    """Async tasks run concurrently in one process beside a busy sync lane."""
    busy = tasks.hold.send("busy")
    held_by("busy")

    handles = [tasks.ahold.send("crowd") for _ in range(20)]
    wait_until(
        lambda: Group.objects.filter(name__startswith="crowd:").count() == 20,
        "all twenty run at once",
    )

    let_go("crowd")
    pids = {handle.get().ok_value for handle in handles}
    let_go("busy")

    assert {busy.get().ok_value} == pids


def test_current_task_contains_the_claim(shared_worker: WorkerProcess) -> None:
    handle = tasks.of_me.send()
    told = handle.get(timeout_ms=30_000).ok_value
    sent_at = Task.objects.get(pk=handle.task_id).sent_at

    assert told == [str(handle.task_id), tasks.of_me.name, "default", "1", sent_at.isoformat()]
    assert current_task().sent_at is None, "no task runs here"


@pytest.mark.promise("S0.8", "S1.6", "S2.3")
def test_a_worker_runs_at_most_one_task_in_each_process(
    worker: Start,
) -> None:
    """Each process runs one task at a time, and the worker as many as it has processes."""
    worker("--processes=2").ready()
    names = ["a", "b", "c", "d"]
    handles = [tasks.hold.send(name) for name in names]
    first = {held_by("a"), held_by("b")}
    assert len(first) == 2

    for ended, begins in (("a", "c"), ("b", "d")):
        tasks.anoop.send().get()  # the engine has turned since, and started none of the others
        assert Task.objects.filter(status="RUNNING").count() == 2
        let_go(ended)
        assert held_by(begins) in first

    for name in names:
        let_go(name)
    assert {handle.get().ok_value for handle in handles} == first


def connected() -> list[str]:
    """Return the names of the other connections to the test database."""
    return sorted(
        row[0]
        for row in sql(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND "
            "pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
    )


@pytest.mark.direct
@pytest.mark.promise("S1.17", "S3.4")
def test_a_worker_sends_a_heartbeat_for_each_of_its_processes(
    worker: Start,
) -> None:
    """A worker sends a heartbeat for each of its processes, and holds three connections of its own.

    The connections of the tasks come in addition.
    """
    process = worker("--processes=2", HORSIES_TEST_KEPT="0").ready()
    wait_until(lambda: Heartbeat.objects.count() == 3, "parent and two children beat")
    assert set(Heartbeat.objects.filter(role="claimer").values_list("pid", flat=True)) == {
        process.process.pid
    }

    first = Heartbeat.objects.get(role="claimer").sent_at
    wait_until(lambda: Heartbeat.objects.get(role="claimer").sent_at > first, "another beat")
    assert Heartbeat.objects.count() == 3

    row = Worker.objects.get()
    assert row.memory_usage_mb > 10
    assert row.children_memory_mb > 10

    pids = [tasks.backend_pid.send().get().ok_value]
    tasks.ahold.send("x")
    held_by("x")
    let_go("x")
    pids.append(tasks.backend_pid.send().get().ok_value)
    assert pids[0] != pids[1]

    ours = ["horsies engine", "horsies listener", "horsies maintenance"]
    wait_until(
        lambda: connected() == ours, "the connections of tasks, and of our own get(), have ended"
    )


# Notifications are enough for workers to find every task in time: no poll helps them


KINDS = (
    lambda: tasks.noop.send(),
    lambda: tasks.anoop.send(),
    lambda: tasks.mail.send("a@example.org"),
    lambda: tasks.noop.with_options(priority=3).send(),
    lambda: tasks.anoop.with_options(queue="mail").send(),
    lambda: tasks.noop.schedule(0.3),
    lambda: tasks.anoop.with_options(queue="bulk").schedule(0.05),
    lambda: tasks.noop.send_many([{}] * 5),
    lambda: tasks.raises.send("a failure, which only a whole pass can write"),
)


@pytest.mark.promise("S3.9")
@pytest.mark.parametrize("options", [("--processes=1",), ("--processes=2", "--queues=default")])
@pytest.mark.boundary
def test_every_sent_task_runs_when_it_is_due(worker: Start, options: tuple[str, ...]) -> None:
    worker(*options, HORSIES_TEST_POLL_MS="300000").ready()
    dice = random.Random(7)
    served = Task.objects.filter(queue_name="default") if len(options) > 1 else Task.objects.all()

    for _ in range(60):
        kinds = dice.choices(KINDS, k=dice.choice([1, 1, 2, 8]))
        if dice.random() < 0.3:
            with transaction.atomic():
                for send in kinds:
                    send()
        else:
            for send in kinds:
                send()

        if dice.random() < 0.5:
            wait_until(
                lambda: not served.filter(status__in=["PENDING", "RUNNING"]).exists(),
                "all of them ran",
            )

    wait_until(
        lambda: not served.filter(status__in=["PENDING", "RUNNING"]).exists(), "all of them ran"
    )
    assert not served.exclude(status="COMPLETED").exclude(task_name__endswith="raises").exists()


# Tasks of django.tasks


def finished(result: Any) -> Any:
    wait_until(
        lambda: result.refresh() or result.is_finished, f"{result.task.module_path} has finished"
    )
    return result


@pytest.mark.boundary
def test_enqueued_django_tasks_of_both_lanes_succeed(worker: Start) -> None:
    """Tasks of both lanes run, and every process can read their results."""
    worker("--processes=1", **apps("project", "errands")).ready()
    sent = [
        errands.add.enqueue(2, b=3),
        errands.later.enqueue(4),
        errands.which.enqueue(),
        errands.which_async.enqueue(),
    ]
    sent.append(errands.add.using(run_after=dt.timedelta(seconds=1)).enqueue(1))

    done = [finished(result) for result in sent]

    assert [result.status for result in done] == [TaskResultStatus.SUCCESSFUL] * 5
    assert [result.return_value for result in done[:3]] == [5, 5, sent[2].id]
    assert done[3].return_value == [sent[3].id, 1, str(sent[3].enqueued_at), "default"]

    for result in done:
        assert result.enqueued_at <= result.started_at <= result.finished_at
    assert done[4].started_at - done[4].enqueued_at >= dt.timedelta(seconds=1)
