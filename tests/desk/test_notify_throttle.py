"""Which sends are announced: a clock goes in, and who may be quiet comes out."""

from __future__ import annotations

import itertools
import threading

from horsies_django.tasks.notify_throttle import (
    AGAIN_SECONDS,
    BURST_SECONDS,
    HOLD_SECONDS,
    PROMPT_SECONDS,
    Announcements,
    Turn,
)

TABLE, OTHER = 16_400, 16_900
TICK = 0.000_1
LAST_LOOK = AGAIN_SECONDS[-1]


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sent(announcements: Announcements, queue: str = "default", table: int = TABLE) -> int | None:
    """Send at once and return what went into the statement."""
    turn = announcements.begin(queue, "sync")
    assert not announcements.end(turn, table)
    return turn.told


def burst(clock: Clock) -> Announcements:
    """Return announcements whose last one lets others follow without a word, from now on."""
    announcements = Announcements(clock)
    assert [sent(announcements), sent(announcements)] == [None, 0]
    return announcements


def test_a_lone_send_is_announced_and_makes_nobody_look_again() -> None:
    clock = Clock()
    announcements = Announcements(clock)
    for _ in range(5):
        assert sent(announcements) is None
        clock.now += BURST_SECONDS + TICK


def test_in_a_burst_sends_are_quiet_for_five_milliseconds_and_then_one_is_announced() -> None:
    clock = Clock()
    announcements = burst(clock)
    told = []
    for _ in range(21):
        clock.now += 0.001
        told.append(sent(announcements))
    assert [place for place, each in enumerate(told) if each == 0] == [4, 9, 14, 19]
    assert [each for each in told if each] == [TABLE] * 17


def test_the_hold_is_that_of_one_queue() -> None:
    announcements = burst(Clock())
    assert sent(announcements, "mail") is None
    assert sent(announcements) == TABLE


def test_the_hold_is_that_of_one_process() -> None:
    clock = Clock()
    assert sent(burst(clock)) == TABLE
    assert sent(Announcements(clock)) is None


def test_a_send_that_went_into_another_table_was_announced_and_counts_for_that_one() -> None:
    announcements = burst(Clock())
    assert sent(announcements, table=OTHER) == TABLE, "it asked to be quiet, and the database saw that it must not be"
    assert sent(announcements, table=OTHER) == OTHER


def test_behind_an_announcement_that_took_long_nobody_is_quiet() -> None:
    clock = Clock()
    announcements = burst(clock)
    clock.now += HOLD_SECONDS + TICK
    slow = announcements.begin("default", "sync")
    clock.now += PROMPT_SECONDS + TICK
    assert not announcements.end(slow, TABLE)
    assert [sent(announcements), sent(announcements)] == [0, TABLE]


def test_a_quiet_send_that_took_long_is_announced_after_all() -> None:
    clock = Clock()
    announcements = burst(clock)
    clock.now += HOLD_SECONDS / 2
    in_time, late = announcements.begin("default", "sync"), announcements.begin("default", "sync")
    assert in_time.told == late.told == TABLE
    clock.now += LAST_LOOK - HOLD_SECONDS
    assert not announcements.end(in_time, TABLE)
    clock.now += HOLD_SECONDS
    assert announcements.end(late, TABLE)


def test_how_long_the_announced_send_took_counts_since_it_may_have_been_heard_at_its_beginning() -> None:
    clock = Clock()
    announcements = burst(clock)
    clock.now += HOLD_SECONDS + TICK
    announced = announcements.begin("default", "sync")
    clock.now += PROMPT_SECONDS - TICK
    assert not announcements.end(announced, TABLE)
    quiet = announcements.begin("default", "sync")
    assert quiet.told == TABLE
    clock.now += LAST_LOOK - PROMPT_SECONDS + 2 * TICK
    assert announcements.end(quiet, TABLE)


def test_a_later_announcement_by_another_thread_does_not_make_a_late_send_timely() -> None:
    clock = Clock()
    announcements = burst(clock)
    late = announcements.begin("default", "sync")
    clock.now += LAST_LOOK + TICK
    assert [sent(announcements), sent(announcements)] == [None, 0]
    assert announcements.end(late, TABLE)


def test_threads_that_send_together_are_quiet_only_behind_an_announcement_that_said_so() -> None:
    ticks = itertools.count(1_000_000)
    announcements = Announcements(lambda: next(ticks) * TICK / 10)
    turns: list[Turn] = []
    at_once = threading.Barrier(8)

    def send_many() -> None:
        at_once.wait()
        for _ in range(500):
            turn = announcements.begin("default", "sync")
            announcements.end(turn, TABLE)
            turns.append(turn)

    threads = [threading.Thread(target=send_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quiet = [turn for turn in turns if turn.told == TABLE]
    assert len(turns) == 4_000
    assert quiet
    assert {turn.since for turn in quiet} <= {turn.began for turn in turns if turn.told == 0}
    assert all(turn.began - turn.since < PROMPT_SECONDS + HOLD_SECONDS for turn in quiet)
