"""The definition of a schedule, and the fire times that are due.

A definition is declared in the code, stored in the row of the schedule and edited in the admin. It
is validated as a whole. Its catch-up policy defines which of the missed fire times are due.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, takewhile
from typing import Any, Literal

from horsies_django.core.options import MILLISECOND
from horsies_django.core.patterns import SECOND, Pattern, PatternError, parse_pattern

CatchUp = Literal["latest", "all", "none"]
CATCH_UP: tuple[CatchUp, ...] = ("latest", "all", "none")
Overlap = Literal["allow", "skip"]
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip")
MOST_FIRE_TIMES = 1_000  # the most fire times of a schedule that are sent in one transaction
# A fire time that is at most this late does not count as missed.
PUNCTUAL = dt.timedelta(seconds=60)
DAY_MS = 86_400_000
COMPARED_FROM = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
COMPARED_FIRE_TIMES = 100  # the number of fire times that are compared with the jitter


@dataclass(frozen=True, slots=True)
class FireTimes:
    """The fire times of a schedule.

    ``since`` is the time at which the schedule came into force, when its intervals begin. With
    ``catch_up`` "latest", the latest missed fire time is sent, with "all" the last ``most`` of
    them, and with "none" none. The task of a fire time is sent up to ``jitter_ms`` milliseconds
    later. That delay is always the same for the same fire time.
    """

    name: str
    pattern: Pattern
    since: dt.datetime
    catch_up: CatchUp = "latest"
    most: int = 100
    jitter_ms: int = 0

    def moment(self, fire_time: dt.datetime) -> dt.datetime:
        """Return when the task of a fire time is sent, which is the fire time plus its jitter."""
        if not self.jitter_ms:
            return fire_time
        digest = hashlib.sha256(f"{self.name} {fire_time.timestamp():.0f}".encode()).digest()
        return fire_time + dt.timedelta(
            milliseconds=int.from_bytes(digest[:8]) % (self.jitter_ms + 1)
        )

    def following(self, fire_time: dt.datetime) -> dt.datetime | None:
        return self.pattern.next(fire_time, self.since)


@dataclass(frozen=True, slots=True)
class Due:
    """The fire times that are due, in order.

    ``first`` and ``last`` are the first and the last of all fire times that are settled with them,
    including those that are left out.
    """

    fire_times: list[dt.datetime]
    first: dt.datetime | None = None
    last: dt.datetime | None = None

    @property
    def missed(self) -> bool:
        """Whether fire times are left out."""
        return self.first is not None and self.fire_times[:1] != [self.first]


def due_fire_times(timing: FireTimes, last: dt.datetime | None, now: dt.datetime) -> Due:
    """Return the fire times that are due at ``now``, after the last settled fire time.

    ``last`` is the last settled fire time, or None if there is none. The fire times are in order
    even if their jitter would reorder them.
    """
    begin = timing.since if last is None else max(last, timing.since)
    most = timing.most if timing.catch_up == "all" else 1
    sure = last_fire_times(timing, begin, now - dt.timedelta(milliseconds=timing.jitter_ms), most)
    later = timing.pattern.fire_times(sure[-1] if sure else begin, now, timing.since)
    found = [*sure, *takewhile(lambda fire_time: timing.moment(fire_time) <= now, later)]

    if not found:
        return Due([])

    fire_times = found[-most:]
    if timing.catch_up == "none":
        fire_times = [
            fire_time for fire_time in fire_times if now - timing.moment(fire_time) <= PUNCTUAL
        ]

    return Due(fire_times, timing.following(begin), found[-1])


def last_fire_times(
    timing: FireTimes, begin: dt.datetime, until: dt.datetime, most: int
) -> list[dt.datetime]:
    """Return the last ``most`` fire times after ``begin`` and up to ``until``.

    The function does not iterate over all of them.
    """
    span = most * SECOND
    while True:
        since = max(begin, until - span)
        found = deque(timing.pattern.fire_times(since, until, timing.since), maxlen=most)
        if len(found) == most or since == begin:
            return list(found)
        span *= 4


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """The definition of a schedule: the task that it sends, and the times.

    ``task`` is the name of a task, and ``kwargs`` are its arguments by name, as JSON. ``queue`` and
    ``priority`` default to those of the task. A task that has not started ``good_for_ms``
    milliseconds after its fire time expires. None means no limit. With ``overlap`` "skip", a fire
    time sends nothing while the last task of the schedule has not finished. For the other fields,
    see ``FireTimes``.
    """

    task: str
    pattern: Pattern
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    priority: int | None = None
    good_for_ms: int | None = None
    catch_up: CatchUp = "latest"
    most: int = 100
    jitter_ms: int = 0
    overlap: Overlap = "allow"
    enabled: bool = True

    def timing(self, name: str, since: dt.datetime) -> FireTimes:
        """Return the fire times of the schedule if it came into force at ``since``."""
        return FireTimes(name, self.pattern, since, self.catch_up, self.most, self.jitter_ms)

    def overtaking(self) -> str | None:
        """Return the problem with a jitter that could reorder fire times, or None if it cannot.

        Some fire times would be skipped. Only the first fire times are compared.
        """
        if not self.jitter_ms or self.catch_up == "all":
            return None

        fire_times = self.pattern.coming(COMPARED_FROM, COMPARED_FIRE_TIMES, COMPARED_FROM)
        gaps = ((after - before) // MILLISECOND for before, after in pairwise(fire_times))
        gap = min(gaps, default=self.jitter_ms + 1)

        if self.jitter_ms < gap:
            return None
        return (
            f"must be less than the {gap:_} ms between two fire times unless catch_up is all: "
            "otherwise some fire times would be skipped"
        )

    def definition(self) -> dict[str, Any]:
        """Return the definition as a JSON object, which ``read_definition`` reads."""
        own = {"pattern": str(self.pattern), "zone": self.pattern.zone, "kwargs": dict(self.kwargs)}
        # Release 0.1 refuses the key "overlap".
        keys = [key for key in SCHEDULE_KEYS if key != "overlap" or self.overlap != "allow"]
        return {key: own[key] if key in own else getattr(self, key) for key in keys}


SCHEDULE_KEYS = ("task", "pattern", "zone", *(one.name for one in fields(ScheduleConfig)[2:]))


def read_definition(raw: Mapping[str, Any]) -> tuple[ScheduleConfig | None, list[tuple[str, str]]]:
    """Return the schedule of a definition, and its problems as pairs of a key and a message.

    The schedule is None if there are problems. The pattern may be a text, or an object, which has
    its own zone.
    """
    problems = [
        (key, f"unknown key {key!r}; the keys are {', '.join(SCHEDULE_KEYS)}")
        for key in raw
        if key not in SCHEDULE_KEYS
    ]

    def take(key: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
        value = raw.get(key, default)
        if value is default or fits(value):
            return value
        problems.append((key, f"must be {expected}, not {value!r:.80}"))
        return default

    found = ScheduleConfig(
        task=take(
            "task", "", lambda value: isinstance(value, str) and bool(value), "the name of a task"
        ),
        pattern=_pattern(raw, problems),
        kwargs=take("kwargs", {}, _is_arguments, "an object of the task's arguments by name"),
        queue=take(
            "queue",
            None,
            lambda value: isinstance(value, str) and bool(value),
            "the name of a queue, or None",
        ),
        priority=take(
            "priority", None, _whole(1, 100), "a whole number from 1 (first) to 100, or None"
        ),
        good_for_ms=take(
            "good_for_ms", None, _whole(1_000, 365 * DAY_MS), "from 1_000 ms to a year, or None"
        ),
        catch_up=take(
            "catch_up", "latest", lambda value: value in CATCH_UP, f"one of {', '.join(CATCH_UP)}"
        ),
        most=take(
            "most", 100, _whole(1, MOST_FIRE_TIMES), f"a whole number from 1 to {MOST_FIRE_TIMES:_}"
        ),
        jitter_ms=take(
            "jitter_ms", 0, _whole(0, DAY_MS), "a whole number from 0 to a day of milliseconds"
        ),
        overlap=take(
            "overlap", "allow", lambda value: value in OVERLAPS, f"one of {', '.join(OVERLAPS)}"
        ),
        enabled=take("enabled", True, lambda value: isinstance(value, bool), "True or False"),
    )

    if not found.task and not any(key == "task" for key, _ in problems):
        problems.append(("task", "must be the name of a task"))

    return (None if problems else found), problems


def as_texts(problems: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{key}: {problem}" for key, problem in problems]


# This pattern replaces an invalid one, so that the rest of the definition is still checked.
SUBSTITUTE_PATTERN = parse_pattern("daily at 00:00")


def _pattern(raw: Mapping[str, Any], problems: list[tuple[str, str]]) -> Pattern:
    given = raw.get("pattern")
    zone = raw.get("zone")

    if isinstance(given, Pattern):
        if zone not in (None, given.zone):
            problems.append(("zone", f"the pattern already has the zone {given.zone!r}"))
        return given

    if not isinstance(given, str):
        problems.append(
            (
                "pattern",
                f"must be a cron string, a text such as {str(SUBSTITUTE_PATTERN)!r}, or a pattern, "
                f"not {given!r:.80}",
            )
        )
        given = str(SUBSTITUTE_PATTERN)

    found = SUBSTITUTE_PATTERN
    try:
        found = parse_pattern(given)
    except PatternError as error:
        problems.append(("pattern", str(error)))

    try:
        return found if zone is None else replace(found, zone=zone)
    except PatternError as error:
        problems.append(("zone", str(error)))
        return found


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    )


def _is_arguments(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
