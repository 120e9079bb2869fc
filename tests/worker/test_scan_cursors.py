"""The cursors themselves: what is kept of them, when there are none, and how rarely a pass looks everywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from horsies_django.store.passes import Passed
from horsies_django.worker.engine.scan_cursors import (
    HIGHEST,
    LAG_SECONDS,
    LONGEST_SECONDS,
    PRIORITIES,
    SHARE,
    SLOW_OFTEN,
    WORTH_SECONDS,
    ScanCursors,
    ranges,
)

NOW = 1_700_000_000.0
LATEST = NOW - LAG_SECONDS


@pytest.fixture
def cursors() -> ScanCursors:
    made = ScanCursors(["default", "mail"], lambda queues, lane=None: None, 10.0)
    made.slow, made.forget_at = SLOW_OFTEN + 1, 5.0
    return made


def passed(**firsts: Any) -> Passed:
    """Return what a pass says that found ``firsts`` in the sync lane of the default queue: moments by "p" and the priority."""
    lane = {name.removeprefix("p"): since for name, since in firsts.items()}
    return Passed(firsts=[json.dumps({"default": {"sync": lane}})], now=NOW)


def lane(cursors: ScanCursors, now: float = 0.0) -> Any:
    text = cursors.text(now)
    assert text is not None
    return json.loads(text)["default"].get("sync")


def test_each_priority_has_its_mark_and_what_lies_between_is_looked_at_from_the_start(cursors: ScanCursors) -> None:
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


def test_a_scan_moves_the_marks_of_the_priorities_that_it_went_over_and_no_others(cursors: ScanCursors) -> None:
    cursors.learn(passed(p1=NOW - 9, p5=NOW - 9, p100=NOW - 9, end=True), 0.0, 0.0)
    cursors.learn(passed(p5=NOW - 3), 0.0, 0.0)  # it had enough and went no further
    assert [each.get("since") for each in lane(cursors)] == [LATEST, None, NOW - 3, None, NOW - 9, None]
    cursors.learn(passed(end=True), 0.0, 0.0)
    assert [each.get("since") for each in lane(cursors)] == [LATEST, None, LATEST, None, LATEST, None]


def test_news_of_a_queue_lowers_its_marks_and_wakes_but_word_of_what_came_back_only_lowers() -> None:
    woken: list[tuple[list[str], str | None]] = []
    cursors = ScanCursors(["default", "mail"], lambda queues, lane=None: woken.append((queues, lane)), 10.0)
    cursors.slow, cursors.forget_at = SLOW_OFTEN + 1, 5.0
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


def test_once_in_a_while_a_pass_looks_everywhere_and_the_marks_begin_anew(cursors: ScanCursors) -> None:
    cursors.held["mail"] = ["2026-01-01"]
    cursors.learn(passed(p5=NOW), 0.0, 0.0)
    assert lane(cursors, now=4.9)[1]["since"] == LATEST
    assert lane(cursors, now=5.0)[1]["since"] is None
    cursors.learn(passed(p5=NOW - 1), 5.0, WORTH_SECONDS)
    assert (cursors.forget_at, cursors.held) == (5.0 + cursors.every, {})
    assert lane(cursors, now=5.1)[1]["since"] == NOW - 1


@pytest.mark.parametrize(("took", "pause"), [(0.1, 9.0), (1.0, SHARE), (100.0, LONGEST_SECONDS)])
def test_passes_that_look_everywhere_take_a_small_part_of_the_time(
    cursors: ScanCursors, took: float, pause: float
) -> None:
    cursors.text(100.0)
    cursors.learn(Passed(), 100.0, took)
    assert cursors.forget_at == 100.0 + pause


def test_there_are_no_marks_while_a_pass_is_quick_without_them(cursors: ScanCursors) -> None:
    cursors.learn(passed(p5=NOW), 0.0, 0.0)
    assert cursors.text(5.0) is not None
    cursors.learn(passed(p5=NOW), 5.0, WORTH_SECONDS / 2)
    assert cursors.text(5.1) is None
    for _ in range(SLOW_OFTEN):
        cursors.learn(Passed(), 5.1, WORTH_SECONDS)
        assert cursors.text(5.2) is None  # it may have been held up by something else
    cursors.learn(Passed(), 5.2, WORTH_SECONDS)
    assert lane(cursors, now=5.3)[1]["since"] is None  # it looks everywhere, and tells what it comes by
    cursors.learn(passed(p5=NOW), 5.3, WORTH_SECONDS * 2)
    assert lane(cursors, now=5.4)[1]["since"] == LATEST


def test_a_pass_that_claims_nothing_does_not_show_that_scans_are_quick(cursors: ScanCursors) -> None:
    """Naive: every second pass only settles, is fast, and ends the use of cursors although an old transaction is open."""
    cursors.slow = 0
    for _ in range(SLOW_OFTEN + 1):
        assert cursors.text(5.0) is None
        cursors.learn(Passed(), 5.0, WORTH_SECONDS)
        cursors.text(5.0)
        cursors.learn(Passed(), 5.0, 0.0, scanned=False)
    assert cursors.text(5.1) is not None
