"""Patterns: the moments at which a schedule fires, its slots. Pure: the time is passed in."""

from __future__ import annotations

from horsies_django.core.patterns.base import RULES, Pattern, PatternError
from horsies_django.core.patterns.kinds import Cron, Daily, Every, Hourly, Monthly, Weekly
from horsies_django.core.patterns.texts import EXAMPLES, parse

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
