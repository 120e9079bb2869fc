"""Patterns, which define the fire times of a schedule.

A fire time is a whole second. Patterns with a time of day follow the local time of their zone,
which many zones change twice a year. A local time that is skipped has no fire time. A local time
that occurs twice has one fire time, the first of the two. Patterns without a time of day, which
repeat within hours or every hour, fire at both, as in Debian's cron. ``RULES`` is the version of
these rules. It is stored with each schedule, so that a later release with other rules can find out
which rules were used.

``croniter`` reads cron strings. It gets only naive local times. ``WallPattern`` handles changes of
the local time.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from horsies_django.core.errors import HorsiesError

RULES = 1
SECOND = dt.timedelta(seconds=1)
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
LONGEST_INTERVAL = dt.timedelta(days=365)
LONGEST_CRON = 500  # characters, because croniter takes seconds for a list of thousands of minutes
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# The longest unit is first.
UNIT_LENGTHS = {
    "day": DAY,
    "hour": HOUR,
    "minute": dt.timedelta(minutes=1),
    "second": SECOND,
}
# Any pattern that fires at all fires in the fifty years after this time.
CHECKED_FROM = dt.datetime(2000, 1, 1)
# Steps, and days such as fri#2 and L, in a list, which cron_descriptor does not describe well
SEVERAL = re.compile(r",\S*(#|/|\bl)|(#|/|\bl\b)\S*,", re.IGNORECASE)
FIELD = re.compile(r"(?:[0-9*,/#-]|[a-z]{3}|l)+", re.IGNORECASE)
RANGE = re.compile(r"([0-9]+|[a-z]{3})-([0-9]+|[a-z]{3})(?:/(0*[1-9][0-9]*))?")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
TIME = r"(\d{1,2}:\d\d(?::\d\d)?)"
FORMS: tuple[tuple[str, Callable[..., Pattern]], ...] = (
    (
        r"every (?:(\d{1,9}) )?(day|hour|minute|second)s?",
        lambda count, unit, zone: Every(**{f"{unit}s": int(count or 1)}, zone=zone),
    ),
    (
        r"hourly at :(\d\d)(?::(\d\d))?",
        lambda minute, second, zone: Hourly(int(minute), int(second or 0), zone=zone),
    ),
    (rf"daily at {TIME}", lambda at, zone: Daily(at, zone=zone)),
    (
        rf"weekly on ([a-z, ]+) at {TIME}",
        lambda days, at, zone: Weekly(at, days=re.split("[, ]+", days), zone=zone),
    ),
    (
        rf"monthly on day (\d\d?) at {TIME}",
        lambda day, at, zone: Monthly(at, day=int(day), zone=zone),
    ),
    (rf"monthly on the last day at {TIME}", lambda at, zone: Monthly(at, day="last", zone=zone)),
)
PATTERN_EXAMPLES = (
    "30 4 * * mon-fri",
    "every 15 minutes",
    "hourly at :05",
    "daily at 04:30",
    "weekly on mon, thu at 09:00",
    "monthly on day 15 at 09:00",
    "monthly on the last day at 23:00",
)


class PatternError(HorsiesError, ValueError):
    """A pattern is invalid. The message contains the reason and the valid values."""


@dataclass(frozen=True)
class Pattern(ABC):
    """The pattern of the fire times of a schedule.

    ``zone`` is an IANA name such as "Europe/Istanbul". Raises PatternError if a value is invalid.
    """

    zone: str = field(default="UTC", kw_only=True)

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise PatternError(
                f"there is no time zone {self.zone!r:.100}: use a name such as 'Europe/Istanbul' "
                "or 'UTC'"
            ) from error
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Raise PatternError if a value is out of range."""

    @abstractmethod
    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        """Return the first fire time after ``after``, in UTC, or None if there is none.

        ``anchor`` is the time at which the schedule came into force.
        """

    @property
    def in_words(self) -> str:
        """A description of the pattern in English."""
        text = str(self)
        return text[:1].upper() + text[1:]

    def coming(self, after: dt.datetime, count: int, anchor: dt.datetime) -> list[dt.datetime]:
        """Return the first ``count`` fire times after ``after``, or all if there are fewer."""
        found: list[dt.datetime] = []
        while (
            len(found) < count
            and (fire_time := self.next(found[-1] if found else after, anchor)) is not None
        ):
            found.append(fire_time)
        return found

    def fire_times(
        self, after: dt.datetime, until: dt.datetime, anchor: dt.datetime
    ) -> Iterator[dt.datetime]:
        """Yield all fire times in (``after``, ``until``]."""
        fire_time = self.next(after, anchor)
        while fire_time is not None and fire_time <= until:
            yield fire_time
            fire_time = self.next(fire_time, anchor)


