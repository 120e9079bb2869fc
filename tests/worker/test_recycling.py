"""When a child is replaced, by a clock that the test keeps: exactly after a chosen count, and kindly after the default one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horsies_django.worker.child.executor import AsyncLane, SyncLane
from horsies_django.worker.child.interrupts import Control
from horsies_django.worker.ipc.channel import memory_pair
from horsies_django.worker.pool.process import PoolProcess
from horsies_django.worker.pool.recycling import Recycling
from horsies_django.worker.process.memory import Gauge
from horsies_django.worker.process.options import WorkerOptions

START = 1_000.0


def pool(processes: int, chosen: int | None = None) -> tuple[Recycling, list[PoolProcess]]:
    """Return the rules of a worker and its children, all of them ready at the same moment."""
    options = WorkerOptions(queues=("default",), processes=processes, max_tasks_per_child=chosen)
    recycling = Recycling(options)
    return recycling, [child(recycling, options, START) for _ in range(processes)]


def child(recycling: Recycling, options: WorkerOptions, ready_at: float) -> PoolProcess:
    made = PoolProcess(options)
    made.lifetime, made.ready, made.ready_at = recycling.lifetime(), True, ready_at
    return made


@pytest.mark.promise("S1.10")
def test_without_the_option_a_child_is_replaced_after_a_hundred_tasks_and_not_before_it_is_a_minute_old() -> None:
    recycling, (one,) = pool(1)
    one.taken = 99
    assert recycling.due([one], START + 3_600) == []
    one.taken = 100
    assert recycling.due([one], START + 59.9) == []
    assert one.free("sync") == 1
    assert recycling.due([one], START + 60) == [one]


def test_without_the_option_a_child_that_is_not_ready_yet_is_not_replaced() -> None:
    recycling, (one,) = pool(1)
    fresh = PoolProcess(WorkerOptions(queues=("default",), processes=1))
    fresh.taken = 100
    assert recycling.due([fresh], START + 3_600) == []


@pytest.mark.promise("S1.13")
def test_without_the_option_children_are_replaced_one_after_the_other_though_all_have_had_their_tasks() -> None:
    recycling, children = pool(4)
    for one in children:
        one.taken = 1_000
    moments = []
    for second in range(61, 181):
        for one in recycling.due(children, START + second):
            moments.append(second)
            children.remove(one)
    assert moments == [61, 76, 91, 106]


def test_a_count_that_was_chosen_is_exact_however_young_the_child_is() -> None:
    recycling, (one,) = pool(1, chosen=100)
    one.taken = 99
    assert one.free("sync") == 1
    assert recycling.due([one], START) == []
    one.taken = 100
    assert one.free("sync") == 0
    assert recycling.due([one], START) == [one]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_count_of_zero_replaces_nobody(processes: int) -> None:
    recycling, _ = pool(processes, chosen=0)
    one = child(recycling, WorkerOptions(queues=("default",), processes=processes), START)
    one.taken = 1_000_000
    assert recycling.due([one], START + 86_400) == []


def test_without_children_nobody_is_replaced() -> None:
    recycling, _ = pool(0)
    one = child(recycling, WorkerOptions(queues=("default",), processes=0), START)
    one.taken = 1_000_000
    assert recycling.due([one], START + 86_400) == []


@pytest.mark.parametrize("chosen", [None, 100])
def test_while_many_children_run_their_last_tasks_the_others_get_another_life(chosen: int | None) -> None:
    recycling, (one,) = pool(1, chosen)
    retired = [child(recycling, WorkerOptions(queues=("default",), processes=1), START) for _ in range(5)]
    for other in retired:
        other.replaced = True
    one.taken = 100
    assert recycling.due([one, *retired], START + 3_600) == []
    assert one.free("sync") == 1
    one.taken = 200
    assert recycling.due([one, *retired[1:]], START + 3_600) == [one]


@pytest.mark.promise("S1.28")
@pytest.mark.parametrize(
    ("lane", "name", "reply"), [(SyncLane, "add", "ran"), (AsyncLane, "anoop", "done")], ids=["sync", "async"]
)
def test_that_a_child_is_full_comes_before_the_reply_for_which_the_worker_may_send_it_another_task(
    lane: Any, name: str, reply: str
) -> None:
    (ours, theirs), (_, control) = memory_pair(), memory_pair()
    full = lane(theirs, [0, 0], Control(control), Gauge(1))
    kwargs = '{"a": 1}' if name == "add" else "{}"
    ours.send([(1, kwargs, ("0", f"tests.apps.project.tasks.{name}", 1, "default", "", 1, None))])
    ours.send(None)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(full.serve).result(30)
    assert [kind for kind, _ in ours.receive()] == ["full", reply]
