"""The base classes of patterns, and the rules for changes of local time.

A fire time is a whole second. Patterns that name a time of day follow the local time of their zone, which many zones change
twice a year. A local time that is skipped has no fire time; one that occurs twice has one fire time, the first. Patterns that do
not name a time but repeat within hours or every hour fire at both, as in Debian's cron. ``RULES`` is the version of these rules.
It is stored with each schedule, so that a later release with other rules can tell which ones were used.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from horsies_django.core.errors import HorsiesError

RULES = 1
SECOND, DAY = dt.timedelta(seconds=1), dt.timedelta(days=1)


class PatternError(HorsiesError, ValueError):
    """A pattern is invalid; the message says why, and what is valid."""


@dataclass(frozen=True)
class Pattern(ABC):
    """When a schedule fires. ``zone`` is an IANA name such as "Europe/Istanbul". Raises PatternError for invalid values."""

    zone: str = field(default="UTC", kw_only=True)

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise PatternError(
                f"there is no time zone {self.zone!r:.100}: use a name such as 'Europe/Istanbul' or 'UTC'"
            ) from error
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Raise PatternError if a value is out of range."""

    @abstractmethod
    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        """Return the first fire time after ``after``, in UTC, or None. ``anchor`` is when the schedule came into force."""

    @property
    def in_words(self) -> str:
        """A description of the pattern in English."""
        text = str(self)
        return text[:1].upper() + text[1:]

    def coming(self, after: dt.datetime, count: int, anchor: dt.datetime) -> list[dt.datetime]:
        """Return the first ``count`` fire times after ``after``, or all of them if there are fewer."""
        found: list[dt.datetime] = []
        while len(found) < count and (fire_time := self.next(found[-1] if found else after, anchor)) is not None:
            found.append(fire_time)
        return found

    def fire_times(self, after: dt.datetime, until: dt.datetime, anchor: dt.datetime) -> Iterator[dt.datetime]:
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
        """Return the first matching local time after ``local``, or None; both are naive."""

    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        zone = ZoneInfo(self.zone)
        at = after.astimezone(dt.UTC).replace(microsecond=0)
        local = local_time(at, zone)
        while (found := self._follow(local)) is not None:
            fire_time = at + (found - local_time(at, zone))  # unless the offset changes before that
            change = first_jump(zone, at, fire_time)
            if change is not None:
                at = change
                local = local_time(at, zone) - SECOND
            elif fire_time.astimezone(zone).fold and not self.both:
                at, local = fire_time, found
            else:
                return fire_time
        return None


def check_number(name: str, value: object, least: int, most: int, besides: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PatternError(f"{name} must be a whole number from {least} to {most}{besides}, not {value!r}")


def local_time(at: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def first_jump(zone: ZoneInfo, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    """Return the first second in (``after``, ``until``] whose offset from UTC differs from that of ``after``, or None.

    Compares one second of each day: no zone changes its offset and changes it back within a day.
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
