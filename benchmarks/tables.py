"""Tables for people: a line per reading and one per goal.

A reading has median, least and greatest value, a goal its verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.figures import Figures, Goal


@dataclass(frozen=True)
class Verdict:
    """The verdict on a goal: ``value`` is the median, or the ratio of two."""

    goal: Goal
    value: float
    unit: str

    @property
    def reached(self) -> bool:
        return self.value <= self.goal.bound if self.goal.at_most else self.value >= self.goal.bound

    @property
    def word(self) -> str:
        return "reached" if self.reached else "MISSED"

    @property
    def bound(self) -> str:
        return f"{'at most' if self.goal.at_most else 'at least'} {number(self.goal.bound)}"

    @property
    def measured(self) -> str:
        """The value with its unit, or "ratio" before it."""
        return (
            f"ratio {number(self.value)}" if self.goal.over else f"{number(self.value)} {self.unit}"
        )

    @property
    def subject(self) -> str:
        return f"{self.goal.of} / {self.goal.over}" if self.goal.over else self.goal.of

    def __str__(self) -> str:
        return f"{self.goal.name} {self.word}: {self.measured}, {self.bound}  ({self.subject})"


def verdicts(figures: Figures, goals: Iterable[Goal]) -> Iterator[Verdict]:
    """Compare the goals with the readings that were taken."""
    for goal in goals:
        if {goal.of, goal.over or goal.of} <= figures.readings.keys():
            base = figures.median(goal.over) if goal.over else 1.0
            unit = figures.readings[goal.of][0].unit
            yield Verdict(goal, figures.median(goal.of) / base if base else 0.0, unit)


def spread(figures: Figures, name: str) -> tuple[float, float, float]:
    """Return a reading's median, least and greatest value."""
    values = [reading.value for reading in figures.readings[name]]
    return statistics.median(values), min(values), max(values)


def details(figures: Figures, name: str) -> dict[str, float]:
    """Return the medians of a reading's details."""
    found = figures.readings[name]
    return {
        key: statistics.median(reading.details[key] for reading in found)
        for key in found[0].details
    }


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the table of all readings."""
    width = max(map(len, figures.readings), default=0)
    for name, found in figures.readings.items():
        median, least, greatest = map(number, spread(figures, name))
        yield f"{name:<{width}}  {median:>10} {found[0].unit:<10}  ({least} .. {greatest})"


def number(value: float) -> str:
    """Format a number with three or more significant figures, and no needless decimals."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.3g}"
