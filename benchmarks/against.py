"""Compares a run with an earlier one: the ratio of the medians of each common reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.figures import LESS_IS_BETTER, Figures
from benchmarks.saved import Run
from benchmarks.tables import number

TOLERANCE = 0.1


def compare(figures: Figures, versions: Mapping[str, str], baseline: Run) -> Iterator[str]:
    """Yield one line per common reading, marked if it is worse by more than a tenth.

    Differences of the environments come first.
    """
    for what in sorted({*versions, *baseline.versions}):
        now = versions.get(what, "unknown")
        then = baseline.versions.get(what, "unknown")
        if now != then:
            yield f"not the same {what}: {now}, was {then}"

    names = [name for name in figures.readings if name in baseline.figures.readings]
    width = max(map(len, names), default=0)

    for name in names:
        median = figures.median(name)
        former = baseline.figures.median(name)
        ratio = f"{median / former:.3f}" if former else "none"
        mark = "  WORSE" if is_worse(median, former, figures.readings[name][0].unit) else ""
        yield (
            f"{name:<{width}}  {number(median):>10} against {number(former):>10}  "
            f"ratio {ratio}{mark}"
        )


def is_worse(value: float, former: float, unit: str) -> bool:
    """Return whether a value is worse than an earlier one by more than a tenth of it."""
    if unit in LESS_IS_BETTER:
        return value > former * (1 + TOLERANCE)
    return value < former * (1 - TOLERANCE)
