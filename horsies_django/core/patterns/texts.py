"""Patterns as text, as they are written in settings and in the admin."""

from __future__ import annotations

import re
from collections.abc import Callable

from horsies_django.core.patterns.base import Pattern, PatternError
from horsies_django.core.patterns.kinds import Cron, Daily, Every, Hourly, Monthly, Weekly

TIME = r"(\d{1,2}:\d\d(?::\d\d)?)"
FORMS: tuple[tuple[str, Callable[..., Pattern]], ...] = (
    (
        r"every (?:(\d{1,9}) )?(day|hour|minute|second)s?",
        lambda count, unit, zone: Every(**{f"{unit}s": int(count or 1)}, zone=zone),
    ),
    (r"hourly at :(\d\d)(?::(\d\d))?", lambda minute, second, zone: Hourly(int(minute), int(second or 0), zone=zone)),
    (rf"daily at {TIME}", lambda at, zone: Daily(at, zone=zone)),
    (rf"weekly on ([a-z, ]+) at {TIME}", lambda days, at, zone: Weekly(at, days=re.split("[, ]+", days), zone=zone)),
    (rf"monthly on day (\d\d?) at {TIME}", lambda day, at, zone: Monthly(at, day=int(day), zone=zone)),
    (rf"monthly on the last day at {TIME}", lambda at, zone: Monthly(at, day="last", zone=zone)),
)
EXAMPLES = (
    "30 4 * * mon-fri",
    "every 15 minutes",
    "hourly at :05",
    "daily at 04:30",
    "weekly on mon, thu at 09:00",
    "monthly on day 15 at 09:00",
    "monthly on the last day at 23:00",
)


def parse(text: str, zone: str = "UTC") -> Pattern:
    """Return the pattern of a text, the inverse of ``str``; see ``EXAMPLES``. Raises PatternError."""
    words = " ".join(text.lower().split())
    for form, make in FORMS:
        if match := re.fullmatch(form, words):
            return make(*match.groups(), zone=zone)
    if words.partition(" ")[0] in ("every", "hourly", "daily", "weekly", "monthly"):
        raise PatternError(f"{text!r:.200} is not a pattern; write it like one of: {'; '.join(EXAMPLES[1:])}")
    return Cron(words, zone=zone)
