"""Metrics from plain figures. It is imported only where prometheus-client is installed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import GaugeMetricFamily

from horsies_django.core.counts import BOUNDS

BOUND_TEXTS = ["+Inf" if bound == math.inf else str(bound) for bound in BOUNDS]


def gauge(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """Return a gauge with a value for each row, which has the values of the labels and the figure."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, figure in rows:
        family.add_metric(values, figure)
    return family


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
