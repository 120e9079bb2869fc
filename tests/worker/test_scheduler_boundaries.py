"""The moments at which clocks and calendars do something unusual, as a scheduler lives through them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from horsies_django import schedules
from horsies_django.worker.scheduler.scheduler import LONGEST_WAIT_SECONDS
from tests.worker.test_scheduler import SECOND, Clockwork, fire_times, make, row
from tests.worker.test_scheduler import clockwork as clockwork

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


LIVED_THROUGH = [
    # the clock of a zone leaves an hour out, or half an hour, and shows one twice
    ("30 2 * * *", "Europe/Berlin", "2027-03-26T12:00", 3 * DAY, ["03-27T01:30", "03-29T00:30"]),
    ("30 2 * * *", "Europe/Berlin", "2027-10-29T12:00", 3 * DAY, ["10-30T00:30", "10-31T00:30", "11-01T01:30"]),
    ("30 2 * * *", "America/New_York", "2027-03-12T12:00", 3 * DAY, ["03-13T07:30", "03-15T06:30"]),
    ("30 1 * * *", "America/New_York", "2027-11-05T12:00", 3 * DAY, ["11-06T05:30", "11-07T05:30", "11-08T06:30"]),
    ("15 2 * * *", "Australia/Lord_Howe", "2027-09-30T18:00", 3 * DAY, ["10-01T15:45", "10-03T15:15"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2027-04-01T18:00", 3 * DAY, ["04-02T14:45", "04-03T14:45", "04-04T15:15"]),
    ("30 0 * * *", "America/Santiago", "2027-09-03T12:00", 3 * DAY, ["09-04T04:30", "09-06T03:30"]),
    ("30 23 * * *", "America/Santiago", "2027-04-02T12:00", 3 * DAY, ["04-03T02:30", "04-04T02:30", "04-05T03:30"]),
    # a pattern of every hour, and an interval, take both
    ("hourly at :30", "Europe/Berlin", "2027-10-30T23:00", 3 * HOUR, ["10-30T23:30", "10-31T00:30", "10-31T01:30"]),
    ("hourly at :45", "Australia/Lord_Howe", "2027-04-03T14:00", 3 * HOUR, ["04-03T14:45", "04-03T15:15", "04-03T16:15"]),
    ("hourly at :15", "Australia/Lord_Howe", "2027-10-02T14:00", 3 * HOUR, ["10-02T14:45", "10-02T16:15"]),
    ("every 90 minutes", "Europe/Berlin", "2027-10-30T23:00", 5 * HOUR, ["10-31T00:30", "10-31T02:00", "10-31T03:30"]),
    # days that not every year and not every month has
    ("0 0 29 2 *", "UTC", "2028-02-27T00:00", 3 * DAY, ["02-29T00:00"]),
    ("0 0 29 2 *", "UTC", "2027-02-27T00:00", 3 * DAY, []),
    ("monthly on day 29 at 12:00", "UTC", "2028-02-27T00:00", 4 * DAY, ["02-29T12:00"]),
    ("monthly on day 29 at 12:00", "UTC", "2027-02-27T00:00", 4 * DAY, []),
    ("monthly on the last day at 12:00", "UTC", "2027-02-27T00:00", 4 * DAY, ["02-28T12:00"]),
    ("daily at 12:00", "UTC", "2028-02-28T00:00", 3 * DAY, ["02-28T12:00", "02-29T12:00", "03-01T12:00"]),
    # the years end when the zone says so
    ("0 0 1 1 *", "Pacific/Kiritimati", "2027-12-30T12:00", 2 * DAY, ["12-31T10:00"]),
    ("59 23 31 12 *", "Pacific/Niue", "2027-12-30T12:00", 3 * DAY, ["2028-01-01T10:59"]),
    ("weekly on fri, sat at 00:00", "UTC", "2027-12-30T12:00", 3 * DAY, ["12-31T00:00", "2028-01-01T00:00"]),
    ("every 36 hours", "UTC", "2027-12-30T12:00", 4 * DAY, ["2028-01-01T00:00", "2028-01-02T12:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "zone", "begin", "span", "expected"), LIVED_THROUGH)
def test_what_is_sent_when_clocks_and_calendars_jump(
    clockwork: Clockwork, pattern: str, zone: str, begin: str, span: dt.timedelta, expected: list[str]
) -> None:
    now, end = at(begin), at(begin) + span
    make(pattern=pattern, zone=zone, since=now)
    while now <= end:
        clockwork.at(now)
        now = (row().next_at or end) + dt.timedelta(milliseconds=3)
    assert fire_times() == [at(text if text[:2] == "20" else f"{begin[:4]}-{text}") for text in expected]


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"catch_up": "latest"}, ["2027-03-30T00:30"]),
        ({"catch_up": "all"}, ["2027-03-27T01:30", "2027-03-29T00:30", "2027-03-30T00:30"]),
        ({"catch_up": "all", "most": 2}, ["2027-03-29T00:30", "2027-03-30T00:30"]),
        ({"catch_up": "none"}, []),
    ],
    ids=["latest", "all", "most", "none"],
)
def test_three_days_without_a_scheduler_over_a_change_of_the_clock(
    clockwork: Clockwork, definition: dict[str, Any], expected: list[str]
) -> None:
    make(pattern="30 2 * * *", zone="Europe/Berlin", since=at("2027-03-27T00:00"), **definition)
    clockwork.at(at("2027-03-27T00:00"))
    clockwork.at(at("2027-03-30T12:00"))
    assert fire_times() == [at(text) for text in expected]
    assert (row().last_fire_at, row().next_fire_at) == (at("2027-03-30T00:30"), at("2027-03-31T00:30"))


def test_a_clock_set_back_within_an_hour_of_fire_times_and_jitter_sends_each_of_them_once(clockwork: Clockwork) -> None:
    since = at("2027-10-30T22:00")
    make(pattern="every 10 seconds", since=since, catch_up="all", most=1_000, jitter_ms=9_000)
    moments = [*range(0, 3_600, 7), *range(0, 3_700, 11)]
    for seconds in moments:
        clockwork.at(since + seconds * SECOND)
    found = fire_times()
    assert found == [since + (number + 1) * 10 * SECOND for number in range(len(found))]
    assert found[-1] >= since + 3_680 * SECOND


def test_with_a_jitter_longer_than_the_interval_all_fire_times_are_sent_in_order_when_all_shall_be(
    clockwork: Clockwork,
) -> None:
    since = at("2027-10-30T22:00")
    make(pattern="every 1 second", since=since, catch_up="all", most=1_000, jitter_ms=30_000)
    for seconds in range(120):
        clockwork.at(since + seconds * SECOND)
    found = fire_times()
    assert found == [since + (number + 1) * SECOND for number in range(len(found))]
    assert found[-1] >= since + 89 * SECOND


def test_a_schedule_that_ran_ahead_with_a_wrong_clock_goes_on_when_it_is_enabled_anew(clockwork: Clockwork) -> None:
    make(pattern="every 1 second", since=at("2027-03-01T12:00"))
    clockwork.at(dt.datetime.now(dt.UTC) + 365 * 2 * DAY)
    assert clockwork.at(dt.datetime.now(dt.UTC) + HOUR) == LONGEST_WAIT_SECONDS
    ahead = fire_times()
    schedules.disable("a schedule", actor="ann")
    schedules.enable("a schedule", actor="ann")
    since = row().since
    clockwork.at(since + 2 * SECOND)
    assert fire_times() == [since.replace(microsecond=0) + 2 * SECOND, *ahead]
