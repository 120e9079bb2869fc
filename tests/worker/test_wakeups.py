"""What a worker knows of where tasks may be, and when a short pass will do."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable

import pytest

from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.scan_cursors import SHARE, SLOW_OFTEN, WORTH_SECONDS
from horsies_django.worker.engine.wakeups import (
    BURST_SECONDS,
    FULL_SECONDS,
    LATER_SECONDS,
    LONG_SECONDS,
    NONE_FREE_SECONDS,
    UNFIT_SECONDS,
    WOKEN_SECONDS,
    Wakeups,
)

SLOTS = {"sync": 2, "async": 3}
WANTED = Wanted(2, 3)


def claims(lane: str, count: int) -> list[Claim]:
    return [Claim(uuid.uuid4(), 1, lane, "t", "{}") for _ in range(count)]


def learn(wakeups: Wakeups, passed: Passed, slots: dict[str, int] | None = None, wanted: Wanted = WANTED) -> None:
    wakeups.learn(slots or SLOTS, wanted, passed, 100.0)


@pytest.fixture
def dry() -> Wakeups:
    """What a worker of two queues knows after a whole pass that found nothing."""
    wakeups = Wakeups(["default", "mail"], 5.0)
    wakeups.look_everywhere()
    assert wakeups.lanes_with_work == {"sync", "async"}
    learn(wakeups, Passed())
    assert wakeups.lanes_with_work == set()
    return wakeups


def test_after_news_of_due_tasks_of_one_lane_and_queue_a_short_pass_looks_there_only(dry: Wakeups) -> None:
    dry.tell(["mail"], "async")
    assert dry.lanes_with_work == {"async"}
    assert dry.short_pass(0.0, Wanted(0, 3)) == (True, "mail")
    learn(dry, Passed(claims=claims("async", 1), short=True), {"sync": 0, "async": 3}, Wanted(0, 3))
    assert (dry.lanes_with_work, dry.whole_next) == (set(), False)


def test_a_lane_that_gave_all_that_was_wanted_is_asked_again(dry: Wakeups) -> None:
    dry.tell(["mail"], "async")
    learn(dry, Passed(claims=claims("async", 3), short=True))
    assert (dry.lanes_with_work, dry.whole_next) == ({"async"}, False)


def test_a_lane_is_asked_again_after_a_pass_that_claimed_all_that_it_might(dry: Wakeups) -> None:
    dry.tell(["mail"], "async")
    learn(dry, Passed(claims=claims("async", 2), limited=True), {"sync": 0, "async": 9}, Wanted(0, 9, total=2))
    assert dry.lanes_with_work == {"async"}
    learn(dry, Passed(limited=True), {"sync": 0, "async": 7}, Wanted(0, 7, total=0))
    assert dry.lanes_with_work == set()


def test_after_news_of_two_queues_it_takes_a_whole_pass(dry: Wakeups) -> None:
    dry.tell(["mail"], "async")
    dry.tell(["default"], "async")
    assert dry.short_pass(0.0, Wanted(0, 3)) == (False, None)
    assert dry.short_pass(0.0, Wanted()) == (True, None), "to write what is finished a short one will do"


def test_where_something_may_be_due_later_a_short_pass_is_followed_by_a_whole_one(dry: Wakeups) -> None:
    dry.tell(["mail"])
    assert dry.lanes_with_work == {"sync", "async"}
    assert dry.short_pass(0.0, WANTED) == (True, "mail")
    learn(dry, Passed(claims=claims("sync", 1), short=True))
    assert dry.lanes_with_work == {"sync", "async"}
    assert dry.short_pass(0.0, WANTED) == (False, None)
    learn(dry, Passed(due_in=7.0))
    assert (dry.lanes_with_work, dry.whole_next) == (set(), False)
    assert dry.due_at == pytest.approx(107.0, abs=0.01)


def test_what_is_known_to_become_due_outlives_a_short_pass_but_not_a_look_everywhere(dry: Wakeups) -> None:
    dry.tell(["mail"])
    learn(dry, Passed(due_in=7.0))
    dry.tell(["mail"], "sync")
    learn(dry, Passed(short=True), {"sync": 2, "async": 0}, Wanted(2, 0))
    assert dry.due_at == pytest.approx(107.0, abs=0.01)
    dry.look_everywhere()
    assert dry.due_at == math.inf
    assert dry.fresh["sync"] == {"default", "mail"}
    learn(dry, Passed(short=True))
    assert dry.whole_next


@pytest.mark.parametrize("wanted", [Wanted(2, 3, prefetch=1), Wanted(2, 3, batch=1), Wanted(2, 3, total=4)])
def test_a_short_pass_knows_no_buffer_and_no_bounds_of_claims(dry: Wakeups, wanted: Wanted) -> None:
    dry.tell(["mail"], "sync")
    assert dry.short_pass(0.0, wanted) == (False, None)


def test_where_caps_left_tasks_behind_it_takes_whole_passes(dry: Wakeups) -> None:
    dry.tell(["mail"], "sync")
    learn(dry, Passed(limited=True))
    assert dry.limited
    assert dry.short_pass(0.0, Wanted()) == (False, None)


def test_tasks_past_their_time_are_left_to_a_whole_pass_at_once(dry: Wakeups) -> None:
    dry.tell(["mail"], "sync")
    learn(dry, Passed(short=True, again=True), {"sync": 2, "async": 0}, Wanted(2, 0))
    assert (dry.lanes_with_work, dry.short_pass(0.0, Wanted(2, 0))) == ({"sync"}, (False, None))
    learn(dry, Passed(expired=[uuid.uuid4()]), {"sync": 2, "async": 0}, Wanted(2, 0))
    assert dry.short_pass(0.0, Wanted(2, 0)) == (True, "mail")


def test_a_slow_short_pass_rests_so_that_it_takes_a_small_part_of_the_time(dry: Wakeups) -> None:
    dry.note_short_pass(5.0, LONG_SECONDS, fit=True, scanned=True)
    assert dry.short_pass(4.9 + SHARE * LONG_SECONDS, Wanted()) == (False, None)
    assert dry.short_pass(5.1 + SHARE * LONG_SECONDS, Wanted()) == (True, None)


def test_short_passes_that_took_long_rest_only_when_many_in_a_row_did(dry: Wakeups) -> None:
    for _ in range(3):
        for _ in range(SLOW_OFTEN):
            dry.note_short_pass(5.0, WORTH_SECONDS, fit=True, scanned=True)
            assert dry.short_pass(5.0, Wanted()) == (True, None)
        dry.note_short_pass(5.0, WORTH_SECONDS / 2, fit=True, scanned=True)
    for _ in range(SLOW_OFTEN + 1):
        dry.note_short_pass(5.0, WORTH_SECONDS, fit=True, scanned=True)
    assert dry.short_pass(4.99 + SHARE * WORTH_SECONDS, Wanted()) == (False, None)
    assert dry.short_pass(5.01 + SHARE * WORTH_SECONDS, Wanted()) == (True, None)


def test_short_passes_between_them_that_claim_nothing_do_not_make_slow_ones_fewer(dry: Wakeups) -> None:
    """Naive: every second pass only settles, is fast, and starts the count again."""
    for _ in range(SLOW_OFTEN + 1):
        dry.note_short_pass(5.0, WORTH_SECONDS, fit=True, scanned=True)
        dry.note_short_pass(5.0, WORTH_SECONDS / 9, fit=True, scanned=False)
    assert dry.short_pass(5.0, Wanted()) == (False, None)


def test_where_there_are_limits_a_short_pass_is_tried_now_and_then(dry: Wakeups) -> None:
    dry.note_short_pass(5.0, 0.001, fit=False, scanned=True)
    assert dry.short_pass(4.9 + UNFIT_SECONDS, Wanted()) == (False, None)
    assert dry.short_pass(5.1 + UNFIT_SECONDS, Wanted()) == (True, None)


@pytest.fixture
def moment() -> list[float]:
    """The hand of a clock that stands still."""
    return [1_000.0]


@pytest.fixture
def dry_at(dry: Wakeups, moment: list[float]) -> Wakeups:
    """What that worker knows when the clock begins to stand still."""
    dry.clock = lambda: moment[0]
    dry.poll_at = 10_000.0
    dry.passes_on = False
    return dry


def looks_at(wakeups: Wakeups, moment: list[float]) -> float:
    """Let the time pass until it looks, and return how long that took; whatever was to be found is found then."""
    began = moment[0]
    if not wakeups.lanes_with_work:
        moment[0] = wakeups.next_at
        wakeups.tick(moment[0])
        for lane, queues in wakeups.take_later(moment[0]).items():
            wakeups.tell(queues, lane)
    assert wakeups.lanes_with_work
    learn(wakeups, Passed())
    return moment[0] - began


@pytest.mark.parametrize(("place", "after"), [(0, 0.0), (1, LATER_SECONDS[1]), (2, LATER_SECONDS[2])])
def test_the_elected_look_one_after_another(dry_at: Wakeups, moment: list[float], place: int, after: float) -> None:
    dry_at.place = place
    dry_at.hear(["mail"], "sync")
    assert looks_at(dry_at, moment) == pytest.approx(after)
    assert dry_at.next_at == 10_000.0, "once will do"


def test_who_is_not_elected_does_not_look(dry_at: Wakeups) -> None:
    dry_at.place = None
    dry_at.hear(["mail"], "sync")
    dry_at.due_at = 1_001.0
    assert (dry_at.lanes_with_work, dry_at.next_at) == (set(), 10_000.0)


def test_the_first_looks_again_behind_several_notifications_that_others_may_follow(
    dry_at: Wakeups, moment: list[float]
) -> None:
    for _ in range(2):
        dry_at.hear(["mail"], "sync")
        moment[0] += BURST_SECONDS / 2
    assert looks_at(dry_at, moment) == 0.0
    assert looks_at(dry_at, moment) == pytest.approx(LATER_SECONDS[0] - BURST_SECONDS / 2)
    assert dry_at.next_at == 10_000.0


@pytest.mark.parametrize("place", [1, 2])
def test_a_look_later_is_no_later_for_those_after_it_and_is_followed_by_one_for_them(
    dry_at: Wakeups, moment: list[float], place: int
) -> None:
    dry_at.place, heard = place, []
    for _ in range(3):
        dry_at.hear(["mail"], "sync")
        heard.append(moment[0])
        moment[0] += LATER_SECONDS[place] / 4
    looks_at(dry_at, moment)
    assert moment[0] == pytest.approx(heard[0] + LATER_SECONDS[place])
    looks_at(dry_at, moment)
    assert moment[0] == pytest.approx(heard[-1] + LATER_SECONDS[place])


def test_tasks_that_become_due_are_looked_for_one_after_another_too(dry_at: Wakeups, moment: list[float]) -> None:
    for place, after in enumerate((0.0, *LATER_SECONDS[1:])):
        dry_at.place, dry_at.due_at, dry_at.poll_at = place, moment[0] + 7.0, 10_000.0
        assert looks_at(dry_at, moment) == pytest.approx(7.0 + after)


def test_after_a_listen_it_looks_at_once_and_again(dry_at: Wakeups, moment: list[float]) -> None:
    dry_at.start_over()
    assert looks_at(dry_at, moment) == 0.0
    assert looks_at(dry_at, moment) == pytest.approx(LATER_SECONDS[0])


def full(*lanes: str) -> Callable[[str], int]:
    """Return how many slots are free where these lanes have none."""
    return lambda lane: 0 if lane in lanes else 1


def test_a_full_worker_passes_on_what_it_was_told_a_moment_later(dry_at: Wakeups, moment: list[float]) -> None:
    assert dry_at.lane_to_pass_on(moment[0], full("sync", "async")) is None
    dry_at.hear(["mail"], "sync")
    assert dry_at.lane_to_pass_on(moment[0], full("sync")) is None
    moment[0] = dry_at.pass_on_at
    assert dry_at.lane_to_pass_on(moment[0], full("sync")) == "sync"
    assert dry_at.lane_to_pass_on(moment[0], full("async")) is None, "it has a free slot by now"
    assert dry_at.pass_on_at == math.inf


@pytest.mark.parametrize(("woken", "again"), [(2, WOKEN_SECONDS), (0, NONE_FREE_SECONDS), (None, None)])
def test_it_passes_on_until_no_task_waits(
    dry_at: Wakeups, moment: list[float], woken: int | None, again: float | None
) -> None:
    dry_at.hear(["mail"], "sync")
    dry_at.passed_on(woken, 0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))
    assert dry_at.pass_on_at == (math.inf if again is None else pytest.approx(moment[0] + again))


def test_who_is_not_elected_passes_on_what_was_passed_on_to_it_and_gives_up_when_all_are_full(
    dry_at: Wakeups, moment: list[float]
) -> None:
    dry_at.place = None
    dry_at.look_everywhere()
    assert dry_at.lane_to_pass_on(moment[0] + 1, full("sync")) is None
    assert dry_at.pass_on_at == math.inf, "its polls are its own"
    dry_at.handlers()["now sync mail"](0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))
    assert dry_at.pass_on_at == pytest.approx(moment[0] + FULL_SECONDS)
    dry_at.passed_on(0, 0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))
    assert dry_at.pass_on_at == math.inf


def test_what_is_told_to_it_alone(dry_at: Wakeups) -> None:
    handlers = dry_at.handlers()
    handlers["place 2"](0.0)
    assert dry_at.place == 2
    handlers["now async *"](0.0)
    assert dry_at.fresh == {"sync": set(), "async": {"default", "mail"}}
