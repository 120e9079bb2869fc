"""The arithmetic of caps by itself: the properties that hold for any limits, loads and tasks."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models.caps import Budget, Holding, Limits, Waiting, allot, least, order
from tests.support.sizes import examples

CALM = settings(max_examples=examples(1_000, 2_000), deadline=None, database=None, derandomize=True)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
QUEUES = ("a", "b", "c")


SMALL = st.none() | st.integers(0, 4)
LEVELS = st.builds(Limits, st.sampled_from([1, 50]), SMALL, SMALL, SMALL, SMALL)
PARTS = st.sampled_from([None, "p", "q"])
HELD = st.lists(
    st.builds(Holding, st.sampled_from(QUEUES), PARTS, st.booleans(), st.booleans()), max_size=8
)
BUDGETS = st.builds(
    Budget,
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 3),
    st.none() | st.integers(0, 8),
    SMALL,
    st.booleans(),
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from(["sync", "async"]),
        st.integers(1, 2),
        st.integers(0, 2),
        PARTS,
        st.integers(0, 9).map(lambda number: number == 0),
    ),
    max_size=25,
).map(
    lambda lines: [
        Waiting(id_, queue, lane, priority, NOON + dt.timedelta(seconds=seconds), partition, late)
        for id_, (queue, lane, priority, seconds, partition, late) in enumerate(lines)
    ]
)
WORLDS = st.fixed_dictionaries(
    {
        "waiting": LINES,
        "limits": st.dictionaries(st.sampled_from(QUEUES), LEVELS, min_size=1),
        "held": HELD,
        "budget": BUDGETS,
        "cluster": st.none() | st.integers(0, 8),
        "workers": st.integers(1, 3),
    }
)


def full_levels(task: Waiting, taken: list[Waiting], world: dict[str, Any]) -> list[str]:
    """Return the levels without room for ``task`` when ``taken`` are in flight.

    They are counted the plain way.
    """
    budget = world["budget"]
    limit = world["limits"][task.queue]
    held = [one for one in world["held"] if one.running or not budget.soft]
    mine = [one for one in held if one.here]

    def load(holdings: list[Holding], *, part: bool) -> int:
        return sum(
            one.queue == task.queue and (not part or one.partition == task.partition)
            for one in [*holdings, *taken]
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
        together = (
            None
            if limit.partition_local_limit is None
            else limit.partition_local_limit * world["workers"]
        )
        levels += [
            ("partition", load(held, part=True), least(limit.partition_max_concurrency, together)),
            ("partition here", load(mine, part=True), limit.partition_local_limit),
        ]

    return [name for name, used, most in levels if most is not None and used >= most]


def line(world: dict[str, Any]) -> list[Waiting]:
    return order(
        (task for task in world["waiting"] if task.queue in world["limits"]), world["limits"]
    )


@pytest.mark.thorough
@CALM
@given(WORLDS)
def test_a_task_is_taken_exactly_when_it_has_room(
    world: dict[str, Any],
) -> None:
    """Each taken task had room, each task left had none, and a parked task can start nowhere.

    The test walks along the line and counts everything anew at each task: slow, plain, and without
    any arithmetic of rooms.
    """
    found = allot(**world)
    budget = world["budget"]
    slots = {"sync": budget.sync, "async": budget.async_}
    buffer = budget.buffer
    taken: list[Waiting] = []

    for task in line(world):
        full = full_levels(task, taken, world)
        if task.id in found.start:
            assert full == []
            slots[task.lane] -= 1
            taken.append(task)
        elif task.id in found.ahead:
            assert (task.lane, full, slots["sync"]) == ("sync", [], 0)
            buffer -= 1
            taken.append(task)
        else:
            assert task.late or full or not (slots[task.lane] or (buffer and task.lane == "sync"))

    assert min(*slots.values(), buffer) >= 0
    assert [task.id for task in taken if task.id in found.start] == found.start
    assert [task.id for task in taken if task.id in found.ahead] == found.ahead

    by_id = {task.id: task for task in world["waiting"]}
    elsewhere = {**world, "held": [one._replace(here=False) for one in world["held"]]}
    assert all("partition" in full_levels(by_id[id_], taken, elsewhere) for id_ in found.parked)
    assert all(by_id[id_].late for id_ in found.expired)

    assert not any(task.late for task in taken)
    moved = found.start + found.ahead + found.expired + found.parked
    assert len(moved) == len(set(moved))
