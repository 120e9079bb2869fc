"""Workers that die, and workers that come back after they were given up.

Their tasks run once, and nothing is written by the old workers.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from tests.apps.project import points, tasks
from tests.conftest import Connect, limit, sql, wait_until
from tests.support.forwarder import Forwarder
from tests.support.points import Fate, Walker, replies_in_the_pipe
from tests.support.workers import (
    SHORT,
    Start,
    WorkerProcess,
    database_url,
    given,
    held_by,
    is_over,
    let_go,
)


@pytest.mark.promise("S2.21")
@pytest.mark.boundary
def test_a_killed_worker_keeps_its_permit_until_its_task_fails(
    worker: Start,
) -> None:
    """The tasks of a killed worker fail, and its permit is free only then."""
    limit("default", max_concurrency=1)
    first = worker("--processes=2", **SHORT).ready()
    lost = tasks.hold.send("lost")
    waits = tasks.noop.send()
    held_by("lost")

    first.signal(signal.SIGKILL)
    worker("--processes=2", **SHORT).ready()

    assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert waits.get(timeout_ms=30_000).is_ok()

    dead = Task.objects.get(pk=lost.task_id)
    next_ = Task.objects.get(pk=waits.task_id)
    assert dead.status == "FAILED"
    assert next_.started_at >= dead.finished_at

    (attempt,) = TaskAttempt.objects.filter(task_id=lost.task_id)
    assert (attempt.outcome, attempt.error_code) == ("WORKER_FAILURE", "WORKER_CRASHED")
    assert attempt.worker_id == dead.claimed_by


@pytest.mark.parametrize("whole_group", [True, False], ids=["the whole group", "the parent alone"])
@pytest.mark.boundary
def test_the_code_of_a_stopped_worker_writes_nothing_more(
    worker: Start, tmp_path: Path, whole_group: bool
) -> None:
    """A stopped worker loses its tasks, and their code writes nothing more, even after SIGCONT."""
    worker("--processes=1", "--queues=mail", **SHORT).ready()
    stopped = worker("--processes=1", "--queues=default", **SHORT).ready()
    stop = os.killpg if whole_group else os.kill

    for life in (1, 2):
        path = tmp_path / f"scribbled-{life}"
        handle = tasks.scribble.send(str(path))
        child = held_by("scribble")
        wait_until(lambda path=path: path.exists() and path.stat().st_size, "it writes")

        stop(stopped.process.pid, signal.SIGSTOP)
        assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
        assert is_over(child)
        size = path.stat().st_size

        stop(stopped.process.pid, signal.SIGCONT)
        wait_until(
            lambda life=life: stopped.log.count("Worker started") == life + 1, "it starts anew"
        )

        assert tasks.add.send(2, b=3).get(timeout_ms=30_000).ok_value == 5
        assert path.stat().st_size == size
        assert Task.objects.get(pk=handle.task_id).status == "FAILED"
        let_go("scribble")

    assert stopped.log.count("was declared dead") == 2
    assert Worker.objects.filter(pid=stopped.process.pid).count() == 3
    assert stopped.stop() == 0


def test_a_worker_goes_on_after_a_short_stop(worker: Start) -> None:
    """A worker goes on after a stop that was too short for the others to notice."""
    process = worker("--processes=1").ready()
    handle = tasks.hold.send("held")
    child = held_by("held")

    os.killpg(process.process.pid, signal.SIGSTOP)
    os.killpg(process.process.pid, signal.SIGCONT)
    let_go("held")

    assert handle.get(timeout_ms=30_000).ok_value == child
    assert Worker.objects.count() == 1


@pytest.mark.promise("S0.23")
def test_a_buffered_task_goes_back_when_its_worker_dies(
    worker: Start,
) -> None:
    """Tasks in a buffer keep their lease, and go back when their worker dies."""
    soft = {**given(PREFETCH_BUFFER=4, CLAIM_LEASE_MS=5_000), **SHORT}
    first = worker("--processes=1", "--async-concurrency=1", **soft).ready()
    running = tasks.hold.send("held")
    held_by("held")
    waiting = [tasks.noop.send() for _ in range(6)]

    wait_until(
        lambda: Task.objects.filter(status="CLAIMED").count() == 4, "four tasks wait in the buffer"
    )
    claimed = Task.objects.filter(status="CLAIMED").order_by("id")
    assert [task.id for task in claimed] == [handle.task_id for handle in waiting[:4]]

    lease = claimed[0].claim_expires_at
    wait_until(
        lambda: Task.objects.get(pk=claimed[0].pk).claim_expires_at > lease, "the lease is renewed"
    )

    first.signal(signal.SIGKILL)
    worker("--processes=1", **soft).ready()

    assert running.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in waiting)
    assert (
        TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in waiting]).count() == 6
    )


@pytest.mark.promise("S0.20", "S1.37")
def test_a_fast_worker_gets_the_tasks_of_a_worker_without_a_slot(worker: Start) -> None:
    """A fast worker gets the tasks for which a slow worker has no slot."""
    worker("--processes=1", "--queues=default,bulk").ready()
    tasks.hold.with_options(queue="bulk").send("slow")
    slow = held_by("slow")

    worker("--processes=1", "--queues=default").ready()
    quick = [tasks.pid.send() for _ in range(20)]
    children = {handle.get(timeout_ms=30_000).ok_value for handle in quick}

    assert len(children) == 1
    assert slow not in children
    let_go("slow")


@pytest.mark.promise("S0.5", "S1.5", "S3.15", "S4.1")
def test_the_lowest_of_slots_queue_cap_and_cluster_cap_applies(worker: Start) -> None:
    limit("default", max_concurrency=3)
    limit("*", max_concurrency=4)
    worker("--processes=2").ready()

    for name in ("a", "b", "c", "d", "e"):
        tasks.hold.send(name)
    wait_until(lambda: Group.objects.count() == 2, "the worker's two slots are used")

    worker("--processes=3", "--queues=default,bulk").ready()
    wait_until(lambda: Group.objects.count() == 3, "the queue's cap is used")

    for name in ("f", "g"):
        tasks.hold.with_options(queue="bulk").send(name)
    wait_until(lambda: Group.objects.count() == 4, "the cluster's cap is used")
    assert Task.objects.filter(status="RUNNING", queue_name="default").count() == 3

    limit("*", max_concurrency=None)
    wait_until(lambda: Group.objects.count() == 5, "all five slots are used")

    for name in "abcdefg":
        let_go(name)


# Workers that come back


def run_by_another(walker: Walker, worker: Start) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Rescue and finish the task by another worker. Return its row and its attempts."""
    begun = len(walker.wrote("began"))
    worker("--processes=1", **SHORT).ready()
    wait_until(lambda: len(walker.wrote("began")) > begun, "another worker runs it")

    walker.may("go", "out")
    walker.handle.get(timeout_ms=30_000)
    return written(walker)


