"""Metrics from plain figures. It is imported only where prometheus-client is installed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from horsies_django.core.counts import BOUNDS

BOUND_TEXTS = ["+Inf" if bound == math.inf else str(bound) for bound in BOUNDS]
Figures = Mapping[Any, float]  # by the value of the label, or a tuple of those of the labels
Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


def gauge(name: str, text: str, labels: Sequence[str], figures: Figures, kind: Kind = GaugeMetricFamily) -> Metric:
    """Return a gauge, or another ``kind``, with a value for each figure."""
    family = kind(name, text, labels=labels)
    for key, figure in figures.items():
        family.add_metric((key,) if isinstance(key, str) else key, figure)
    return family


class Families(Collector):
    """Families of metrics, for ``generate_latest``."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self.families


def histogram(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[tuple[str, ...], float, Sequence[int]]]
) -> str:
    """Return a histogram as text. Rows have the values of the labels, the sum, and the count in each bucket of ``BOUNDS``.

    Rows with the same labels are added up. ``generate_latest`` takes about ten times as long for so many lines, and the engine
    of the worker would wait for it.
    """
    sums: dict[tuple[str, ...], tuple[float, Sequence[int]]] = {}
    for values, seconds, buckets in rows:
        if before := sums.get(values):
            seconds, buckets = before[0] + seconds, [one + other for one, other in zip(before[1], buckets, strict=True)]
        sums[values] = seconds, buckets
    lines = [f"# HELP {name} {text}\n# TYPE {name} histogram\n"]
    for values, (seconds, buckets) in sums.items():
        pairs = ",".join(f'{label}="{escaped(value)}"' for label, value in zip(labels, values, strict=True))
        start = f'{name}_bucket{{{pairs}{"," * bool(pairs)}le="'
        lines += [f'{start}{bound}"}} {many}\n' for bound, many in zip(BOUND_TEXTS, accumulate(buckets), strict=True)]
        braced = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{name}_count{braced} {sum(buckets)}\n{name}_sum{braced} {seconds}\n")
    return "".join(lines)


def escaped(value: str) -> str:
    """Return the value of a label as it stands between quotation marks."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
