"""The patterns themselves: cron strings, intervals, times of day, days of weeks and of months.

``croniter`` reads cron strings. It is shown times on the wall only, without a zone: what happens when that clock jumps is ours
to say, see ``base``.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from horsies_django.core.patterns.base import DAY, SECOND, Pattern, PatternError, WallPattern, check_number

HOUR = dt.timedelta(hours=1)
LONGEST = dt.timedelta(days=365)
LONGEST_CRON = 500  # characters; croniter takes seconds over a list of thousands of minutes
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
UNITS = {"day": DAY, "hour": HOUR, "minute": dt.timedelta(minutes=1), "second": SECOND}  # the longest first
BEGINNING = dt.datetime(2000, 1, 1)  # whatever fires at all does so within the fifty years after
# Days such as fri#2 and L in a list: nobody puts those into words well.
SEVERAL = re.compile(r",\S*(#|\bl)|(#|\bl\b)\S*,", re.IGNORECASE)
FIELD = re.compile(r"(?:[0-9*,/#-]|[a-z]{3}|l)+", re.IGNORECASE)


@dataclass(frozen=True)
class Every(Pattern):
    """Fires again and again after the same time, first that long after the schedule came into force: ``Every(minutes=15)``.

    What is given is summed: 1 second to 365 days. A day is 24 hours, whatever the clock on the wall does meanwhile.
    """

    seconds: int = 0
    minutes: int = 0
    hours: int = 0
    days: int = 0

    @property
    def length(self) -> dt.timedelta:
        """How long from slot to slot."""
        return dt.timedelta(days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds)

    def _check(self) -> None:
        for name in ("seconds", "minutes", "hours", "days"):
            check_number(name, getattr(self, name), 0, LONGEST // SECOND)
        if not SECOND <= self.length <= LONGEST:
            raise PatternError(f"an interval is 1 second to {LONGEST.days} days long, not {self.length}")

    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        begin = anchor.astimezone(dt.UTC).replace(microsecond=0)
        return begin + max(1, (after - begin) // self.length + 1) * self.length

    def __str__(self) -> str:
        unit, length = next((unit, length) for unit, length in UNITS.items() if not self.length % length)
        count = self.length // length
        return f"every {unit}" if count == 1 else f"every {count} {unit}s"


@dataclass(frozen=True)
class Cron(WallPattern):
    """Five fields, as cron reads them: minute, hour, day of month, month, day of week. ``Cron("*/15 8-17 * * mon-fri")``.

    Where both days are restricted either is enough. ``L`` is the last day of a month, ``fri#2`` its second Friday.
    """

    expression: str

    def _check(self) -> None:
        if isinstance(self.expression, str) and len(self.expression) > LONGEST_CRON:
            raise PatternError(f"a cron expression has {LONGEST_CRON} characters at most, not {len(self.expression):_}")
        parts = self.expression.split() if isinstance(self.expression, str) else []
        if len(parts) != 5 or not all(FIELD.fullmatch(part) for part in parts):
            raise PatternError(
                f"{self.expression!r} is not a cron expression: five fields, minute, hour, day of month, month and day of week, "
                'such as "30 4 * * mon-fri"; for seconds use Every'
            )
        from croniter import CroniterError, croniter  # takes long to import, and most processes never need it

        try:
            croniter.expand(self.expression)
        except (CroniterError, ValueError) as error:
            raise PatternError(f"{self.expression!r} is not a cron expression: {error}") from error
        if self._follow(BEGINNING) is None:
            raise PatternError(f"{self.expression!r} never fires: there is no such day")

    @property
    def both(self) -> bool:
        return _goes_on(self.expression)

    def _follow(self, local: dt.datetime) -> dt.datetime | None:
        from croniter import CroniterBadDateError, croniter

        try:
            found: dt.datetime = croniter(self.expression, local).get_next(dt.datetime)
        except CroniterBadDateError:
            return None
        return found

    @property
    def in_words(self) -> str:
        from cron_descriptor import FormatException, Options, get_description

        if SEVERAL.search(self.expression):
            return str(self)
        options = Options(use_24hour_time_format=True, locale_code="en_US")
        try:
            found: str = get_description(self.expression.upper(), options)  # only a capital L is the last day
        except FormatException:
            return str(self)
        return found

    def __str__(self) -> str:
        return " ".join(self.expression.split())


@dataclass(frozen=True)
class Hourly(WallPattern):
    """Fires in every hour, whichever it is, at a minute and second of it."""

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
    """Fires every day at a time: ``Daily("04:30")`` or ``Daily(time(4, 30))``."""

    at: dt.time | str

    @property
    def time(self) -> dt.time:
        """The time of day."""
        return _time(self.at)

    def _check(self) -> None:
        self.time  # noqa: B018 - it is read to see whether it can be

    def _follow(self, local: dt.datetime) -> dt.datetime:
        found = dt.datetime.combine(local, self.time)
        return found if found > local else found + DAY

    def __str__(self) -> str:
        return f"daily at {_time_text(self.time)}"


@dataclass(frozen=True)
class Weekly(Daily):
    """Fires on days of the week at a time: ``Weekly("09:00", days="mon")``, ``Weekly("09:00", days=["mon", "thu"])``."""

    days: Iterable[str] | str = field(kw_only=True)

    @property
    def weekdays(self) -> tuple[str, ...]:
        """The days, Monday first."""
        given = [self.days] if isinstance(self.days, str) else list(self.days)
        return tuple(day for day in WEEKDAYS if day in given)

    def _check(self) -> None:
        super()._check()
        given = [self.days] if isinstance(self.days, str) else list(self.days)
        if not given or len(self.weekdays) != len(given):
            raise PatternError(f"days are one or more of {', '.join(WEEKDAYS)}, each once, not {self.days!r}")

    def _follow(self, local: dt.datetime) -> dt.datetime:
        found = super()._follow(local)
        while WEEKDAYS[found.weekday()] not in self.weekdays:
            found += DAY
        return found

    def __str__(self) -> str:
        return f"weekly on {', '.join(self.weekdays)} at {_time_text(self.time)}"


@dataclass(frozen=True)
class Monthly(Daily):
    """Fires on a day of each month at a time: ``Monthly("09:00", day=15)``, ``Monthly("23:00", day="last")``.

    Months that do not have the day are left out.
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
            if day <= length and (found := dt.datetime.combine(first.replace(day=day), self.time)) > local:
                return found
            first = (first + 31 * DAY).replace(day=1)

    def __str__(self) -> str:
        return f"monthly on {'the last day' if self.day == 'last' else f'day {self.day}'} at {_time_text(self.time)}"


def _time(value: dt.time | str) -> dt.time:
    """Return a time of day, to the second."""
    try:
        found = (
            dt.time.fromisoformat(value.zfill(5) if len(value) < 6 else value.zfill(8))
            if isinstance(value, str)
            else value
        )
    except ValueError:
        found = None
    if not isinstance(found, dt.time) or found.tzinfo or found.microsecond:
        raise PatternError(f'a time of day is like "04:30" or "04:30:15", in the zone of the pattern, not {value!r}')
    return found


def _time_text(time: dt.time) -> str:
    return time.isoformat("seconds" if time.second else "minutes")


@lru_cache(maxsize=1_000)
def _goes_on(expression: str) -> bool:
    """Whether a cron string names no time: a field that begins with a star goes on, and so does one that lists all hours."""
    from croniter import croniter

    minute, hour, *_ = expression.split()
    return "*" in (minute[0], hour[0]) or len(set(croniter.expand(expression)[0][1])) == 24
