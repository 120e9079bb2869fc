"""Children that are replaced after some tasks, or when they have grown.

They are replaced one at a time, and no task is lost.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from horsies_django.models import TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)


def pids(count: int) -> Counter[int]:
    """Run some tasks, and return how many each process ran."""
    handles = tasks.pid.send_many([{}] * count)
    return Counter(handle.get(timeout_ms=60_000).ok_value for handle in handles)


@pytest.mark.promise("S1.9", "S1.13")
@pytest.mark.boundary
def test_a_child_is_replaced_after_a_number_of_tasks(
    worker: Start,
) -> None:
    """A child is replaced after its number of tasks, and the first ones end at different times."""
    process = worker("--processes=2", "--max-tasks-per-child=10").ready()
    ran = pids(40)

    assert sum(ran.values()) == 40
    assert max(ran.values()) == 10
    first, second = (TaskAttempt.objects.filter(child_pid=pid).count() for pid in list(ran)[:2])
    assert sorted((first, second)) == [5, 10]

    assert process.stop() == 0
    assert "crashed" not in process.log


@pytest.mark.promise("S1.8", "S1.16")
def test_only_the_option_ends_a_child_of_short_tasks(
    worker: Start,
) -> None:
    """Only ``--max-tasks-per-child`` ends a child of short tasks, after exactly that number."""
    first = worker("--processes=1").ready()
    assert tasks.main_thread.send().get().ok_value is True
    assert list(pids(150).values()) == [150]
    assert first.stop() == 0

    worker("--processes=1", "--max-tasks-per-child=60").ready()
    assert sorted(pids(150).values()) == [30, 60, 60]


def test_a_child_for_each_task_runs_async_tasks_and_threads_too(worker: Start) -> None:
    process = worker(
        "--processes=2", "--threads=2", "--async-concurrency=4", "--max-tasks-per-child=1"
    ).ready()

    handles = [tasks.add.send(1, b=number) for number in range(20)] + [
        tasks.anoop.send() for _ in range(20)
    ]

    assert all(handle.get(timeout_ms=60_000).is_ok() for handle in handles)
    ran = Counter(TaskAttempt.objects.values_list("child_pid", flat=True))
    assert max(ran.values()) <= 2  # one of each lane, if both were handed over at once
    assert len(ran) >= 20
    assert process.stop() == 0


@pytest.mark.promise("S1.19")
def test_a_child_that_retires_finishes_its_running_tasks(
    worker: Start,
) -> None:
    """A child that retires finishes its running tasks while a successor takes its place."""
    worker(
        "--processes=1", "--threads=2", "--max-tasks-per-child=2", "--max-claim-per-worker=2"
    ).ready()
    long = tasks.hold.send("long")
    old = held_by("long")

    assert tasks.pid.send().get(timeout_ms=30_000).ok_value == old
    new = tasks.pid.send().get(timeout_ms=30_000).ok_value
    assert new != old

    let_go("long")
    assert long.get(timeout_ms=30_000).ok_value == old


def refused_at(worker: Start) -> int:
    """Return how many MB a child takes at its start.

    The number is in the error of a worker that refuses a limit below it.
    """
    process = worker("--processes=1", "--max-memory-per-child-mb=10")
    assert process.wait() == 1
    return int(
        re.findall(r"--max-memory-per-child-mb=10 is not above the (\d+) MB", process.log)[0]
    )


@pytest.mark.promise("S1.24", "S1.25", "S1.26")
def test_a_memory_limit_below_the_start_of_a_child_is_refused(
    worker: Start,
) -> None:
    """A memory limit below the size of a child at its start is refused.

    A limit slightly above it logs one warning.
    """
    limit = refused_at(worker) * 1.1
    near = worker(
        "--processes=2", f"--max-memory-per-child-mb={limit}", "--max-tasks-per-child=0"
    ).ready()

    assert near.log.count("children will be replaced often") == 1


def test_children_that_grow_beside_long_tasks_do_not_pile_up(worker: Start) -> None:
    """Fails if: each of these children is replaced at once, until the fork server has no room for
    another and the worker ends.
    """
    process = worker(
        "--processes=1", f"--max-memory-per-child-mb={refused_at(worker) + 25}", "--loglevel=INFO"
    ).ready()

    long = []
    for number in range(13):
        long.append(tasks.ahold.send(str(number)))
        held_by(str(number))
        assert tasks.eats.send(40).get(timeout_ms=30_000).is_ok()

    assert process.log.count("MB; replacing it") == 5
    for number in range(13):
        let_go(str(number))
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in long)

    wait_until(
        lambda: process.log.count("MB; replacing it") == 6,
        "the last one is replaced once there is room",
    )
    assert process.stop() == 0


@pytest.mark.promise("S1.28", "S1.29", "S1.30")
def test_no_task_begins_in_a_child_at_its_memory_limit(
    worker: Start,
) -> None:
    """No task begins in a child at its memory limit.

    So the limit plus one task bounds the memory of a child.
    """
    limit = refused_at(worker) + 50
    process = worker(
        "--processes=1", f"--max-memory-per-child-mb={limit}", "--max-tasks-per-child=0"
    ).ready()

    told = [tasks.eats_and_tells.send(20).get(60_000).ok_value for _ in range(16)]

    assert all(before < limit for _, before, _ in told)
    assert all(after < limit + 25 for _, _, after in told)
    children = Counter(pid for pid, _, _ in told)
    assert len(children) >= 16 / 4
    # The memory that tasks keep adds up, so it takes more than one task to end a child.
    assert max(children.values()) >= 2
    assert process.stop() == 0
