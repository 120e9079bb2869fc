"""The knowledge of a worker about places with tasks.

It decides when a short pass is enough, and at which cursors scans begin.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from horsies_django.core.records import Wanted
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.scan_cursors import (
    HIGHEST,
    LAG_SECONDS,
    PRIORITIES,
    SPACING_FACTOR,
    ScanCursors,
    ranges,
)
from horsies_django.worker.engine.wakeups import AFTER, NOTIFICATION_BURST_SECONDS, Wakeups
from tests.worker.conftest import claims

SLOTS = {"sync": 2, "async": 3}
WANTED = Wanted(2, 3)


def learn(
    wakeups: Wakeups, passed: Passed, slots: dict[str, int] | None = None, wanted: Wanted = WANTED
) -> None:
    wakeups.learn(slots or SLOTS, wanted, passed, 100.0)


@pytest.fixture
def dry() -> Wakeups:
    """Return the wakeups of a worker of two queues after a whole pass that found nothing."""
    wakeups = Wakeups(["default", "mail"], 5.0)
    wakeups.check_everywhere()
    assert wakeups.lanes_with_work == {"sync", "async"}

    learn(wakeups, Passed())
    assert wakeups.lanes_with_work == set()
    return wakeups


def test_a_short_pass_scans_only_the_lane_and_queue_of_the_news(
    dry: Wakeups,
) -> None:
    """After news of due tasks in one lane and queue, a short pass scans only these."""
    dry.mark_fresh(["mail"], "async")
    assert dry.lanes_with_work == {"async"}
    assert dry.queue_for_short_pass(0.0, Wanted(0, 3)) == "mail"

    learn(
        dry,
        Passed(claims=claims(lane="async", count=1), short=True),
        {"sync": 0, "async": 3},
        Wanted(0, 3),
    )
    assert (dry.lanes_with_work, dry.whole_next) == (set(), False)

    dry.mark_fresh(["mail"], "async")
    dry.mark_fresh(["default"], "async")
    assert dry.queue_for_short_pass(0.0, Wanted(0, 3)) is None, (
        "news of two queues take a whole pass"
    )


def test_a_lane_that_gave_all_wanted_tasks_is_scanned_again(
    dry: Wakeups,
) -> None:
    """A lane that gave as many tasks as were wanted or allowed is scanned again."""
    dry.mark_fresh(["mail"], "async")
    learn(dry, Passed(claims=claims(lane="async", count=3), short=True))
    assert (dry.lanes_with_work, dry.whole_next) == ({"async"}, False)

    learn(
        dry,
        Passed(claims=claims(lane="async", count=2), limited=True),
        {"sync": 0, "async": 9},
        Wanted(0, 9, total=2),
    )
    assert dry.lanes_with_work == {"async"}

    learn(dry, Passed(limited=True), {"sync": 0, "async": 7}, Wanted(0, 7, total=0))
    assert dry.lanes_with_work == set()
    assert dry.limited
    assert dry.queue_for_short_pass(0.0, Wanted()) is None, (
        "where caps left tasks behind it looks everywhere"
    )


def test_a_short_pass_is_followed_by_a_whole_one_for_later_tasks(
    dry: Wakeups,
) -> None:
    """A short pass is followed by a whole one if tasks of the queue may be due later."""
    dry.mark_fresh(["mail"])
    assert dry.lanes_with_work == {"sync", "async"}
    assert dry.queue_for_short_pass(0.0, WANTED) == "mail"

    learn(dry, Passed(claims=claims(1), short=True))
    assert dry.lanes_with_work == {"sync", "async"}
    assert dry.queue_for_short_pass(0.0, WANTED) is None

    learn(dry, Passed(due_in=7.0))
    assert (dry.lanes_with_work, dry.whole_next) == (set(), False)
    assert dry.due_at == pytest.approx(107.0, abs=0.01)


def test_a_known_due_time_survives_a_short_pass(
    dry: Wakeups,
) -> None:
    """A known due time survives a short pass, but not a pass over everything."""
    dry.mark_fresh(["mail"])
    learn(dry, Passed(due_in=7.0))

    dry.mark_fresh(["mail"], "sync")
    learn(dry, Passed(short=True), {"sync": 2, "async": 0}, Wanted(2, 0))
    assert dry.due_at == pytest.approx(107.0, abs=0.01)

    dry.check_everywhere()
    assert dry.due_at == math.inf
    assert dry.fresh["sync"] == {"default", "mail"}

    learn(dry, Passed(short=True))
    assert dry.whole_next


def test_a_short_pass_that_reads_far_is_followed_by_whole_ones(dry: Wakeups) -> None:
    """A short pass that reads far is followed by whole ones for a while."""
    dry.mark_fresh(["mail"], "sync")
    dry.avoid_short(5.0, 0.1)

    assert dry.queue_for_short_pass(4.9 + SPACING_FACTOR * 0.1, WANTED) is None
    assert dry.queue_for_short_pass(5.1 + SPACING_FACTOR * 0.1, WANTED) == "mail"


@pytest.fixture
def moment() -> list[float]:
    """Return the time of a clock that stands still."""
    return [1_000.0]


@pytest.fixture
def dry_at(dry: Wakeups, moment: list[float]) -> Wakeups:
    """Return the wakeups with this clock, at the moment when it stops."""
    dry.clock = lambda: moment[0]
    dry.poll_at = 10_000.0
    dry.passes_on = False
    return dry


def looks_at(wakeups: Wakeups, moment: list[float]) -> float:
    """Move the clock until the worker looks for tasks, and return how long that took.

    The look finds all tasks that there are.
    """
    began = moment[0]

    if not wakeups.lanes_with_work:
        moment[0] = wakeups.next_at
        wakeups.tick(moment[0])
        for lane, queues in wakeups.take_later(moment[0]).items():
            wakeups.mark_fresh(queues, lane)

    assert wakeups.lanes_with_work
    learn(wakeups, Passed())
    return moment[0] - began


@pytest.mark.parametrize(("place", "after"), [*enumerate(AFTER["sent"][:3])])
def test_elected_workers_check_queues_one_after_another(
    dry_at: Wakeups, moment: list[float], place: int, after: float
) -> None:
    dry_at.place = place
    dry_at.handle_notification(["mail"], "sync")
    assert looks_at(dry_at, moment) == pytest.approx(after)
    assert dry_at.next_at == 10_000.0, "once will do"

    dry_at.due_at = moment[0] + 7.0
    assert looks_at(dry_at, moment) == pytest.approx(7.0 + after), "for tasks that become due, too"

    dry_at.place = None
    dry_at.due_at = 1_001.0
    dry_at.poll_at = 10_000.0
    dry_at.handle_notification(["mail"], "sync")

    assert (dry_at.lanes_with_work, dry_at.next_at) == (set(), 10_000.0), (
        "who is not elected does not look"
    )


def test_the_first_worker_checks_again_after_a_burst_or_listen(
    dry_at: Wakeups, moment: list[float]
) -> None:
    for _ in range(2):
        dry_at.handle_notification(["mail"], "sync")
        moment[0] += NOTIFICATION_BURST_SECONDS / 2

    assert looks_at(dry_at, moment) == 0.0
    assert looks_at(dry_at, moment) == pytest.approx(
        AFTER["burst"][0] - NOTIFICATION_BURST_SECONDS / 2
    )
    assert dry_at.next_at == 10_000.0

    dry_at.start_over()
    assert looks_at(dry_at, moment) == 0.0
    assert looks_at(dry_at, moment) == pytest.approx(AFTER["burst"][0])


@pytest.mark.parametrize("place", [1, 2])
def test_a_delayed_check_is_repeated_for_the_last_notification(
    dry_at: Wakeups, moment: list[float], place: int
) -> None:
    dry_at.place = place
    heard = []
    for _ in range(3):
        dry_at.handle_notification(["mail"], "sync")
        heard.append(moment[0])
        moment[0] += AFTER["burst"][place] / 4

    looks_at(dry_at, moment)
    assert moment[0] == pytest.approx(heard[0] + AFTER["burst"][place])

    looks_at(dry_at, moment)
    assert moment[0] == pytest.approx(heard[-1] + AFTER["burst"][place])


def full(*lanes: str) -> Callable[[str], int]:
    """Return a function that counts free slots: none in these lanes, and one in others."""
    return lambda lane: 0 if lane in lanes else 1


def test_a_full_worker_passes_on_news_a_moment_later(dry_at: Wakeups, moment: list[float]) -> None:
    assert dry_at.lane_to_pass_on(moment[0], full("sync", "async")) is None

    dry_at.handle_notification(["mail"], "sync")
    assert dry_at.lane_to_pass_on(moment[0], full("sync")) is None

    moment[0] = dry_at.pass_on_at
    assert dry_at.lane_to_pass_on(moment[0], full("sync")) == "sync"
    assert dry_at.lane_to_pass_on(moment[0], full("async")) is None, "it has a free slot by now"
    assert dry_at.pass_on_at == math.inf


@pytest.mark.parametrize(
    ("woken", "again"), [(2, AFTER["woken"][0]), (0, AFTER["none free"][0]), (None, None)]
)
def test_it_passes_on_until_no_task_waits(
    dry_at: Wakeups, moment: list[float], woken: int | None, again: float | None
) -> None:
    dry_at.handle_notification(["mail"], "sync")
    dry_at.passed_on(woken, 0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))

    assert dry_at.pass_on_at == (math.inf if again is None else pytest.approx(moment[0] + again))


def test_who_is_not_elected_passes_on_until_all_are_full(
    dry_at: Wakeups, moment: list[float]
) -> None:
    dry_at.place = None
    dry_at.check_everywhere()
    assert dry_at.lane_to_pass_on(moment[0] + 1, full("sync")) is None
    assert dry_at.pass_on_at == math.inf, "its polls are its own"

    dry_at.handlers()["now sync mail"](0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))
    assert dry_at.pass_on_at == pytest.approx(moment[0] + AFTER["full"][0])

    dry_at.passed_on(0, 0.0)
    dry_at.lane_to_pass_on(moment[0], full("sync"))
    assert dry_at.pass_on_at == math.inf


def test_a_message_to_one_worker_sets_its_place_or_wakes_it(dry_at: Wakeups) -> None:
    handlers = dry_at.handlers()
    handlers["place 2"](0.0)
    assert dry_at.place == 2

    handlers["now async *"](0.0)
    assert dry_at.fresh == {"sync": set(), "async": {"default", "mail"}}


NOW = 1_700_000_000.0
LATEST = NOW - LAG_SECONDS


@pytest.fixture
def cursors() -> ScanCursors:
    made = ScanCursors(["default", "mail"], lambda queues, lane=None: None, 10.0)
    made.far = True
    made.forget_at = 5.0
    return made


def passed(*, far: bool = True, **firsts: Any) -> Passed:
    """Return a pass that found ``firsts`` in the sync lane of the default queue.

    These are moments, with "p" and the priority as names.
    """
    lane = {name.removeprefix("p"): since for name, since in firsts.items()}
    return Passed(firsts=[{"default": {"sync": lane}}], now=NOW, far=far)


def lane(cursors: ScanCursors, now: float = 0.0) -> Any:
    text = cursors.text(now)
    assert text is not None
    return json.loads(text)["default"].get("sync")


def test_each_priority_has_its_own_mark(
    cursors: ScanCursors,
) -> None:
    """Each priority has its own mark.

    Priorities without a mark are scanned from the start.
    """
    assert lane(cursors) is None

    cursors.learn(passed(p5=NOW - 7, p100=NOW - 9), 0.0, 0.0)
    assert lane(cursors) == [
        {"low": 1, "high": 4},
        {"low": 5, "high": 5, "since": NOW - 7},
        {"low": 6, "high": 99},
        {"low": 100, "high": 100, "since": NOW - 9},
        {"low": 101, "high": HIGHEST},
    ]

    assert ranges({1: NOW, 2: NOW})[0] == {"low": 1, "high": 1, "since": NOW}


def test_a_scan_moves_only_the_marks_of_its_priorities(
    cursors: ScanCursors,
) -> None:
    """A scan moves only the marks of the priorities that it covered."""
    cursors.learn(passed(p1=NOW - 9, p5=NOW - 9, p100=NOW - 9, end=True), 0.0, 0.0)
    cursors.learn(passed(p5=NOW - 3), 0.0, 0.0)  # it had enough tasks and went no further

    assert [each.get("since") for each in lane(cursors)] == [
        LATEST,
        None,
        NOW - 3,
        None,
        NOW - 9,
        None,
    ]

    cursors.learn(passed(end=True), 0.0, 0.0)
    assert [each.get("since") for each in lane(cursors)] == [
        LATEST,
        None,
        LATEST,
        None,
        LATEST,
        None,
    ]


def test_news_of_a_queue_lowers_its_marks() -> None:
    """News of a queue lowers its marks and wakes the worker.

    News of tasks that came back only lowers the marks.
    """
    woken: list[tuple[list[str], str | None]] = []
    cursors = ScanCursors(
        ["default", "mail"], lambda queues, lane=None: woken.append((queues, lane)), 10.0
    )
    cursors.far = True
    cursors.forget_at = 5.0

    cursors.learn(passed(p5=NOW), 0.0, 0.0)
    handlers = cursors.handlers()

    handlers["mail"](NOW - 50)
    assert (lane(cursors)[1]["since"], woken) == (LATEST, [(["mail"], None)])

    handlers["behind default"](NOW - 3)
    handlers["behind default"](NOW - 2)
    assert (lane(cursors)[1]["since"], len(woken)) == (NOW - 3, 1)

    handlers["sync default"](NOW - 4)
    assert (lane(cursors)[1]["since"], woken[1:]) == (NOW - 4, [(["default"], "sync")])

    handlers["*"](0.0)
    assert (lane(cursors)[1]["since"], woken[2:]) == (None, [(["default", "mail"], None)])


def test_the_priorities_that_were_met_last_are_kept(cursors: ScanCursors) -> None:
    for priority in range(1, PRIORITIES + 10):
        cursors.learn(passed(**{"p1": NOW, f"p{priority}": NOW}), 0.0, 0.0)

    kept = [each["low"] for each in lane(cursors) if "since" in each]
    assert (len(kept), kept[0], kept[-1]) == (PRIORITIES, 1, PRIORITIES + 9)


def test_marks_begin_anew_after_a_pass_over_everything(
    cursors: ScanCursors,
) -> None:
    """The marks begin anew after a pass over everything, which comes once in a while."""
    cursors.held["mail"] = ["2026-01-01"]
    cursors.learn(passed(p5=NOW), 0.0, 0.0)

    assert lane(cursors, now=4.9)[1]["since"] == LATEST
    assert lane(cursors, now=5.0)[1]["since"] is None

    cursors.learn(passed(p5=NOW - 1), 5.0, 0.0)
    assert (cursors.forget_at, cursors.held) == (5.0 + cursors.every, {})
    assert lane(cursors, now=5.1)[1]["since"] == NOW - 1

    for took, pause in ((0.1, 9.0), (1.0, SPACING_FACTOR)):
        now = cursors.forget_at
        cursors.text(now)
        cursors.learn(Passed(far=True), now, took)
        assert cursors.forget_at == now + pause


def test_no_marks_are_kept_while_passes_read_few_dead_entries(
    cursors: ScanCursors,
) -> None:
    """No marks are kept while passes read few dead entries, however long they take.

    Fails if: a pass that only settles reads no dead entries, and ends the use of cursors although
    an old transaction is open.
    """
    cursors.learn(passed(p5=NOW, far=False), 0.0, 0.0)
    assert cursors.text(5.0) is not None

    cursors.learn(passed(p5=NOW, far=False), 5.0, 1.0)
    assert cursors.text(5.1) is None

    cursors.learn(passed(p5=NOW), 5.1, 0.0)
    cursors.learn(Passed(), 5.2, 0.0, scanned=False)
    assert lane(cursors, now=5.3)[1]["since"] == LATEST
