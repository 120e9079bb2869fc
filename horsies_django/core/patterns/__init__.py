"""Patterns give the fire times of a schedule: the moments at which it fires. Pure: the current time is an argument."""

from __future__ import annotations

from horsies_django.core.patterns.base import RULES, Pattern, PatternError
from horsies_django.core.patterns.kinds import EXAMPLES, Cron, Daily, Every, Hourly, Monthly, Weekly, parse

__all__ = [
    "EXAMPLES",
    "RULES",
    "Cron",
    "Daily",
    "Every",
    "Hourly",
    "Monthly",
    "Pattern",
    "PatternError",
    "Weekly",
    "parse",
]
