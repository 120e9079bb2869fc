"""Claims of large arguments: a pass takes a limited number of characters, but at least one task,
and reports if there are more tasks.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest

from horsies_django.core.records import Wanted
from horsies_django.models import Task
from tests.conftest import Claimer, Claimers, limit, put

LEASE = dt.timedelta(minutes=5)
MANY = 6
SIZE = 3 * 2**20  # so that a pass takes three
NEWS = ["default", None]  # a short pass and a whole one


def send(size: int, count: int = 1, **columns: Any) -> list[uuid.UUID]:
    """Send tasks with arguments of ``size`` characters, which PostgreSQL compresses to a
    hundredth.
    """
    return put(count, kwargs=[json.dumps({"data": "x" * size})] * count, **columns)


def drain(worker: Claimer, **asked: Any) -> list[int]:
    """Claim until a pass reports that nothing is left; return how many tasks each pass took."""
    taken = []
    again = True

    while again:
        passed = worker.run_pass(**asked)
        again = passed.again
        taken.append(len(passed.claims) + len(passed.prefetched))

    return taken


@pytest.mark.parametrize("news", NEWS)
@pytest.mark.parametrize("lane", ["sync", "async"])
def test_a_pass_takes_so_many_characters(claimer: Claimers, news: str | None, lane: str) -> None:
    """Fails if: a pass claims as many tasks as there are slots, however large they are."""
    ids = send(SIZE, MANY, lane=lane)
    worker = claimer()

    passed = worker.run_pass(100, 100, news=news)

    assert [claim.id for claim in passed.claims] == ids[:3]
    assert passed.again
    assert passed.short == (news is not None)
    assert Task.objects.filter(status="PENDING").count() == MANY - 3


@pytest.mark.parametrize("news", NEWS)
def test_the_rest_is_left_to_the_next_passes(claimer: Claimers, news: str | None) -> None:
    send(SIZE, MANY + 1)

    taken = drain(claimer(), sync=100, news=news)

    assert taken == [3, 3, 1]


@pytest.mark.parametrize("news", NEWS)
def test_a_task_beyond_the_limit_is_claimed_alone(claimer: Claimers, news: str | None) -> None:
    send(9 * 2**20, 2)

    taken = drain(claimer(), sync=100, news=news)

    assert sum(taken) == 2
    assert taken[0] == 1


@pytest.mark.parametrize("news", NEWS)
def test_small_arguments_are_not_counted(claimer: Claimers, news: str | None) -> None:
    """Fails if: compressed arguments count with the largest size that they could have had."""
    send(10_000, 400)

    passed = claimer().run_pass(1_000, news=news)

    assert len(passed.claims) == 400
    assert not passed.again


def test_uncompressed_arguments_count_as_they_are(claimer: Claimers, connect: Any) -> None:
    with connect() as conn:
        conn.execute("ALTER TABLE horsies_tasks ALTER kwargs SET STORAGE EXTERNAL")
        try:
            send(SIZE, MANY + 1)
        finally:
            conn.execute("ALTER TABLE horsies_tasks ALTER kwargs SET STORAGE EXTENDED")

    assert drain(claimer(), sync=100) == [3, 3, 1]


def test_a_prefetch_takes_no_more_than_that(claimer: Claimers) -> None:
    send(SIZE, MANY)
    worker = claimer()
    wanted = Wanted(sync=1, prefetch=100, lease=LEASE)

    passed = worker.run_pass(wanted=wanted)

    assert len(passed.claims) == 1
    assert len(passed.prefetched) == 2
    assert passed.again


def test_queues_of_several_priorities_share_the_limit(claimer: Claimers) -> None:
    worker = claimer(first=1, second=2)
    send(SIZE, 2, queue="first")
    send(SIZE, 2, queue="second")

    passed = worker.run_pass(100)

    assert [claim.queue_name for claim in passed.claims] == ["first", "first", "second"]
    assert passed.again


def test_equal_tasks_wait_for_one_that_runs(claimer: Claimers) -> None:
    """Fails if: tasks are merged into one that the pass leaves to the next pass."""
    worker = claimer()
    limit("default", partition_by_args=["key"], partition_policy="coalesce")
    for key in range(4):
        kwargs = json.dumps({"key": key, "data": "x" * SIZE})
        put(2, kwargs=[kwargs] * 2)

    passed = worker.run_pass(100)

    running = {claim.id for claim in passed.claims}
    merged = Task.objects.filter(error_code="MERGED")
    assert len(running) == 3
    assert {task.merged_into for task in merged} == running
