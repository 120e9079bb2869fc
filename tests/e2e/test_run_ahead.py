"""Tasks that are started ahead and stand in line before a slot: short ones run together, and no long one holds them up."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from django.db import transaction

from horsies_django import TaskHandle
from horsies_django.models import Heartbeat, Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, held_by, let_go

SOFT = {"DJANGO_SETTINGS_MODULE": "tests.settings.soft", "HORSIES_TEST_PREFETCH": "200"}
MANY = 60


def learn() -> None:
    """Run short tasks until some of them were started at one moment: more than there are slots."""
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
    """Return how many of these tasks began at the moment at which most of them did, by their rows."""
    begun = Task.objects.filter(id__in=[handle.task_id for handle in handles]).values_list("started_at", flat=True)
    return Counter(begun).most_common(1)[0][1]


def attempts(handles: list[TaskHandle[None]]) -> int:
    return TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in handles]).count()


def test_what_stands_behind_a_long_task_or_one_that_kills_its_child_runs_elsewhere(worker: Start) -> None:
    process = worker("--processes=2", "--async-concurrency=1", "--max-tasks-per-child=0", **SOFT).ready()
    learn()
    with transaction.atomic():
        long = tasks.hold.send("long")
        behind = tasks.noop.send_many([{}] * MANY)
    held_by("long")
    wait_until(lambda: all_ended(behind), "all the short ones have run")
    assert long.info().status == "RUNNING"
    assert attempts(behind) == MANY
    assert Task.objects.filter(id__in=[handle.task_id for handle in behind], claim_generation__gt=1).exists()
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


def test_a_worker_that_stops_gives_back_what_stands_behind_a_long_task(worker: Start) -> None:
    process = worker("--processes=1", "--async-concurrency=1", "--max-tasks-per-child=0", **SOFT).ready()
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


def test_kills_among_lines_lose_nothing_and_run_nothing_twice(worker: Start, tmp_path: Path) -> None:
    options = ("--processes=2", "--async-concurrency=1", "--max-tasks-per-child=300")
    stale = {"HORSIES_TEST_STALE_MS": "2500"}
    workers = [worker(*options, **SOFT, **stale).ready() for _ in range(2)]
    learn()
    path = tmp_path / "jotted"
    sent = tasks.jot.send_many([{"path": str(path), "text": str(number)} for number in range(6_000)])
    rows = Task.objects.filter(id__in=[handle.task_id for handle in sent])
    for blow in range(10):
        wait_until(lambda blow=blow: rows.exclude(finished_at=None).count() >= 500 * blow, "they go on")
        if blow == 5:
            os.kill(workers.pop().process.pid, signal.SIGKILL)
            workers.append(worker(*options, **SOFT, **stale))
        else:
            child = random.Random(blow).choice(list(Heartbeat.objects.filter(role="runner", died_at=None)))
            with suppress(ProcessLookupError):  # it was replaced, or belonged to the worker that was killed
                os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not rows.filter(finished_at=None).exists(), "all have ended")
    ran = Counter(path.read_text().split())
    ended = dict(rows.values_list("id", "status"))
    crashed = 0
    for number, handle in enumerate(sent):
        crashed += ended[handle.task_id] == "FAILED"
        assert (ended[handle.task_id], ran[str(number)]) in (("COMPLETED", 1), ("FAILED", 0), ("FAILED", 1)), number
    assert crashed < 600
    assert set(rows.filter(status="FAILED").values_list("error_code", flat=True)) <= {"WORKER_CRASHED"}
    assert started_together(sent) > 4  # two workers of two slots would start four at most
