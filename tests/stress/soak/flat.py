"""Checks that no figure grew: the median of the last third of the samples against the second third.

The first third is not compared: tables fill until pruning begins, and workers load modules.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEAST = 15  # samples in a third
# How long tables grow until pruning keeps up: rows are kept for two minutes.
FULL_SECONDS = 180


class Bound(NamedTuple):
    """The last third may be ``factor`` times the second third, plus ``more``."""

    factor: float
    more: float


BOUNDS: Mapping[str, Bound] = {
    "parent MB": Bound(1.05, 2),
    "child MB": Bound(1.1, 3),
    "tables MB": Bound(1.2, 5),
    "indexes MB": Bound(1.2, 5),
    "dead rows": Bound(1.5, 10_000),
    "backlog": Bound(1.5, 50),
    "start p50 ms": Bound(1.25, 2),
    "start p99 ms": Bound(1.5, 50),
}


def thirds(samples: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float, float]] | None:
    """Return the medians of the thirds of each figure.

    None if there are too few samples, or the tables were not full in the first third.
    """
    size = len(samples) // 3
    if size < LEAST or samples[size]["seconds"] < FULL_SECONDS:
        return None
    parts = samples[:size], samples[size : 2 * size], samples[2 * size :]
    return {
        name: tuple(statistics.median(sample[name] for sample in part) for part in parts)  # type: ignore[misc]
        for name in BOUNDS
    }


def grown(medians: Mapping[str, tuple[float, float, float]]) -> list[str]:
    """Return a sentence for each figure that grew beyond its bound."""
    return [
        f"{name} grew from {second:,.1f} to {last:,.1f}; at most {bound.factor} times and "
        f"{bound.more:,} are allowed"
        for name, bound in BOUNDS.items()
        for _, second, last in [medians[name]]
        if last > second * bound.factor + bound.more
    ]
