"""``NotifyThrottle`` decides which sends notify, by a clock that the tests move."""

from __future__ import annotations

from horsies_django.tasks.notify_throttle import (
    BURST,
    BURST_SECONDS,
    QUIET_SECONDS,
    READ_AGAIN_SECONDS,
    SLOW_SECONDS,
    NotifyThrottle,
)
from horsies_django.worker.engine import wakeups

TABLE = 16_400
OTHER = 16_900
TICK = 0.000_1


def sent(throttle: NotifyThrottle, queue: str = "default", table: int = TABLE) -> int | None:
    """Send without a delay and return the value that is passed to the statement."""
    turn = throttle.begin(queue, "sync")
    assert not throttle.end(turn, table)
    return turn.notified


def burst(clock: list[float]) -> NotifyThrottle:
    """Return a throttle after so many sends that the next ones may be quiet."""
    throttle = NotifyThrottle(lambda: clock[0])
    assert [sent(throttle) for _ in range(BURST)] == [None] * BURST
    return throttle


def test_workers_read_again_after_the_last_quiet_send_returns() -> None:
    """The last quiet send returns before workers read the table again."""
    assert min(wakeups.AFTER["burst"]) > READ_AGAIN_SECONDS > QUIET_SECONDS
    assert wakeups.NOTIFICATION_BURST_SECONDS > BURST_SECONDS + SLOW_SECONDS


def test_a_burst_notifies_once_in_five_milliseconds() -> None:
    """In a burst, one send in five milliseconds notifies; outside of a burst, each send does."""
    clock = [100.0]
    throttle = NotifyThrottle(lambda: clock[0])

    for _ in range(3 * BURST):
        assert sent(throttle) is None
        clock[0] += BURST_SECONDS + TICK

    throttle = burst(clock)
    told = []
    for _ in range(21):
        clock[0] += 0.00101
        told.append(sent(throttle))

    assert [place for place, each in enumerate(told) if each is None] == [4, 9, 14, 19]
    assert [each for each in told if each] == [TABLE] * 17


def test_a_burst_is_that_of_one_queue_table_and_process() -> None:
    clock = [100.0]
    throttle = burst(clock)

    assert sent(throttle, "mail") is None
    assert sent(NotifyThrottle(lambda: clock[0])) is None
    assert sent(throttle) == TABLE
    assert sent(throttle, table=OTHER) == TABLE, (
        "it asked to be quiet, and the database saw that it must not be"
    )
    assert [sent(throttle, table=OTHER) for _ in range(BURST)] == [None] * (BURST - 1) + [OTHER]


def test_a_slow_quiet_send_notifies_at_its_end() -> None:
    """A send that follows a slow one is not quiet.

    A quiet send that ends too long after the last notification notifies at its end.
    """
    clock = [100.0]
    throttle = burst(clock)
    clock[0] += QUIET_SECONDS + TICK

    slow = throttle.begin("default", "sync")
    clock[0] += SLOW_SECONDS + TICK
    assert not throttle.end(slow, TABLE)
    assert [sent(throttle), sent(throttle)] == [None, TABLE]

    in_time, late, later = (throttle.begin("default", "sync") for _ in range(3))
    assert in_time.notified == late.notified == later.notified == TABLE

    clock[0] += READ_AGAIN_SECONDS - TICK
    assert not throttle.end(in_time, TABLE)
    clock[0] += 2 * TICK
    assert throttle.end(late, TABLE)

    assert sent(throttle) is None
    assert throttle.end(later, TABLE), "whoever notified meanwhile"
