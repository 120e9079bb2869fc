"""When patterns fire and what is due at a moment, compared with references that check every minute,
or every fire time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from importlib import metadata
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.core.patterns import (
    PATTERN_EXAMPLES,
    Cron,
    Daily,
    Every,
    Hourly,
    Monthly,
    Pattern,
    PatternError,
    Weekly,
    parse_pattern,
)
from horsies_django.core.schedules import (
    CATCH_UP,
    PUNCTUAL,
    CatchUp,
    Due,
    FireTimes,
    due_fire_times,
    last_fire_times,
)
from tests.support.sizes import examples

OLD_WORDS = metadata.version("cron-descriptor").startswith("1.")  # it would write "only on Monday"
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTE = dt.timedelta(minutes=1)
DAYS = examples(2, 4)  # about a change of the clock
NOBODY_ASKS = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)  # the anchor of patterns that do not use one
# Zones and their two changes in a year: an hour, half an hour, at midnight, and a whole day left
# out.
CHANGES = {
    "America/New_York": ("2027-03-14T07:00", "2027-11-07T06:00"),
    "Europe/Berlin": ("2027-03-28T01:00", "2027-10-31T01:00"),
    "Australia/Lord_Howe": ("2027-10-02T15:30", "2027-04-03T15:00"),
    "America/Santiago": ("2027-09-05T04:00", "2027-04-04T03:00"),
    "Pacific/Apia": ("2011-12-30T10:00", "2012-03-31T14:00"),
    "Europe/Istanbul": ("2016-03-27T01:00", "2027-06-01T00:00"),
}

Shows = Callable[[dt.datetime], bool]  # whether a pattern fires at a time of the wall clock


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def reference(
    shows: Shows, zone: str, after: dt.datetime, until: dt.datetime, *, both: bool
) -> list[dt.datetime]:
    found = []
    at = after.replace(second=0, microsecond=0)

    while (at := at + MINUTE) <= until:
        wall = at.astimezone(ZoneInfo(zone))
        if (both or not wall.fold) and shows(wall.replace(tzinfo=None)):
            found.append(at)

    return found


@st.composite
def fields(
    draw: st.DrawFn, least: int, most: int, *, last: int | None = None
) -> tuple[str, set[int]]:
    """Draw a field of a cron string, and its values.

    ``last`` is the greatest value of the field, if ``most`` is not.
    """
    kind = draw(st.sampled_from(["all", "values", "range", "steps"]))
    if kind == "all":
        return "*", set(range(least, (last or most) + 1))

    if kind == "steps":
        step = draw(st.integers(1, most - least))
        return f"*/{step}", set(range(least, (last or most) + 1, step))

    if kind == "range":
        low = draw(st.integers(least, most - 1))
        high = draw(st.integers(low + 1, most))
        return f"{low}-{high}", set(range(low, high + 1))

    values = draw(st.sets(st.integers(least, most), min_size=1, max_size=4))
    return ",".join(map(str, sorted(values))), values


@st.composite
def crons(draw: st.DrawFn) -> tuple[str, Shows, bool]:
    minute = draw(fields(0, 59))
    hour = draw(fields(0, 23))
    day = draw(fields(1, 28, last=31))
    month = draw(fields(1, 12))
    weekday = draw(fields(0, 6))

    def shows(wall: dt.datetime) -> bool:
        by_day = wall.day in day[1]
        by_weekday = wall.isoweekday() % 7 in weekday[1]
        star = day[0].startswith("*") or weekday[0].startswith("*")
        of_days = by_day and by_weekday if star else by_day or by_weekday
        return (
            wall.minute in minute[1] and wall.hour in hour[1] and wall.month in month[1] and of_days
        )

    both = minute[0].startswith("*") or hour[0].startswith("*") or len(hour[1]) == 24
    return " ".join(field[0] for field in (minute, hour, day, month, weekday)), shows, both


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, dt.datetime, dt.datetime]:
    """Draw a zone, and some days about one of its changes."""
    zone = draw(st.sampled_from(sorted(CHANGES)))
    change = utc(draw(st.sampled_from(CHANGES[zone])))
    begin = change - draw(st.integers(0, (DAYS - 1) * 86_400)) * dt.timedelta(seconds=1)
    return zone, begin, begin + DAYS * dt.timedelta(days=1)


def check(
    pattern: Pattern,
    shows: Shows,
    window: tuple[str, dt.datetime, dt.datetime],
    *,
    both: bool = False,
) -> None:
    _, after, until = window
    expected = reference(shows, pattern.zone, after, until, both=both)

    assert list(pattern.fire_times(after, until, NOBODY_ASKS)) == expected
    assert last_fire_times(FireTimes("", pattern, NOBODY_ASKS), after, until, 1) == expected[-1:]


@pytest.mark.thorough
@settings(max_examples=examples(8, 200), deadline=None)
@given(crons(), windows())
def test_cron_strings(
    cron: tuple[str, Shows, bool], window: tuple[str, dt.datetime, dt.datetime]
) -> None:
    expression, shows, both = cron

    check(Cron(expression, zone=window[0]), shows, window, both=both)
    assert not {"", "AM", "PM"} & set(Cron(expression).in_words.split(" "))


@pytest.mark.thorough
@settings(max_examples=examples(8, 200), deadline=None)
@given(
    st.times().map(lambda time: time.replace(second=0, microsecond=0)),
    st.sets(st.sampled_from(WEEKDAYS), min_size=1),
    st.integers(1, 31),
    windows(),
)
def test_hours_days_weeks_and_months(
    time: dt.time, days: set[str], day: int, window: tuple[str, dt.datetime, dt.datetime]
) -> None:
    def on(is_its_day: Shows) -> Shows:
        return lambda wall: wall.time() == time and is_its_day(wall)

    zone = window[0]
    check(
        Hourly(time.minute, zone=zone), lambda wall: wall.minute == time.minute, window, both=True
    )
    check(Daily(time, zone=zone), on(lambda wall: True), window)
    check(
        Weekly(time, days=days, zone=zone),
        on(lambda wall: WEEKDAYS[wall.weekday()] in days),
        window,
    )
    check(Monthly(time, day=day, zone=zone), on(lambda wall: wall.day == day), window)
    check(
        Monthly(time, day="last", zone=zone),
        on(lambda wall: (wall + dt.timedelta(days=1)).day == 1),
        window,
    )


@given(
    st.integers(1, 100_000),
    st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2030, 1, 1), timezones=st.just(dt.UTC)),
    st.timedeltas(dt.timedelta(0), dt.timedelta(days=3)),
)
def test_intervals_keep_to_their_anchor(
    seconds: int, anchor: dt.datetime, since: dt.timedelta
) -> None:
    pattern = Every(seconds=seconds)
    begin = anchor.replace(microsecond=0)
    fire_time = pattern.next(anchor + since, anchor)

    assert fire_time is not None
    assert fire_time > anchor + since
    assert fire_time - pattern.length <= anchor + since or fire_time == begin + pattern.length
    assert not (fire_time - begin) % pattern.length
    assert pattern.next(fire_time, anchor) == fire_time + pattern.length


# Frequent questions

CASES = [
    # spring: a time that does not exist has no fire time
    ("30 2 * * *", "Europe/Berlin", "2027-03-27T00:00", ["2027-03-27T01:30", "2027-03-29T00:30"]),
    # autumn: a time that exists twice fires the first time only
    (
        "30 1 * * *",
        "America/New_York",
        "2027-11-07T00:00",
        ["2027-11-07T05:30", "2027-11-08T06:30"],
    ),
    (
        "0 1-3 * * *",
        "America/New_York",
        "2027-11-07T04:59",
        ["2027-11-07T05:00", "2027-11-07T07:00"],
    ),
    # but a pattern that repeats all day fires at both
    (
        "0 */2 * * *",
        "Europe/Berlin",
        "2027-10-30T23:00",
        ["2027-10-31T00:00", "2027-10-31T01:00", "2027-10-31T03:00"],
    ),
    (
        "*/30 * * * *",
        "Australia/Lord_Howe",
        "2027-04-03T14:00",
        ["2027-04-03T14:30", "2027-04-03T15:00", "2027-04-03T15:30"],
    ),
    (
        "hourly at :30",
        "America/New_York",
        "2027-11-07T05:00",
        ["2027-11-07T05:30", "2027-11-07T06:30"],
    ),
    # years
    ("0 0 29 2 *", "UTC", "2096-03-01T00:00", ["2104-02-29T00:00"]),
    (
        "monthly on day 31 at 00:00",
        "UTC",
        "2027-03-31T00:00",
        ["2027-05-31T00:00", "2027-07-31T00:00"],
    ),
    ("0 12 L * *", "UTC", "2027-02-01T00:00", ["2027-02-28T12:00", "2027-03-31T12:00"]),
    ("0 12 * * fri#2", "UTC", "2027-01-01T00:00", ["2027-01-08T12:00", "2027-02-12T12:00"]),
    # a field of days that begins with a star does not make the other one decide alone
    (
        "0 16 */2 * sat",
        "UTC",
        "2026-11-01T00:00",
        ["2026-11-07T16:00", "2026-11-21T16:00", "2026-12-05T16:00"],
    ),
    (
        "0 4 */32,1-7 * 2",
        "UTC",
        "2026-11-01T00:00",
        ["2026-11-03T04:00", "2026-12-01T04:00", "2027-01-05T04:00"],
    ),
    (
        "0 4 1,* * sat",
        "UTC",
        "2026-11-01T00:00",
        ["2026-11-01T04:00", "2026-11-02T04:00", "2026-11-03T04:00"],
    ),
    (
        "0 4 1 * fri#2",
        "UTC",
        "2026-11-01T00:00",
        ["2026-11-01T04:00", "2026-11-13T04:00", "2026-12-01T04:00"],
    ),
]


@pytest.mark.parametrize(("text", "zone", "after", "fire_times"), CASES)
def test_fire_times_are_correct_at_clock_changes_and_rare_days(
    text: str, zone: str, after: str, fire_times: list[str]
) -> None:
    pattern = parse_pattern(text, zone)
    at = utc(after)

    for fire_time in fire_times:
        at = pattern.next(at, NOBODY_ASKS) or NOBODY_ASKS
        assert at == utc(fire_time)


def test_the_next_fire_time_is_strictly_after_the_moment() -> None:
    pattern = Daily("00:00")
    fire_time = utc("2027-01-02T00:00")

    assert pattern.next(fire_time - dt.timedelta(microseconds=1), NOBODY_ASKS) == fire_time
    assert pattern.next(fire_time, NOBODY_ASKS) == fire_time + dt.timedelta(days=1)
    assert pattern.next(
        fire_time + dt.timedelta(microseconds=1), NOBODY_ASKS
    ) == fire_time + dt.timedelta(days=1)


def test_the_latest_of_three_days_of_seconds_is_found_at_once() -> None:
    asked = []

    class Counting(Every):
        def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
            asked.append(after)
            return super().next(after, anchor)

    begin = utc("2027-01-01T00:00")
    until = utc("2027-01-04T00:00")

    assert last_fire_times(FireTimes("", Counting(seconds=1), begin), begin, until, 1) == [until]
    assert len(asked) < 30


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 9-9 * * *", "0 9 * * *"),
        ("0 9-9/2 * * *", "0 9 * * *"),
        ("0 09-9,9 * * *", "0 9 * * *"),
        ("5-5,50 * * * *", "5,50 * * * *"),
        ("0 0 5-5 * *", "0 0 5 * *"),
        ("0 0 1 5-5 *", "0 0 1 5 *"),
        ("0 0 1-1 jan-1 *", "0 0 1 1 *"),
        ("0 0 * * MON-mon", "0 0 * * mon"),
        ("0 0 * * 1,wed-3", "0 0 * * 1,3"),
        ("0 0 * * sun-sun", "0 0 * * sun"),
        ("0 0 * * 7-7/2", "0 0 * * sun"),
        ("0 0 * * 7-0", "0 0 * * sun"),
        ("0 0 * * 7-sun", "0 0 * * sun"),
        ("0 0 * * 7/2", "0 0 * * sun"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * sun-7/3", "0 0 * * 0,3,6"),
        ("0 0 * * 5-7", "0 0 * * fri,sat,sun"),
        ("0 0 * * 7-3/2", "0 0 * * sun,tue"),
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 22-2/3 * * *", "0 1,22 * * *"),
        ("50-10/7 * * * *", "50,57,4 * * * *"),
        ("0 0 1 oct-feb/2 *", "0 0 1 10,12,2 *"),
    ],
)
def test_a_range_of_a_cron_string_is_read_as_by_cron(text: str, same: str) -> None:
    """Fails if: croniter reads 9-9 as every hour, or begins the steps anew at midnight."""
    at = utc("2027-12-31T00:00")

    assert parse_pattern(text).coming(at, 20, NOBODY_ASKS) == parse_pattern(same).coming(
        at, 20, NOBODY_ASKS
    )
    assert parse_pattern(text).both == parse_pattern(same).both
    assert str(parse_pattern(text)) == text.lower()


@pytest.mark.parametrize(
    ("text", "words"),
    [("0 9-9 * * *", "At 09:00"), ("0 9 * * mon-mon", "At 09:00, only on Monday")],
)
def test_a_range_of_one_value_is_described_as_that_value(text: str, words: str) -> None:
    assert parse_pattern(text).in_words == words


@pytest.mark.parametrize("hours", ["0-23", "0-11,12-23", "*"])
def test_a_cron_string_of_all_hours_fires_in_both_repeated_hours(hours: str) -> None:
    """A cron string of all hours fires in both of two repeated hours."""
    assert parse_pattern(f"5 {hours} * * *").both


# Patterns as people write them

PATTERNS: list[Pattern] = [
    Cron("*/15 8-17 * * mon-fri"),
    Every(seconds=90),
    Every(minutes=15),
    Every(hours=1),
    Every(days=2, hours=1),
    Hourly(),
    Hourly(5, 30),
    Daily("04:30"),
    Daily(dt.time(4, 30, 15)),
    Weekly("09:00", days="mon"),
    Weekly("09:00", days=["thu", "mon"]),
    Monthly("09:00", day=15),
    Monthly("23:00", day="last"),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_pattern_is_read_back_from_its_text(pattern: Pattern) -> None:
    again = parse_pattern(str(pattern), "Europe/Berlin")
    assert (str(again), again.zone, type(again)) == (str(pattern), "Europe/Berlin", type(pattern))

    at = utc("2027-05-05T05:05")
    begin = at if type(pattern) is Every else NOBODY_ASKS
    assert parse_pattern(str(pattern)).next(at, begin) == pattern.next(at, begin)

    assert [str(parse_pattern(text)) for text in PATTERN_EXAMPLES] == list(PATTERN_EXAMPLES)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("", "is not a cron expression: it must have five fields"),
        ("* * * * * *", "Use Every for seconds"),
        ("H * * * *", "is not a cron expression"),
        ("61 * * * *", "out of range"),
        ("61-61 * * * *", "out of"),
        ("0 0 * * 8-8", "out of"),
        ("0 0 * * 7/0", "step '0'"),
        ("0 9-9/0 * * *", "step '0'"),
        ("*/0 * * * *", "step '0'"),
        ("0 0 * foo-foo *", "is not a cron expression"),
        ("0 0 31 4 *", "never fires"),
        # croniter would take seconds for it
        ("1," * 100_000 + "1 * * * *", "at most 500 characters, not 200_009"),
        ("every 3 parsecs", "is not a pattern; write it like one of: every 15 minutes"),
        ("every 0 seconds", "an interval must be 1 second to 365 days long"),
        ("every " + "9" * 5_000 + " minutes", "is not a pattern; write it like one of"),
        ("hourly at :60", "minute must be a whole number from 0 to 59, not 60"),
        ("daily at 25:00", "a time of day must be like"),
        ("weekly on someday at 09:00", "days must be one or more of mon, tue"),
        (
            "monthly on day 32 at 09:00",
            'day must be a whole number from 1 to 31, or "last", not 32',
        ),
        (lambda: Every(minutes=-1), "minutes must be a whole number"),
        (lambda: Every(hours=1.5), "hours must be a whole number"),  # type: ignore[arg-type]
        (lambda: Daily(dt.time(4, tzinfo=dt.UTC)), "in the zone of the pattern"),
        (lambda: Daily("04:30:15.5"), "a time of day must be like"),
        (lambda: Cron(5), "is not a cron expression"),  # type: ignore[arg-type]
        (lambda: Hourly(zone="Mars/Olympus"), "there is no time zone 'Mars/Olympus'"),
        (lambda: Hourly(zone="../etc/passwd"), "there is no time zone"),
    ],
)
def test_what_cannot_be_is_refused(make: str | Callable[[], Pattern], says: str) -> None:
    with pytest.raises(PatternError, match=says):
        parse_pattern(make) if isinstance(make, str) else make()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (Cron("30 4 * * mon-fri"), "At 04:30, Monday through Friday"),
        (
            Cron("0 9 1 * mon"),
            "0 9 1 * mon" if OLD_WORDS else "At 09:00, on day 1 of the month, or on Monday",
        ),
        (Cron("0 16 */2 * sat"), "At 16:00, every 2 days, only on Saturday"),
        (Cron("0 4 */32,1-7 * tue"), "0 4 */32,1-7 * tue"),
        (Cron("59 23 l * *"), "At 23:59, on the last day of the month"),
        (Cron("0 9 * * fri#2"), "At 09:00, on the second Friday of the month"),
        (Cron("0 9 * * mon#1,fri#2"), "0 9 * * mon#1,fri#2"),  # there are no good words for it
        (Every(minutes=15), "Every 15 minutes"),
        (Hourly(5), "Hourly at :05"),
        (Weekly("09:00", days=["mon", "thu"]), "Weekly on mon, thu at 09:00"),
    ],
)
def test_a_pattern_is_described_in_words(pattern: Pattern, words: str) -> None:
    assert pattern.in_words == words


SINCE = dt.datetime(2027, 3, 27, 22, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


def timing(pattern: Pattern | str, **options: object) -> FireTimes:
    found = parse_pattern(pattern, "Europe/Berlin") if isinstance(pattern, str) else pattern
    return FireTimes("a schedule", found, **{"since": SINCE, **options})  # type: ignore[arg-type]


def from_all_fire_times(of: FireTimes, last: dt.datetime | None, now: dt.datetime) -> Due:
    """Return the same as ``due()``, from all fire times one by one."""
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


SOME_PATTERNS = st.one_of(
    st.integers(1, 7_200).map(lambda seconds: Every(seconds=seconds)),
    st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 1-3 * * *", "15 0,12 * * *"]).map(
        lambda text: Cron(text, zone="Europe/Berlin")
    ),
    st.integers(0, 59).map(lambda minute: Hourly(minute, zone="Europe/Berlin")),
)


@pytest.mark.thorough
@settings(max_examples=examples(40, 1_000), deadline=None)
@given(
    SOME_PATTERNS,
    st.sampled_from(CATCH_UP),
    st.integers(1, 20),
    st.integers(0, 100_000),
    st.none() | st.integers(-1_000, 40_000),
    st.integers(0, 40_000),
)
def test_due_fire_times_equal_the_result_of_a_full_scan(
    pattern: Pattern, catch_up: CatchUp, most: int, jitter_ms: int, last: int | None, now: int
) -> None:
    of = timing(pattern, catch_up=catch_up, most=most, jitter_ms=jitter_ms)
    begin = None if last is None else SINCE + last * SECOND
    moment = SINCE + now * SECOND

    assert due_fire_times(of, begin, moment) == from_all_fire_times(of, begin, moment)


@given(st.integers(1, 100_000), st.integers(0, 10_000_000))
def test_jitter_stays_within_its_bound(jitter_ms: int, seconds: int) -> None:
    of = timing(Every(seconds=1), jitter_ms=jitter_ms)
    fire_time = SINCE + seconds * SECOND

    assert fire_time <= of.moment(fire_time) <= fire_time + dt.timedelta(milliseconds=jitter_ms)


def test_jitter_is_the_same_in_every_process() -> None:
    """The moments are from one process, long ago, and all schedulers have to agree on them."""
    of = timing(Every(seconds=1), jitter_ms=60_000)
    found = [of.moment(SINCE + seconds * SECOND) - SINCE for seconds in range(3)]

    assert [one / dt.timedelta(milliseconds=1) for one in found] == [7_895, 10_826, 35_463]
    assert (
        FireTimes("another", of.pattern, SINCE, jitter_ms=60_000).moment(SINCE) - SINCE
        == 7.316 * SECOND
    )


NIGHTLY = "30 2 * * *"  # this time does not exist on the 28th
FIRST, LAST, END = map(utc, ("2027-03-29T00:30", "2027-03-30T00:30", "2027-03-30T22:00"))


@pytest.mark.parametrize(
    ("of", "expected", "missed"),
    [
        (timing(NIGHTLY, catch_up="latest"), Due([LAST], FIRST, LAST), True),
        (timing(NIGHTLY, catch_up="all"), Due([FIRST, LAST], FIRST, LAST), False),
        (timing(NIGHTLY, catch_up="none"), Due([], FIRST, LAST), True),
        (
            timing("every 1 second", catch_up="all", most=2),
            Due([END - SECOND, END], SINCE + SECOND, END),
            True,
        ),
    ],
    ids=["latest", "all", "none", "all, but 2 at most"],
)
def test_three_days_without_a_scheduler(of: FireTimes, expected: Due, missed: bool) -> None:
    found = due_fire_times(of, None, END)

    assert (found, found.missed) == (expected, missed)


def test_a_fire_time_that_is_a_little_late_was_not_missed() -> None:
    of = timing("daily at 09:00", catch_up="none")
    fire_time = utc("2027-03-28T07:00")

    assert due_fire_times(of, None, fire_time + PUNCTUAL).fire_times == [fire_time]
    assert due_fire_times(of, None, fire_time + PUNCTUAL + SECOND) == Due([], fire_time, fire_time)


def test_no_fire_time_is_due_before_the_schedule_is_in_force() -> None:
    """No fire time is due before the schedule is in force, or before the last settled one.

    This holds even if the clock was set back.
    """
    of = timing("hourly at :00", catch_up="all")
    hour = dt.timedelta(hours=1)

    assert due_fire_times(of, None, SINCE) == Due([])
    assert not due_fire_times(of, None, SINCE).missed

    assert due_fire_times(of, SINCE - dt.timedelta(days=1), SINCE + hour).fire_times == [
        SINCE + hour
    ]
    assert (
        due_fire_times(of, SINCE + hour, SINCE + hour)
        == due_fire_times(of, SINCE + 5 * hour, SINCE + 4 * hour)
        == Due([])
    )
    assert due_fire_times(of, SINCE + 5 * hour, SINCE + 6 * hour).fire_times == [SINCE + 6 * hour]

    assert get_args(CatchUp) == CATCH_UP