@dataclass(frozen=True)
class WallPattern(Pattern):
    """A pattern that follows the local time of its zone."""

    @property
    def both(self) -> bool:
        """Whether a local time that occurs twice has two fire times."""
        return False

    @abstractmethod
    def _follow(self, local: dt.datetime) -> dt.datetime | None:
        """Return the first matching local time after ``local``, or None if there is none.

        Both times are naive.
        """

    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        zone = ZoneInfo(self.zone)
        at = after.astimezone(dt.UTC).replace(microsecond=0)
        local = local_time(at, zone)
        while (found := self._follow(local)) is not None:
            # This is right unless the offset from UTC changes before the fire time.
            fire_time = at + (found - local_time(at, zone))
            change = first_jump(zone, at, fire_time)

            if change is not None:
                at = change
                local = local_time(at, zone) - SECOND
            elif fire_time.astimezone(zone).fold and not self.both:
                at = fire_time
                local = found
            else:
                return fire_time

        return None


@dataclass(frozen=True)
class CronField:
    """A field of a cron string, with its least and its greatest number and the names of numbers."""

    least: int
    most: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int | None:
        """Return the number of a text, or None if the field has no such number."""
        if text.isdecimal():
            found = int(text)
            return found if self.least <= found <= self.most else None
        return self.names.index(text) + self.least if text in self.names else None

    def plain(self, part: str) -> str:
        """Return a member of a list in the field, in a form that croniter reads as cron does.

        croniter reads 9-9 as every value. In a range over the end with steps, such as 22-2/3, it
        counts the steps from the least value again.
        """
        match = RANGE.fullmatch(part)
        if match is None:
            return part
        first = self.number(match[1])
        last = self.number(match[2])
        if first is None or last is None:
            return part

        if first == last:
            return str(first)
        if first < last or match[3] is None:
            return part

        size = self.most - self.least + 1
        values = range(first, last + size + 1, int(match[3]))
        return ",".join(str((value - self.least) % size + self.least) for value in values)


@dataclass(frozen=True)
class WeekdayField(CronField):
    """The field of the day of the week.

    Sunday is 0 and also 7. At the end of a range, 7 is the day after Saturday. Elsewhere it is the
    first day.
    """

    def plain(self, part: str) -> str:
        """Return a member of a list in the field, in a form that croniter reads as cron does."""
        match = re.fullmatch(r"0*7([-/].*)", part)
        if match is None:
            return super().plain(part)

        if re.fullmatch(r"-0*7(/0*[1-9][0-9]*)?|/0*[1-9][0-9]*", match[1]):
            return "0"
        return super().plain(f"0{match[1]}")

    def number(self, text: str) -> int | None:
        """Return the number of a text, or None if the field has no such number.

        7 is a number, because it is the Sunday at the end of a range.
        """
        return 7 if text.isdecimal() and int(text) == 7 else super().number(text)


CRON_FIELDS = (
    CronField(0, 59),
    CronField(0, 23),
    CronField(1, 31),
    CronField(1, 12, MONTHS),
    WeekdayField(0, 6, ("sun", *WEEKDAYS[:-1])),
)


