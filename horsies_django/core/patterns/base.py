"""What a pattern is, and how the clock on the wall is read.

A slot is a whole second. Patterns that name a time of day go by the clock on the wall of their zone, and that clock jumps twice
a year in many zones: a time that it leaves out has no slot; one that it shows twice has one slot, the first. Only patterns that
do not name the time, but go on and on within hours or from hour to hour, take both: the rule of Debian's cron. These rules have a
number, ``RULES``, which is kept with each schedule, so that a release in which they differ can tell.
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
    """A pattern that cannot be: it says what is wrong and what would do."""


@dataclass(frozen=True)
class Pattern(ABC):
    """When a schedule fires. ``zone`` is an IANA name such as "Europe/Istanbul". Raises PatternError for values out of range."""

    zone: str = field(default="UTC", kw_only=True)

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise PatternError(
                f"there is no time zone {self.zone!r:.100}: name one like 'Europe/Istanbul' or 'UTC'"
            ) from error
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Raise PatternError when a value is out of range."""

    @abstractmethod
    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        """Return the first slot after a moment, in UTC; None: there is none. ``anchor``: since when the schedule is in force."""

    @property
    def in_words(self) -> str:
        """The pattern for those who do not read its text: a sentence in English."""
        text = str(self)
        return text[:1].upper() + text[1:]

    def latest(self, after: dt.datetime, until: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        """Return the last slot after ``after`` that is not after ``until``, without walking over those between."""
        known = self.next(after, anchor)
        if known is None or known > until:
            return None
        end = until.replace(microsecond=0)
        while known < end:
            middle = known + (end - known) // (2 * SECOND) * SECOND
            slot = self.next(middle, anchor)
            if slot is None or slot > until:
                end = middle
            else:
                known = slot
        return known

    def coming(self, after: dt.datetime, count: int, anchor: dt.datetime) -> list[dt.datetime]:
        """Return the first slots after a moment, so many or all that there are."""
        found: list[dt.datetime] = []
        while len(found) < count and (slot := self.next(found[-1] if found else after, anchor)) is not None:
            found.append(slot)
        return found

    def slots(self, after: dt.datetime, until: dt.datetime, anchor: dt.datetime) -> Iterator[dt.datetime]:
        """Give all slots after ``after`` that are not after ``until``."""
        slot = self.next(after, anchor)
        while slot is not None and slot <= until:
            yield slot
            slot = self.next(slot, anchor)


@dataclass(frozen=True)
class WallPattern(Pattern):
    """A pattern that goes by the clock on the wall."""

    @property
    def both(self) -> bool:
        """Whether a time that the clock shows twice has two slots."""
        return False

    @abstractmethod
    def _follow(self, local: dt.datetime) -> dt.datetime | None:
        """Return the first time after a time, both as the wall shows them, without a zone; None: there is none."""

    def next(self, after: dt.datetime, anchor: dt.datetime) -> dt.datetime | None:
        zone = ZoneInfo(self.zone)
        at = after.astimezone(dt.UTC).replace(microsecond=0)
        local = local_time(at, zone)
        while (found := self._follow(local)) is not None:
            slot = at + (found - local_time(at, zone))  # unless the clock jumps before
            change = first_jump(zone, at, slot)
            if change is not None:
                at = change
                local = local_time(at, zone) - SECOND
            elif not self.both and slot.astimezone(zone).fold:
                at, local = slot, found
            else:
                return slot
        return None


def check_number(name: str, value: object, least: int, most: int, besides: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PatternError(f"{name} is a whole number from {least} to {most}{besides}, not {value!r}")


def local_time(at: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """Return what the clock on the wall shows at a moment, without the zone."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def first_jump(zone: ZoneInfo, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    """Return the first second after ``after`` that is not after ``until`` and has another offset from UTC; None: there is none.

    Looks once a day: no zone jumps there and back within one.
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
