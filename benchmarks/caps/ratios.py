"""A figure with its target: the ratio of two medians of one run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.figures import Reading
from benchmarks.machine import versions


@dataclass(frozen=True)
class Ratio:
    """``value`` divided by ``against``.

    ``target`` is the least permitted ratio, or with ``at_most`` the greatest.
    """

    name: str
    value: float
    against: float
    unit: str
    target: float | None
    at_most: bool = False

    @property
    def ratio(self) -> float:
        return self.value / self.against if self.against else 0.0

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    @property
    def reading(self) -> Reading:
        """The figure itself; the value of the comparison is a detail."""
        details = {"against": self.against, "ratio": self.ratio}
        return Reading(f"caps {self.name}", self.value, self.unit or "share", details)

    def __str__(self) -> str:
        verdict = {True: "reached", False: "MISSED", None: ""}[self.met]
        bound = ""
        if self.target is not None:
            bound = f"{'at most' if self.at_most else 'at least'} {self.target:g}"

        figures = f"{self.value:10,.2f} against {self.against:10,.2f} {self.unit:<8}"
        return f"{self.name:<62} {figures} ratio {self.ratio:6.3f}  {bound:<13} {verdict}"


def compare(
    name: str,
    values: Sequence[float],
    against: Sequence[float],
    unit: str,
    target: float | None = None,
    *,
    at_most: bool = False,
) -> Ratio:
    """Compare the medians of two rows of measurements, print the line and return it."""
    ratio = Ratio(
        name, statistics.median(values), statistics.median(against), unit, target, at_most
    )
    line = {
        **asdict(ratio),
        "ratio": round(ratio.ratio, 4),
        "met": ratio.met,
        "repeats": len(values),
        "versions": versions(),
    }
    print(json.dumps(line), flush=True)
    return ratio