def check_number(name: str, value: object, least: int, most: int, besides: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PatternError(
            f"{name} must be a whole number from {least} to {most}{besides}, not {value!r}"
        )


def local_time(at: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def first_jump(zone: ZoneInfo, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    """Return the first second after ``after`` at which a zone has another offset from UTC.

    Return None if there is none up to ``until``. One second of each day is compared, because no
    zone changes its offset and changes it back within a day.
    """
    while after < until:
        step = min(after + DAY, until)
        if offset(step, zone) != offset(after, zone):
            while step - after > SECOND:
                middle = after + (step - after) // (2 * SECOND) * SECOND
                if offset(middle, zone) == offset(after, zone):
                    after = middle
                else:
                    step = middle
            return step
        after = step

    return None


def offset(at: dt.datetime, zone: ZoneInfo) -> dt.timedelta | None:
    return at.astimezone(zone).utcoffset()


@dataclass(frozen=True)
class Every(Pattern):
    """A pattern that fires at a fixed interval: ``Every(minutes=15)``.

    The interval is the sum of the arguments, from 1 second to 365 days. The first one begins when
    the schedule comes into force. A day always has 24 hours, even if the local time changes.
    """

    seconds: int = 0
    minutes: int = 0
    hours: int = 0
    days: int = 0

    @property
    def length(self) -> dt.timedelta:
        """The interval between two fire times."""
        return dt.timedelta(
            days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds
        )

    def _check(self) -> None:
        for name in ("seconds", "minutes", "hours", "days"):
            check_number(name, getattr(self, name), 0, LONGEST_INTERVAL // SECOND)
        if not SECOND <= self.length <= LONGEST_INTERVAL:
            raise PatternError(
                f"an interval must be 1 second to {LONGEST_INTERVAL.days} days long, not "
                f"{self.length}"
            )

    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        begin = anchor.astimezone(dt.UTC).replace(microsecond=0)
        return begin + max(1, (after - begin) // self.length + 1) * self.length

    def __str__(self) -> str:
        unit, length = next(
            (unit, length) for unit, length in UNIT_LENGTHS.items() if not self.length % length
        )
        count = self.length // length
        return f"every {unit}" if count == 1 else f"every {count} {unit}s"


@dataclass(frozen=True)
class Cron(WallPattern):
    """A cron string: ``Cron("*/15 8-17 * * mon-fri")``.

    Its five fields are minute, hour, day of month, month and day of week. If both day fields are
    restricted, a day has to match one of them. A field that begins with a star, such as ``*/2``,
    does not count as restricted, and then a day has to match both. ``L`` is the last day of a
    month, and ``fri#2`` its second Friday. Unlike in cron, a range may go over the end. ``22-2``
    are the hours from 22 to 2, and ``fri-mon`` are four days.
    """

    expression: str

    def _check(self) -> None:
        if isinstance(self.expression, str) and len(self.expression) > LONGEST_CRON:
            raise PatternError(
                f"a cron expression has at most {LONGEST_CRON} characters, not "
                f"{len(self.expression):_}"
            )

        parts = self.expression.split() if isinstance(self.expression, str) else []
        if len(parts) != 5 or not all(FIELD.fullmatch(part) for part in parts):
            raise PatternError(
                f"{self.expression!r} is not a cron expression: it must have five fields (minute, "
                "hour, day of month, month and day of week), such as "
                '"30 4 * * mon-fri". Use Every for seconds'
            )

        # Imported here, because the import is slow and most processes do not need it.
        from croniter import CroniterError, croniter

        try:
            croniter.expand(self.plain)
        except (CroniterError, ValueError) as error:
            raise PatternError(f"{self.expression!r} is not a cron expression: {error}") from error

        if self._follow(CHECKED_FROM) is None:
            raise PatternError(f"{self.expression!r} never fires: no such day exists")

    @property
    def plain(self) -> str:
        """The cron string in a form that croniter reads as cron does."""
        parts = self.expression.lower().split()
        return " ".join(
            ",".join(field.plain(part) for part in text.split(","))
            for field, text in zip(CRON_FIELDS, parts, strict=True)
        )

    @property
    def both(self) -> bool:
        """Whether a local time that occurs twice has two fire times.

        It has if the pattern repeats, because its minute or hour begins with a star, or it lists
        all hours.
        """
        from croniter import croniter

        minute, hour, *_ = self.plain.split()
        if "*" in (minute[0], hour[0]):
            return True

        hours = croniter.expand(self.plain)[0][1]
        return hours == ["*"] or len(set(hours)) == 24

    def _follow(self, local: dt.datetime) -> dt.datetime | None:
        from croniter import CroniterBadDateError, croniter

        minute, hour, day_of_month, month, day_of_week = self.plain.split()

        # croniter has other rules for when both day fields must match. So if one of them is enough,
        # croniter is called once for each of them.
        days = (
            [(day_of_month, day_of_week)]
            if self._needs_both_days
            else [(day_of_month, "*"), ("*", day_of_week)]
        )

        found: list[dt.datetime] = []
        for of_month, of_week in days:
            with suppress(CroniterBadDateError):
                fire_times = croniter(
                    f"{minute} {hour} {of_month} {month} {of_week}", local, day_or=False
                )
                found.append(fire_times.get_next(dt.datetime))

        return min(found, default=None)

    @property
    def _needs_both_days(self) -> bool:
        """Whether one of the day fields begins with a star."""
        _, _, day_of_month, _, day_of_week = self.expression.split()
        return "*" in day_of_month[0] + day_of_week[0]

    @property
    def in_words(self) -> str:
        from cron_descriptor import FormatException, Options, get_description

        if SEVERAL.search(self.plain):
            return str(self)

        # Version 1 has Options without arguments, and django-celery-beat refuses version 2.
        options = Options()
        options.use_24hour_time_format = True
        options.locale_code = "en_US"

        try:
            # cron_descriptor reads L only in upper case.
            found: str = get_description(self.plain.upper(), options)
        except FormatException:
            return str(self)

        if self._needs_both_days:
            # Version 2 writes "or" whenever both fields are given.
            return found.replace(", or on ", ", only on ")
        # Version 1 writes "only on" here too, which is wrong if one of the fields is enough.
        return found if ", or " in found else str(self)

    def __str__(self) -> str:
        return " ".join(self.expression.split())


@dataclass(frozen=True)
class Hourly(WallPattern):
    """A pattern that fires every hour at a given minute and second."""

    minute: int = 0
    second: int = 0

    @property
    def both(self) -> bool:
        return True

    def _check(self) -> None:
        check_number("minute", self.minute, 0, 59)
        check_number("second", self.second, 0, 59)

    def _follow(self, local: dt.datetime) -> dt.datetime:
        found = local.replace(minute=self.minute, second=self.second)
        return found if found > local else found + HOUR

    def __str__(self) -> str:
        return f"hourly at :{self.minute:02}" + (f":{self.second:02}" if self.second else "")


@dataclass(frozen=True)
class Daily(WallPattern):
    """A pattern that fires every day at a given time: ``Daily("04:30")``.

    The time may also be a ``time``, as in ``Daily(time(4, 30))``.
    """

    at: dt.time | str

    @property
    def time(self) -> dt.time:
        """The time of day."""
        return _time(self.at)

    def _check(self) -> None:
        self.time  # noqa: B018 - reading it validates it

    def _follow(self, local: dt.datetime) -> dt.datetime:
        found = dt.datetime.combine(local, self.time)
        return found if found > local else found + DAY

    def __str__(self) -> str:
        return f"daily at {_time_text(self.time)}"


@dataclass(frozen=True)
class Weekly(Daily):
    """A pattern that fires on given days of the week: ``Weekly("09:00", days=["mon", "thu"])``.

    ``days`` may also be one day, as in ``Weekly("09:00", days="mon")``.
    """

    days: Iterable[str] | str = field(kw_only=True)

    @property
    def weekdays(self) -> tuple[str, ...]:
        """The days of the week on which the pattern fires, beginning with Monday."""
        given = [self.days] if isinstance(self.days, str) else list(self.days)
        return tuple(day for day in WEEKDAYS if day in given)

    def _check(self) -> None:
        super()._check()
        given = [self.days] if isinstance(self.days, str) else list(self.days)
        if not given or len(self.weekdays) != len(given):
            raise PatternError(
                f"days must be one or more of {', '.join(WEEKDAYS)}, each once, not {self.days!r}"
            )

    def _follow(self, local: dt.datetime) -> dt.datetime:
        found = super()._follow(local)
        while WEEKDAYS[found.weekday()] not in self.weekdays:
            found += DAY
        return found

    def __str__(self) -> str:
        return f"weekly on {', '.join(self.weekdays)} at {_time_text(self.time)}"


@dataclass(frozen=True)
class Monthly(Daily):
    """A pattern that fires on a given day of each month: ``Monthly("09:00", day=15)``.

    ``day`` may also be "last". Months without that day are skipped.
    """

    day: int | str = field(kw_only=True)

    def _check(self) -> None:
        super()._check()
        if self.day != "last":
            check_number("day", self.day, 1, 31, ', or "last"')

    def _follow(self, local: dt.datetime) -> dt.datetime:
        first = local.replace(day=1)
        while True:
            length = calendar.monthrange(first.year, first.month)[1]
            day = length if self.day == "last" else int(self.day)
            if (
                day <= length
                and (found := dt.datetime.combine(first.replace(day=day), self.time)) > local
            ):
                return found

            first = (first + 31 * DAY).replace(day=1)

    def __str__(self) -> str:
        return (
            f"monthly on {'the last day' if self.day == 'last' else f'day {self.day}'} at "
            f"{_time_text(self.time)}"
        )


def _time(value: dt.time | str) -> dt.time:
    """Return a time of day as a ``time``.

    Raises PatternError if it is not a time of day, or has a zone or a fraction of a second.
    """
    found: dt.time | None
    try:
        if isinstance(value, str):
            length = 5 if len(value) < 6 else 8
            found = dt.time.fromisoformat(value.zfill(length))
        else:
            found = value
    except ValueError:
        found = None

    if not isinstance(found, dt.time) or found.tzinfo or found.microsecond:
        raise PatternError(
            'a time of day must be like "04:30" or "04:30:15", in the zone of the pattern, not '
            f"{value!r}"
        )

    return found


def _time_text(time: dt.time) -> str:
    return time.isoformat("seconds" if time.second else "minutes")


def parse_pattern(text: str, zone: str = "UTC") -> Pattern:
    """Return the pattern of a text, such as those in ``PATTERN_EXAMPLES``.

    The text may be the ``str`` of a pattern or a cron string. Raises PatternError if it is invalid.
    """
    words = " ".join(text.lower().split())
    for form, make in FORMS:
        if match := re.fullmatch(form, words):
            return make(*match.groups(), zone=zone)

    if words.partition(" ")[0] in ("every", "hourly", "daily", "weekly", "monthly"):
        raise PatternError(
            f"{text!r:.200} is not a pattern; write it like one of: "
            f"{'; '.join(PATTERN_EXAMPLES[1:])}"
        )

    return Cron(words, zone=zone)
