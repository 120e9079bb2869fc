"""What is due at a moment, against a reference that looks at every second since the schedule is in force."""

from __future__ import annotations

import datetime as dt
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.patterns import Cron, Every, Hourly, Pattern, parse
from horsies_django.core.schedules import CATCH_UP, PUNCTUAL, CatchUp, Due, Timing, due
from tests.support.sizes import examples

SINCE = dt.datetime(2027, 3, 27, 22, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def timing(pattern: Pattern | str, **options: object) -> Timing:
    found = parse(pattern, "Europe/Berlin") if isinstance(pattern, str) else pattern
    return Timing("a schedule", found, **{"since": SINCE, **options})  # type: ignore[arg-type]


def reference(of: Timing, last: dt.datetime | None, now: dt.datetime) -> Due:
    """The same, from all fire times one by one."""
    begin = max(last or of.since, of.since)
    found = []
    for fire_time in of.pattern.fire_times(begin, now, of.since):
        if of.moment(fire_time) > now:
            break
        found.append(fire_time)
    kept = {
        "all": found[-of.most :],
        "latest": found[-1:],
        "none": [fire_time for fire_time in found[-1:] if of.moment(fire_time) >= now - PUNCTUAL],
    }[of.catch_up]
    return Due(kept, found[0], found[-1]) if found else Due([])


PATTERNS = st.one_of(
    st.integers(1, 7_200).map(lambda seconds: Every(seconds=seconds)),
    st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 1-3 * * *", "15 0,12 * * *"]).map(
        lambda text: Cron(text, zone="Europe/Berlin")
    ),
    st.integers(0, 59).map(lambda minute: Hourly(minute, zone="Europe/Berlin")),
)


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None)
@given(
    PATTERNS,
    st.sampled_from(CATCH_UP),
    st.integers(1, 20),
    st.integers(0, 100_000),
    st.none() | st.integers(-1_000, 40_000),
    st.integers(0, 40_000),
)
def test_what_is_due_is_what_looking_at_all_fire_times_finds(
    pattern: Pattern, catch_up: CatchUp, most: int, jitter_ms: int, last: int | None, now: int
) -> None:
    of = timing(pattern, catch_up=catch_up, most=most, jitter_ms=jitter_ms)
    begin = None if last is None else SINCE + last * SECOND
    moment = SINCE + now * SECOND
    assert due(of, begin, moment) == reference(of, begin, moment)


def test_what_is_left_out_was_missed() -> None:
    of = timing("hourly at :00")
    assert not due(of, None, SINCE).missed
    assert not due(of, None, SINCE + dt.timedelta(hours=1)).missed
    assert due(of, None, SINCE + dt.timedelta(hours=2)).missed


@given(st.integers(1, 100_000), st.integers(0, 10_000_000))
def test_jitter_stays_within_its_bound(jitter_ms: int, seconds: int) -> None:
    of, fire_time = timing(Every(seconds=1), jitter_ms=jitter_ms), SINCE + seconds * SECOND
    assert fire_time <= of.moment(fire_time) <= fire_time + dt.timedelta(milliseconds=jitter_ms)


def test_jitter_is_the_same_in_every_process() -> None:
    """These are the moments of one process, long ago: all schedulers have to agree on them, of all releases."""
    of = timing(Every(seconds=1), jitter_ms=60_000)
    found = [of.moment(SINCE + seconds * SECOND) - SINCE for seconds in range(3)]
    assert [one / dt.timedelta(milliseconds=1) for one in found] == [7_895, 10_826, 35_463]
    assert Timing("another", of.pattern, SINCE, jitter_ms=60_000).moment(SINCE) - SINCE == 7.316 * SECOND


def test_jitter_spreads_the_fire_times_of_schedules_that_fire_together() -> None:
    moments = {Timing(f"nr. {number}", Hourly(), SINCE, jitter_ms=60_000).moment(SINCE) for number in range(100)}
    assert len(moments) > 90


THREE_DAYS = at("2027-03-30T22:00")


@pytest.mark.parametrize(
    ("catch_up", "fire_times", "missed"),
    [
        ("latest", ["2027-03-30T00:30"], True),  # there is no 02:30 on the 28th
        ("all", ["2027-03-29T00:30", "2027-03-30T00:30"], False),
        ("none", [], True),
    ],
)
def test_three_days_without_a_scheduler(catch_up: CatchUp, fire_times: list[str], missed: bool) -> None:
    found = due(timing("30 2 * * *", catch_up=catch_up), None, THREE_DAYS)
    assert found == Due([at(fire_time) for fire_time in fire_times], at("2027-03-29T00:30"), at("2027-03-30T00:30"))
    assert found.missed == missed


def test_three_days_of_seconds_send_no_more_than_the_maximum_the_newest() -> None:
    found = due(timing(Every(seconds=1), catch_up="all", most=3), None, THREE_DAYS)
    assert found == Due([THREE_DAYS - 2 * SECOND, THREE_DAYS - SECOND, THREE_DAYS], SINCE + SECOND, THREE_DAYS)


def test_a_fire_time_that_is_a_little_late_was_not_missed() -> None:
    of = timing("daily at 09:00", catch_up="none")
    fire_time = at("2027-03-28T07:00")
    assert due(of, None, fire_time + PUNCTUAL).fire_times == [fire_time]
    assert due(of, None, fire_time + PUNCTUAL + SECOND) == Due([], fire_time, fire_time)


def test_nothing_is_due_before_the_schedule_is_in_force_nor_what_is_settled() -> None:
    of = timing("hourly at :00")
    assert due(of, None, SINCE) == Due([])
    assert due(of, SINCE - dt.timedelta(days=1), SINCE + dt.timedelta(hours=1)).fire_times == [
        SINCE + dt.timedelta(hours=1)
    ]
    assert due(of, SINCE + dt.timedelta(hours=1), SINCE + dt.timedelta(hours=1)) == Due([])


def test_a_clock_that_was_set_back_sends_nothing_again() -> None:
    of = timing("hourly at :00", catch_up="all")
    last = SINCE + dt.timedelta(hours=5)
    assert due(of, last, last - dt.timedelta(hours=1)) == Due([])
    assert due(of, last, last + dt.timedelta(hours=1)).fire_times == [last + dt.timedelta(hours=1)]


def test_every_policy_is_known() -> None:
    assert get_args(CatchUp) == CATCH_UP
