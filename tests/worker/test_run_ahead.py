"""How many tasks may stand in line, and what a task hears that was meant for it before it began."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest

from horsies_django.core.records import Claim
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker.child.interrupts import CANCEL, LONG_OVER, Control, SyncRun
from horsies_django.worker.ipc.channel import memory_pair
from horsies_django.worker.pool.process import MOST, STANDING_SECONDS, PoolProcess, RunAhead
from horsies_django.worker.pool.timeouts import TimeLimits, Timeouts
from horsies_django.worker.process.options import WorkerOptions


def learned(prefetch: int, slots: int, *durations: float) -> RunAhead:
    line = RunAhead(prefetch, slots)
    for seconds in durations:
        line.learn(seconds)
    return line


def test_nobody_stands_in_line_before_it_is_known_that_tasks_are_short() -> None:
    assert RunAhead(1_000, 1).depth == 0
    assert learned(1_000, 1, 2 * STANDING_SECONDS).depth == 0
    assert learned(1_000, 1, STANDING_SECONDS / 5).depth == 5


def test_the_buffer_of_the_settings_bounds_all_lines_together() -> None:
    assert learned(0, 2, 1e-5).depth == 0
    assert learned(7, 2, 1e-5).depth == 3
    assert learned(100_000, 2, 1e-7).depth == MOST


def test_one_long_task_among_short_ones_shortens_the_line_and_many_short_ones_lengthen_it_again() -> None:
    line = learned(1_000, 1, *[1e-4] * 100)
    assert line.depth >= 90
    line.learn(1.0)
    assert line.depth == 0
    for _ in range(1_000):
        line.learn(1e-4)
    assert line.depth >= 90


def test_no_line_while_a_cap_leaves_tasks_behind() -> None:
    line = learned(1_000, 1, 1e-4)
    line.limited = True
    assert line.depth == 0


@pytest.mark.parametrize(
    ("lane", "count", "told"),
    [("sync", 3, False), ("sync", 1, True), ("async", 3, True)],
    ids=["in line", "in a slot", "behind a blocked event loop"],
)
def test_the_time_of_a_task_does_not_run_while_it_stands_in_line_and_runs_everywhere_else(
    lane: str, count: int, told: bool
) -> None:
    member = PoolProcess(WorkerOptions(queues=(), processes=1))
    ours = [memory_pair() for _ in range(3)]
    member.channels = {"sync": ours[0][0], "async": ours[1][0]}
    member.control, heard, member.started = ours[2][0], ours[2][1], [0, 0]
    claims = [Claim(uuid4(), 1, lane, "tests.nothing", "{}") for _ in range(count)]
    member.dispatch(lane, claims)
    timeouts = Timeouts([member], TimeLimits(default=10.0))
    timeouts.watch(member, lane, 1, claims)
    timeouts.enforce(time.monotonic() + 11)
    assert bool(heard.receive()) == told
    assert timeouts.next > time.monotonic() + 11  # they are told later, or killed after the grace


@pytest.fixture
def control() -> Control:
    return Control(memory_pair()[0])


def test_a_cancel_that_comes_before_its_task_begins_is_heard_when_it_does(control: Control) -> None:
    control.hear(CANCEL, "sync", 7)
    others, mine = SyncRun(CurrentTask("1", "tests.nothing")), SyncRun(CurrentTask("2", "tests.nothing"))
    control.enter("sync", 6, others)
    control.enter("sync", 7, mine)
    assert (others.current.cancel_requested, mine.current.cancel_requested) == (False, True)


def test_what_was_said_to_a_task_that_is_over_is_forgotten_in_time(control: Control) -> None:
    control.hear(CANCEL, "sync", 7)
    control.enter("async", 9 + LONG_OVER, SyncRun(CurrentTask("1", "tests.nothing")))
    assert control.early
    control.enter("sync", 8 + LONG_OVER, SyncRun(CurrentTask("2", "tests.nothing")))
    assert not control.early
