"""The arithmetic of caps by itself: what holds for any limits, loads and tasks."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models.caps import Budget, Holding, Limits, Waiting, allot, least, order
from tests.support.sizes import examples

CALM = settings(max_examples=examples(20, 1_000), deadline=None, database=None, derandomize=True)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
QUEUES = ("a", "b", "c")


def test_tasks_come_by_queue_then_task_priority_then_time_then_id() -> None:
    limits = {"a": Limits(priority=1), "b": Limits(priority=50), "c": Limits(priority=50)}
    expected = [
        Waiting(9, "a", "sync", 90, NOON),
        Waiting(8, "c", "sync", 10, NOON),
        Waiting(2, "b", "sync", 100, NOON),
        Waiting(3, "b", "sync", 100, NOON),
        Waiting(5, "c", "sync", 100, NOON),
        Waiting(1, "b", "sync", 100, NOON + dt.timedelta(seconds=1)),
    ]
    assert order(reversed(expected), limits) == expected


SMALL = st.none() | st.integers(0, 4)
LEVELS = st.builds(Limits, st.sampled_from([1, 50]), SMALL, SMALL, SMALL, SMALL)
PARTS = st.sampled_from([None, "p", "q"])
HELD = st.lists(st.builds(Holding, st.sampled_from(QUEUES), PARTS, st.booleans(), st.booleans()), max_size=8)
BUDGETS = st.builds(
    Budget, st.integers(0, 5), st.integers(0, 5), st.integers(0, 3), st.none() | st.integers(0, 8), SMALL, st.booleans()
)  # fmt: skip
LINES = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.sampled_from(["sync", "async"]), st.integers(1, 2), st.integers(0, 2), PARTS,
              st.integers(0, 9).map(lambda number: number == 0)),
    max_size=25,
).map(lambda lines: [
    Waiting(id_, queue, lane, priority, NOON + dt.timedelta(seconds=seconds), partition, late)
    for id_, (queue, lane, priority, seconds, partition, late) in enumerate(lines)
])  # fmt: skip
WORLDS = st.fixed_dictionaries({
    "waiting": LINES,
    "limits": st.dictionaries(st.sampled_from(QUEUES), LEVELS, min_size=1),
    "held": HELD,
    "budget": BUDGETS,
    "cluster": st.none() | st.integers(0, 8),
    "workers": st.integers(1, 3),
})  # fmt: skip


def full_levels(task: Waiting, taken: list[Waiting], world: dict[str, Any]) -> list[str]:
    """Return the levels that have no room for ``task`` once ``taken`` are in flight, counted the plain way."""
    budget, limit = world["budget"], world["limits"][task.queue]
    held = [one for one in world["held"] if one.running or not budget.soft]
    mine = [one for one in held if one.here]

    def load(holdings: list[Holding], *, part: bool) -> int:
        return sum(
            one.queue == task.queue and (not part or one.partition == task.partition) for one in [*holdings, *taken]
        )

    of_queue = sum(one.queue == task.queue for one in taken)
    levels: list[tuple[str, int, int | None]] = [
        ("total", len(taken), budget.total),
        ("batch", of_queue, budget.batch),
        ("cluster", len(held) + len(taken), world["cluster"]),
        ("queue", load(held, part=False), limit.max_concurrency),
        ("worker", load(mine, part=False), limit.local_limit),
    ]
    if task.partition is not None:
        together = None if limit.partition_local_limit is None else limit.partition_local_limit * world["workers"]
        levels += [
            ("partition", load(held, part=True), least(limit.partition_max_concurrency, together)),
            ("partition here", load(mine, part=True), limit.partition_local_limit),
        ]
    return [name for name, used, most in levels if most is not None and used >= most]


def line(world: dict[str, Any]) -> list[Waiting]:
    return order((task for task in world["waiting"] if task.queue in world["limits"]), world["limits"])


@pytest.mark.thorough
@CALM
@given(WORLDS)
def test_each_task_taken_had_room_at_every_level_and_each_task_left_had_not(world: dict[str, Any]) -> None:
    """Walks along the line and counts everything anew at each task: slow, plain, and without any arithmetic of rooms."""
    found, budget = allot(**world), world["budget"]
    slots, buffer = {"sync": budget.sync, "async": budget.async_}, budget.buffer
    taken: list[Waiting] = []
    for task in line(world):
        full = full_levels(task, taken, world)
        if task.id in found.start:
            assert full == []
            slots[task.lane] -= 1
            taken.append(task)
        elif task.id in found.ahead:
            assert (full, slots[task.lane]) == ([], 0)
            buffer -= 1
            taken.append(task)
        else:
            assert task.late or full or not (slots[task.lane] or buffer)
    assert min(*slots.values(), buffer) >= 0
    assert [task.id for task in taken if task.id in found.start] == found.start
    assert [task.id for task in taken if task.id in found.ahead] == found.ahead


@pytest.mark.thorough
@CALM
@given(WORLDS)
def test_what_is_parked_could_start_on_no_worker_and_what_expires_was_late(world: dict[str, Any]) -> None:
    found, by_id = allot(**world), {task.id: task for task in world["waiting"]}
    taken = [by_id[id_] for id_ in found.start + found.ahead]
    elsewhere = {**world, "held": [one._replace(here=False) for one in world["held"]]}
    assert all("partition" in full_levels(by_id[id_], taken, elsewhere) for id_ in found.parked)
    assert all(by_id[id_].late for id_ in found.expired)
    assert not any(task.late for task in taken)
    moved = found.start + found.ahead + found.expired + found.parked
    assert len(moved) == len(set(moved))


@pytest.mark.thorough
@CALM
@given(WORLDS, st.randoms(use_true_random=False))
def test_the_order_in_which_tasks_and_loads_are_told_makes_no_difference(
    world: dict[str, Any], dice: random.Random
) -> None:
    shuffled = {**world, "waiting": dice.sample(world["waiting"], len(world["waiting"])), "held": world["held"][::-1]}
    assert allot(**shuffled) == allot(**world)


@pytest.mark.thorough
@CALM
@given(WORLDS)
def test_no_limit_is_the_same_as_one_that_cannot_bind(world: dict[str, Any]) -> None:
    wide = {
        name: Limits(limit.priority, *(1_000 if value is None else value for value in limit[1:]))
        for name, limit in world["limits"].items()
    }
    assert allot(**{**world, "limits": wide}) == allot(**world)


@pytest.mark.thorough
@CALM
@given(WORLDS)
def test_a_higher_queue_takes_as_if_the_lower_ones_were_not_there(world: dict[str, Any]) -> None:
    best = min(limit.priority for limit in world["limits"].values())
    top = {name: limit for name, limit in world["limits"].items() if limit.priority == best}
    names = {task.id for task in world["waiting"] if task.queue in top}
    found, alone = allot(**world), allot(**{**world, "limits": top})
    for together, apart in zip(found, alone, strict=True):
        assert [id_ for id_ in together if id_ in names] == apart
