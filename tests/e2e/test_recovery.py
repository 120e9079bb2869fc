"""Workers that die, and workers that were only stopped: what they held comes free, once, and they do not go on with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Task, TaskAttempt, Worker
from horsies_django.worker.pool.process import is_over
from tests.apps.project import tasks
from tests.conftest import limit, wait_until
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SHORT = {"HORSIES_TEST_STALE_MS": "2500"}


def status(handle: object) -> str:
    return str(Task.objects.get(pk=handle.task_id).status)  # type: ignore[attr-defined]


@pytest.mark.promise("S2.21")
@pytest.mark.boundary
def test_the_tasks_of_a_killed_worker_fail_and_only_then_their_permit_is_free(worker: Start) -> None:
    limit("default", max_concurrency=1)
    first = worker("--processes=2", **SHORT).ready()
    lost, waits = tasks.hold.send("lost"), tasks.noop.send()
    held_by("lost")
    first.signal(signal.SIGKILL)
    worker("--processes=2", **SHORT).ready()
    assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert waits.get(timeout_ms=30_000).is_ok()
    dead, next_ = Task.objects.get(pk=lost.task_id), Task.objects.get(pk=waits.task_id)
    assert dead.status == "FAILED"
    assert next_.started_at >= dead.finished_at
    (attempt,) = TaskAttempt.objects.filter(task_id=lost.task_id)
    assert (attempt.outcome, attempt.error_code, attempt.worker_id) == (
        "WORKER_FAILURE",
        "WORKER_CRASHED",
        dead.claimed_by,
    )


@pytest.mark.parametrize("whole_group", [True, False], ids=["the whole group", "the parent alone"])
@pytest.mark.boundary
def test_a_stopped_worker_loses_its_tasks_and_its_code_writes_nothing_more(
    worker: Start, tmp_path: Path, whole_group: bool
) -> None:
    stopped = worker("--processes=1", "--queues=default", **SHORT).ready()
    path = tmp_path / "scribbled"
    handle = tasks.scribble.send(str(path))
    child = held_by("scribble")
    wait_until(lambda: path.exists() and path.stat().st_size, "it writes")
    stop = os.killpg if whole_group else os.kill
    stop(stopped.process.pid, signal.SIGSTOP)
    worker("--processes=1", "--queues=mail", **SHORT).ready()
    assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert is_over(child)
    size = path.stat().st_size
    stop(stopped.process.pid, signal.SIGCONT)
    wait_until(lambda: stopped.log.count("Worker started") == 2, "it starts anew")
    assert tasks.add.send(2, b=3).get(timeout_ms=30_000).ok_value == 5
    assert path.stat().st_size == size
    assert "was declared dead" in stopped.log
    assert Worker.objects.filter(pid=stopped.process.pid).count() == 2
    assert status(handle) == "FAILED"
    assert stopped.stop() == 0


def test_a_worker_that_is_stopped_again_in_its_second_life_loses_its_tasks_again(worker: Start, tmp_path: Path) -> None:
    worker("--processes=1", "--queues=mail", **SHORT).ready()
    stopped = worker("--processes=1", "--queues=default", **SHORT).ready()
    for life in (1, 2):
        path = tmp_path / f"scribbled-{life}"
        handle = tasks.scribble.send(str(path))
        wait_until(lambda path=path: path.exists() and path.stat().st_size, "it writes")
        os.killpg(stopped.process.pid, signal.SIGSTOP)
        assert handle.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
        size = path.stat().st_size
        os.killpg(stopped.process.pid, signal.SIGCONT)
        wait_until(lambda life=life: stopped.log.count("Worker started") == life + 1, "it starts anew")
        assert path.stat().st_size == size


def test_a_worker_that_others_never_missed_goes_on_after_a_short_stop(worker: Start) -> None:
    process = worker("--processes=1").ready()
    handle = tasks.hold.send("held")
    child = held_by("held")
    os.killpg(process.process.pid, signal.SIGSTOP)
    os.killpg(process.process.pid, signal.SIGCONT)
    let_go("held")
    assert handle.get(timeout_ms=30_000).ok_value == child
    assert Worker.objects.count() == 1


@pytest.mark.promise("S0.23")
def test_what_waits_in_a_buffer_keeps_its_lease_and_goes_back_when_its_worker_dies(worker: Start) -> None:
    soft = {"DJANGO_SETTINGS_MODULE": "tests.settings.soft", **SHORT}
    first = worker("--processes=1", "--async-concurrency=1", **soft).ready()
    running = tasks.hold.send("held")
    held_by("held")
    waiting = [tasks.noop.send() for _ in range(6)]
    wait_until(lambda: Task.objects.filter(status="CLAIMED").count() == 4, "four tasks wait in the buffer")
    claimed = Task.objects.filter(status="CLAIMED").order_by("id")
    assert [task.id for task in claimed] == [handle.task_id for handle in waiting[:4]]
    lease = claimed[0].claim_expires_at
    wait_until(lambda: Task.objects.get(pk=claimed[0].pk).claim_expires_at > lease, "the lease is renewed")
    first.signal(signal.SIGKILL)
    worker("--processes=1", **soft).ready()
    assert running.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in waiting)
    assert TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in waiting]).count() == 6


@pytest.mark.promise("S1.35")
def test_a_running_worker_follows_a_cap_that_is_raised_lowered_or_set_to_a_pause(worker: Start) -> None:
    limit("default", max_concurrency=1)
    worker("--processes=4").ready()
    running = lambda: Task.objects.filter(status="RUNNING").count()  # noqa: E731
    names = [f"held-{number}" for number in range(8)]
    for name in names:
        tasks.hold.send(name)
    held_by(names[0])
    assert running() == 1
    limit("default", max_concurrency=3)
    wait_until(lambda: Group.objects.count() == 3, "three run under the new cap")
    limit("default", max_concurrency=2)
    let_go(names[0])
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() == 1, "the first ends")
    let_go(names[1])
    held_by(names[3])
    assert running() == 2
    limit("default", max_concurrency=0)
    let_go(names[2])
    let_go(names[3])
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() == 4, "what ran ends")
    assert running() == 0
    limit("default", max_concurrency=None)
    wait_until(lambda: Group.objects.count() == 4, "all slots are used again")
    for name in names:
        let_go(name)


@pytest.mark.promise("S0.20", "S1.37")
def test_a_fast_worker_gets_the_tasks_that_a_slow_one_has_no_slot_for(worker: Start) -> None:
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
def test_the_narrowest_of_three_levels_decides(worker: Start) -> None:
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
