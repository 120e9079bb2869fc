"""What a worker knows of where tasks may be, and when a short pass will do."""

from __future__ import annotations

import math
import uuid

import pytest

from horsies_django.core.records import Claim, Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.scan_cursors import SHARE, SLOW_OFTEN, WORTH_SECONDS
from horsies_django.worker.engine.wakeups import LONG_SECONDS, UNFIT_SECONDS, Wakeups

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