def written(walker: Walker) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of a task and its attempts."""
    id_ = walker.handle.task_id
    return Task.objects.filter(pk=id_).values().get(), list(
        TaskAttempt.objects.filter(task_id=id_).values()
    )


def test_a_stopped_worker_comes_back_after_another_ran_its_task(
    worker: Start, tmp_path: Path
) -> None:
    """A stopped worker starts anew and changes nothing after another has run its task."""
    zombie = worker("--processes=1", "--queues=default", **SHORT).ready()
    walker = Walker(tmp_path / "walker", points.walks_again.send(str(tmp_path / "walker")))
    child = walker.stands("began")

    zombie.signal(signal.SIGSTOP)
    walker.may("go", "out")
    wait_until(lambda: replies_in_the_pipe(zombie), "its reply lies in the pipe")

    task, attempts = run_by_another(walker, worker)
    assert task["claim_generation"] == 2
    assert [one["child_pid"] for one in attempts] != [child]

    wrote = walker.path.read_text()
    os.killpg(zombie.process.pid, signal.SIGCONT)
    wait_until(lambda: zombie.log.count("Worker started") == 2, "it starts anew")

    assert written(walker) == (task, attempts)
    assert walker.path.read_text() == wrote
    assert "was declared dead" in zombie.log
    assert f"task {task['id']} no longer belongs to worker" in zombie.log
    assert "generation 1; dropping its outcome" in zombie.log


def test_the_outcome_of_a_worker_that_was_cut_off_is_dropped(
    worker: Start, link: Forwarder, tmp_path: Path
) -> None:
    """The outcome of a worker that was cut off is dropped if another has run the task.

    By default its task goes on and may run twice, because the worker cannot detect that others
    still reach the database.
    """
    zombie = worker(
        "--processes=1", "--queues=default", **link.way(database_url()), **SHORT
    ).ready()
    walker = Walker(tmp_path / "walker", points.walks_again.send(str(tmp_path / "walker")))
    child = walker.stands("began")

    link.apart = True
    link.cut()

    task, attempts = run_by_another(walker, worker)
    assert (task["status"], task["claim_generation"]) == ("COMPLETED", 2)
    wait_until(lambda: child in walker.wrote("ended"), "it went on here, too")

    link.apart = False
    wait_until(lambda: zombie.log.count("Worker started") == 2, "it starts anew")

    assert written(walker) == (task, attempts)
    assert f"task {task['id']} no longer belongs to worker" in zombie.log
    assert "generation 1; dropping its outcome" in zombie.log


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_an_open_cancel_stops_no_worker_and_loses_no_outcome(
    shared_worker: WorkerProcess, connect: Connect, tmp_path: Path, decision: str
) -> None:
    """A cancel in an open transaction stops no worker and loses no outcome."""
    walker = Walker(tmp_path / "walker", points.walks.send(str(tmp_path / "walker")))
    walker.stands("began")

    somebody = connect()
    somebody.execute("BEGIN")
    verdicts = TaskStore(somebody).cancel(
        [walker.handle.task_id], channel_prefix(somebody), terminate=False
    )
    assert verdicts == {walker.handle.task_id: "REQUESTED"}

    walker.may("go", "out")
    # The only slot is used again and again, although the first outcome cannot be written yet.
    for _ in range(3):
        assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert walker.handle.info().status == "RUNNING"

    somebody.execute(decision.upper())
    assert walker.fate() == Fate("COMPLETED", None, ["COMPLETED"], 0, began=1, ended=1)


def test_a_beat_writes_one_row_per_process(worker: Start) -> None:
    """A worker with a thousand running tasks writes one row per process at each heartbeat."""
    worker("--processes=1", "--async-concurrency=1000", "--max-tasks-per-child=0").ready()
    points.stays.send_many([{}] * 1_000)
    wait_until(lambda: Task.objects.filter(status="RUNNING").count() == 1_000, "all of them run")

    versions = "SELECT id, xmin::text FROM horsies_tasks ORDER BY id"
    before = sql(versions)
    beats = set()
    written = Heartbeat.objects.values_list("id", "sent_at")
    wait_until(lambda: beats.update(written.all()) or len(beats) >= 10, "beats of both processes")

    assert len({process for process, _ in beats}) == Heartbeat.objects.count() == 2
    assert sql(versions) == before, "no task was written"
