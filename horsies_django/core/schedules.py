"""A schedule's definition: a JSON object that the code declares, the row stores and the admin edits; validated as a whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from horsies_django.core.fire_times import CATCH_UP, MOST_FIRE_TIMES, CatchUp, Timing
from horsies_django.core.patterns import Pattern, PatternError, parse

DAY_MS = 86_400_000
MILLISECOND = dt.timedelta(milliseconds=1)
BEGINNING, LOOKED_AT = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), 100  # how many fire times to look at
KEYS = (
    "task",
    "pattern",
    "zone",
    "kwargs",
    "queue",
    "priority",
    "good_for_ms",
    "catch_up",
    "most",
    "jitter_ms",
    "enabled",
)


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """What a schedule sends, and when. ``task`` is a task's name, ``kwargs`` are its arguments by name, as JSON.

    ``queue`` and ``priority`` default to the task's own. A task that has not started ``good_for_ms`` milliseconds after its fire
    time expires; None means no limit. See ``core.fire_times.Timing`` for the other fields.
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
    enabled: bool = True

    def timing(self, name: str, since: dt.datetime) -> Timing:
        """Return when it fires if it is in force since ``since``."""
        return Timing(name, self.pattern, since, self.catch_up, self.most, self.jitter_ms)

    def overtaking(self) -> str | None:
        """Return why jitter could reorder fire times, so that some would be skipped, or None. Looks at the first ones only."""
        if not self.jitter_ms or self.catch_up == "all":
            return None
        fire_times = self.pattern.coming(BEGINNING, LOOKED_AT, BEGINNING)
        gaps = ((after - before) // MILLISECOND for before, after in pairwise(fire_times))
        gap = min(gaps, default=self.jitter_ms + 1)
        if self.jitter_ms < gap:
            return None
        return f"must be less than the {gap:_} ms between two fire times unless catch_up is all: some would be skipped"

    def definition(self) -> dict[str, Any]:
        """Return it as a JSON object, which ``read_definition`` reads."""
        return {
            "task": self.task,
            "pattern": str(self.pattern),
            "zone": self.pattern.zone,
            "kwargs": dict(self.kwargs),
            "queue": self.queue,
            "priority": self.priority,
            "good_for_ms": self.good_for_ms,
            "catch_up": self.catch_up,
            "most": self.most,
            "jitter_ms": self.jitter_ms,
            "enabled": self.enabled,
        }


def read_definition(raw: Mapping[str, Any]) -> tuple[ScheduleConfig | None, list[tuple[str, str]]]:
    """Return the schedule and its problems, as pairs of a key and a message; the schedule is None if there are any.

    The pattern may be text or an object, which has its own zone.
    """
    problems = [(key, f"unknown key {key!r}; the keys are {', '.join(KEYS)}") for key in raw if key not in KEYS]

    def take(key: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
        value = raw.get(key, default)
        if value is default or fits(value):
            return value
        problems.append((key, f"must be {expected}, not {value!r:.80}"))
        return default

    found = ScheduleConfig(
        task=take("task", "", lambda value: isinstance(value, str) and bool(value), "the name of a task"),
        pattern=_pattern(raw, problems),
        kwargs=take("kwargs", {}, _is_arguments, "an object of the task's arguments by name"),
        queue=take("queue", None, lambda value: isinstance(value, str) and bool(value), "the name of a queue, or None"),
        priority=take("priority", None, _whole(1, 100), "a whole number from 1 (first) to 100, or None"),
        good_for_ms=take("good_for_ms", None, _whole(1_000, 365 * DAY_MS), "from 1_000 ms to a year, or None"),
        catch_up=take("catch_up", "latest", lambda value: value in CATCH_UP, f"one of {', '.join(CATCH_UP)}"),
        most=take("most", 100, _whole(1, MOST_FIRE_TIMES), f"a whole number from 1 to {MOST_FIRE_TIMES:_}"),
        jitter_ms=take("jitter_ms", 0, _whole(0, DAY_MS), "a whole number from 0 to a day of milliseconds"),
        enabled=take("enabled", True, lambda value: isinstance(value, bool), "True or False"),
    )
    if not found.task and not any(key == "task" for key, _ in problems):
        problems.append(("task", "must be the name of a task"))
    return (None if problems else found), problems


def as_texts(problems: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{key}: {problem}" for key, problem in problems]


UNREADABLE = parse("daily at 00:00")  # stands in for an invalid pattern, so that the rest is still checked


def _pattern(raw: Mapping[str, Any], problems: list[tuple[str, str]]) -> Pattern:
    given, zone = raw.get("pattern"), raw.get("zone")
    if isinstance(given, Pattern):
        if zone not in (None, given.zone):
            problems.append(("zone", f"the pattern already has the zone {given.zone!r}"))
        return given
    if not isinstance(given, str):
        problems.append(
            ("pattern", f"must be a cron string, a text such as {str(UNREADABLE)!r}, or a pattern, not {given!r:.80}")
        )
        given = str(UNREADABLE)
    found = UNREADABLE
    try:
        found = parse(given)
    except PatternError as error:
        problems.append(("pattern", str(error)))
    try:
        return found if zone is None else replace(found, zone=zone)
    except PatternError as error:
        problems.append(("zone", str(error)))
        return found


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_arguments(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
