"""The arithmetic of caps by itself: examples of every level, and what holds for any limits, loads and tasks."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.models.caps import Allotment, Budget, Holding, Limits, Waiting, allot, least, order, room
from tests.support.sizes import examples

CALM = settings(max_examples=examples(20, 1_000), deadline=None, database=None, derandomize=True)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
QUEUES = ("a", "b", "c")


def tasks(count: int, first: int = 0, queue: str = "a", **fields: Any) -> list[Waiting]:
    """Return tasks numbered from ``first``, sent at one moment."""
    values: dict[str, Any] = {"lane": "sync", "priority": 100, "enqueued_at": NOON, **fields}
    return [Waiting(first + number, queue, **values) for number in range(count)]


def many(*queue_loads: tuple[str, int], **fields: Any) -> list[Holding]:
    return [Holding(queue, **fields) for queue, load in queue_loads for _ in range(load)]


def started(
    waiting: list[Waiting], limits: dict[str, Limits], held: list[Holding], slots: int, **rest: Any
) -> Counter[str]:
    """Return how many tasks of each queue start on so many slots."""
    found = allot(waiting, limits, held, Budget(slots, 0, **rest.pop("budget", {})), **rest)
    queues = {task.id: task.queue for task in waiting}
    return Counter(queues[id_] for id_ in found.start)


@pytest.mark.parametrize(("limit", "load", "left"), [(None, 9, None), (0, 0, 0), (3, 1, 2), (3, 3, 0), (3, 5, 0)])
def test_a_room_is_what_is_left_under_a_limit_and_never_less_than_nothing(
    limit: int | None, load: int, left: int | None
) -> None:
    assert room(limit, load) == left


def test_the_narrowest_room_counts_and_no_limit_is_none() -> None:
    assert least(None, 3, None, 2) == 2
    assert least(None, None) is None
    assert least(0, None) == 0


def test_tasks_come_by_queue_then_task_priority_then_time_then_id() -> None:
    limits = {"a": Limits(priority=1), "b": Limits(priority=50), "c": Limits(priority=50)}
    later = NOON + dt.timedelta(seconds=1)
    expected = [
        *tasks(1, 9, "a", priority=90),
        *tasks(1, 8, "c", priority=10),
        *tasks(2, 2, "b"),
        *tasks(1, 5, "c"),
        *tasks(1, 1, "b", enqueued_at=later),
    ]
    assert order(reversed(expected), limits) == expected


def test_a_limit_of_none_counts_nothing_and_a_limit_of_nought_lets_nothing_start() -> None:
    held = many(("a", 50), ("b", 50))
    assert started(tasks(4), {"a": Limits()}, held, 9) == {"a": 4}
    assert started(tasks(4), {"a": Limits(max_concurrency=0)}, [], 9) == {}


def test_the_cluster_leaves_the_cap_less_all_in_flight_of_every_queue() -> None:
    held = many(("a", 3), ("nobody serves it here", 10))
    assert started(tasks(9), {"a": Limits()}, held, 8, cluster=15) == {"a": 2}
    assert started(tasks(9), {"a": Limits()}, held, 1, cluster=15) == {"a": 1}
    assert started(tasks(9), {"a": Limits()}, held, 8, cluster=12) == {}


def test_a_queue_gets_the_least_of_budget_room_and_batch() -> None:
    limits, held = {"a": Limits(max_concurrency=10), "b": Limits()}, many(("a", 6))
    waiting = tasks(9) + tasks(9, 20, "b")
    assert started(waiting, limits, held, 20) == {"a": 4, "b": 9}
    assert started(waiting, limits, held, 20, budget={"batch": 2}) == {"a": 2, "b": 2}
    assert started(waiting, limits, held, 20, budget={"total": 3}) == {"a": 3}


@pytest.mark.parametrize(
    ("slots", "local", "here", "elsewhere", "expected"),
    [(20, 5, 0, 0, 5), (20, 5, 3, 10, 2), (20, 20, 0, 13, 7), (4, 20, 0, 0, 4), (20, 5, 5, 0, 0)],
)
def test_without_partitions_slots_local_limit_and_what_is_left_of_the_cap_decide(
    slots: int, local: int, here: int, elsewhere: int, expected: int
) -> None:
    limits = {"a": Limits(max_concurrency=20, local_limit=local)}
    held = many(("a", here), here=True) + many(("a", elsewhere))
    assert started(tasks(30), limits, held, slots)["a"] == expected


def test_with_partitions_each_has_its_limit_and_all_together_the_slots() -> None:
    limits = {"a": Limits(partition_max_concurrency=2)}
    waiting = [task for number in range(9) for task in tasks(5, number * 10, partition=f"p{number}")]
    found = allot(waiting, limits, [Holding("a", "p0")], Budget(10, 0))
    assert found.start == [0, 10, 11, 20, 21, 30, 31, 40, 41, 50]
    assert found.parked == [1, 2, 3, 4, 12, 13, 14, 22, 23, 24, 32, 33, 34, 42, 43, 44]


def test_a_partition_full_here_is_left_for_others_and_one_full_everywhere_is_parked() -> None:
    limits = {"a": Limits(partition_local_limit=1)}
    waiting = tasks(3, partition="p")
    assert allot(waiting, limits, [], Budget(9, 0), workers=2) == Allotment([0], [], [], [])
    both = [Holding("a", "p", here=True), Holding("a", "p")]
    assert allot(waiting, limits, both, Budget(9, 0), workers=2) == Allotment([], [], [], [0, 1, 2])


def test_a_task_without_room_is_passed_over_and_later_ones_start() -> None:
    limits = {"a": Limits(priority=1, max_concurrency=1, partition_max_concurrency=1), "b": Limits(priority=50)}
    assert started(tasks(5) + tasks(5, 10, "b"), limits, [], 3) == {"a": 1, "b": 2}


def test_a_late_task_expires_where_it_would_have_been_looked_at_and_costs_no_permit() -> None:
    waiting = tasks(2, late=True) + tasks(2, 5) + tasks(1, 7, late=True)
    assert allot(waiting, {"a": Limits(max_concurrency=2)}, [], Budget(9, 0)) == Allotment([5, 6], [], [0, 1], [])


def test_in_hard_mode_claims_hold_permits_and_in_soft_mode_only_what_runs_does() -> None:
    limits = {"a": Limits(max_concurrency=3)}
    held = [Holding("a"), Holding("a", running=False), Holding("a", running=False)]
    assert allot(tasks(5), limits, held, Budget(5, 0)).start == []
    assert allot(tasks(5), limits, held, Budget(1, 0, buffer=9, soft=True)) == Allotment([0], [1], [], [])


def test_each_lane_starts_on_its_own_slots_and_then_waits_in_the_buffer() -> None:
    waiting = tasks(3) + tasks(3, 10, lane="async")
    assert allot(waiting, {"a": Limits()}, [], Budget(1, 2)) == Allotment([0, 10, 11], [], [], [])
    assert allot(waiting, {"a": Limits()}, [], Budget(1, 2, buffer=2, soft=True)) == Allotment(
        [0, 10, 11], [1, 2], [], []
    )


# --- what holds whatever the numbers are -----------------------------------------------------------------------------

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
