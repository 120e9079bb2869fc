"""The parts of a scenario: cases that take turns, their readings, and goals for their medians."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LESS_IS_BETTER = ("ms", "us", "MB", "s", "statements", "lines", "buffers")


@dataclass(frozen=True)
class Reading:
    """One measured value of one repeat.

    ``details`` are further figures of the same measurement, by name with their unit.
    """

    name: str
    value: float
    unit: str  # "tasks/s", "ms", "us", "MB", "s", "share", "statements", "lines"
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A case that takes turns with its scenario's other cases.

    ``measure`` begins with empty tables and returns its readings.
    """

    name: str
    measure: Callable[[], Sequence[Reading]]


@dataclass(frozen=True)
class Goal:
    """A goal for a median, or for its ratio to another one; ``of`` and ``over`` name readings."""

    name: str  # the row of the table of goals: "P1"
    of: str
    bound: float
    over: str | None = None
    at_most: bool = False


Scenario = Callable[[float], Sequence[Case]]  # of a factor on its sizes


class Figures:
    """The readings of one run, by name, in the order in which they came first."""

    def __init__(self) -> None:
        self.readings: dict[str, list[Reading]] = {}

    def add(self, reading: Reading) -> None:
        """Print a reading as a line of JSON, and keep it."""
        line: dict[str, Any] = {
            "name": reading.name,
            "value": round(reading.value, 4),
            "unit": reading.unit,
        }
        line["details"] = {name: round(value, 4) for name, value in reading.details.items()}

        print(json.dumps(line), flush=True)
        self.keep(reading)

    def keep(self, reading: Reading) -> None:
        """Keep a reading whose measurement printed lines of its own."""
        self.readings.setdefault(reading.name, []).append(reading)

    def median(self, name: str) -> float:
        """Return the median of a reading. Raises KeyError if there is none."""
        return statistics.median(reading.value for reading in self.readings[name])


def take_turns(cases: Sequence[Case], repeats: int, figures: Figures) -> None:
    """Measure each case ``repeats`` times.

    Each round begins with another case, so that a slow minute affects all of them alike.
    """
    for turn in range(repeats):
        first = turn % len(cases)
        for case in (*cases[first:], *cases[:first]):
            for reading in case.measure():
                figures.add(reading)
