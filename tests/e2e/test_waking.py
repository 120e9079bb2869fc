"""No task waits while a worker is idle.

It waits neither for a poll, nor for a notified worker that died, nor behind a long task.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from horsies_django import TaskHandle
from horsies_django.models import Heartbeat, Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, WorkerProcess, given, held_by, let_go

NO_POLL = {"HORSIES_TEST_POLL_MS": "300000", "HORSIES_TEST_STALE_MS": "600000"}


def team(worker: Start, count: int) -> list[WorkerProcess]:
    """Start workers with one slot each.

    Returns them in the order of their election, once each has its place.
    """
    started = [
        worker("--processes=0", "--threads=1", "--queues=default", **NO_POLL) for _ in range(count)
    ]
    for each in started:
        each.ready()

    parents = Heartbeat.objects.filter(role="claimer")
    wait_until(lambda: parents.filter(listens=True).count() == count, "all of them listen")

    latest = max(parents.values_list("sent_at", flat=True))
    wait_until(
        lambda: parents.filter(sent_at__gt=latest).count() == count,
        "each has asked for its place since",
    )

    by_pid = {each.process.pid: each for each in started}
    return [by_pid[pid] for pid in parents.order_by("id").values_list("pid", flat=True)]


def held() -> int:
    """Return how many tasks have begun and wait at the gate."""
    return Group.objects.filter(name__startswith="held:").count()


@pytest.mark.promise("S3.9")
@pytest.mark.parametrize(("fate", "gone"), [(signal.SIGSTOP, [0, 1]), (signal.SIGKILL, [1, 2])])
def test_tasks_start_while_elected_workers_are_stopped_or_dead(
    worker: Start, fate: signal.Signals, gone: list[int]
) -> None:
    workers = team(worker, 3)
    for place in gone:
        workers[place].signal(fate)

    for _ in range(5):
        assert tasks.noop.send().get(30_000).is_ok()


def test_bursts_and_single_tasks_wake_as_many_workers_as_needed(worker: Start) -> None:
    """A burst and single tasks wake as many workers as they need."""
    team(worker, 5)
    tasks.hold.send_many([{"name": "held"}] * 5)
    wait_until(lambda: held() == 5, "each worker has one")
    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")

    for count in range(1, 6):
        tasks.hold.send("held")
        wait_until(
            lambda count=count: held() == count,
            "those that are not elected run it while the others are full",
        )

    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")


# Tasks that are started ahead and wait before a slot

SOFT = given(PREFETCH_BUFFER=200, CLAIM_LEASE_MS=5_000)
MANY = 60


def learn() -> None:
    """Run short tasks until more of them than there are slots were started at one moment."""
    for _ in range(20):
        sent = tasks.noop.send_many([{}] * 200)
        wait_until(lambda sent=sent: all_ended(sent), "short tasks have run")
        if started_together(sent) > 2:
            return

    raise AssertionError("no task was started ahead")


def all_ended(handles: list[TaskHandle[None]]) -> bool:
    ids = [handle.task_id for handle in handles]
    return Task.objects.filter(id__in=ids, status="COMPLETED").count() == len(ids)


def started_together(handles: list[TaskHandle[None]]) -> int:
    """Return how many of these tasks started at the most common start time of their rows."""
    begun = Task.objects.filter(id__in=[handle.task_id for handle in handles]).values_list(
        "started_at", flat=True
    )
    return Counter(begun).most_common(1)[0][1]


def attempts(handles: list[TaskHandle[None]]) -> int:
    return TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in handles]).count()


def test_tasks_behind_a_long_task_run_in_another_child(
    worker: Start,
) -> None:
    """Tasks behind a long task, or behind one that kills its child, run in another child."""
    process = worker(
        "--processes=2", "--async-concurrency=1", "--max-tasks-per-child=0", **SOFT
    ).ready()
    learn()

    with transaction.atomic():
        long = tasks.hold.send("long")
        behind = tasks.noop.send_many([{}] * MANY)
    held_by("long")
    wait_until(lambda: all_ended(behind), "all the short ones have run")

    assert long.info().status == "RUNNING"
    assert attempts(behind) == MANY
    assert Task.objects.filter(
        id__in=[handle.task_id for handle in behind], claim_generation__gt=1
    ).exists()

    let_go("long")
    assert long.get(timeout_ms=30_000).is_ok()

    learn()
    with transaction.atomic():
        fatal = tasks.dies.send("kill")
        behind = tasks.noop.send_many([{}] * MANY)

    assert fatal.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    wait_until(lambda: all_ended(behind), "all the others have run")
    assert attempts(behind) == MANY
    assert process.stop() == 0


def test_a_stopping_worker_releases_tasks_behind_a_long_task(worker: Start) -> None:
    """A worker that stops gives back the tasks behind a long task."""
    process = worker(
        "--processes=1", "--async-concurrency=1", "--max-tasks-per-child=0", **SOFT
    ).ready()
    learn()

    with transaction.atomic():
        long = tasks.hold.send("long")
        behind = tasks.noop.send_many([{}] * MANY)
    held_by("long")

    process.signal(signal.SIGTERM)
    back = Task.objects.filter(status="PENDING", started_at=None)
    wait_until(lambda: back.count() == MANY, "what stood in line is back")
    assert attempts(behind) == 0

    let_go("long")
    assert process.wait() == 0
    assert long.get(timeout_ms=30_000).is_ok()
