"""Metrics: a form for plain figures, and the metrics of the whole system from the database.

The module is imported only if prometheus-client is installed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import psycopg
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from horsies_django.core.counts import BOUNDS
from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import UNFINISHED_RUNS
from horsies_django.monitoring.health import Health, ProblemCode, examine, problems
from horsies_django.monitoring.reading import MOST_WAITING_REQUESTS, Cached
from horsies_django.store.base import Connection
from horsies_django.store.health import HealthStore

BOUND_TEXTS = ["+Inf" if bound == math.inf else str(bound) for bound in BOUNDS]
Figures = Mapping[Any, float]  # by the value of the label, or a tuple of values of the labels
MetricFamily = type[GaugeMetricFamily] | type[CounterMetricFamily]


def gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    figures: Figures,
    kind: MetricFamily = GaugeMetricFamily,
) -> Metric:
    """Return a gauge, or a metric of another ``kind``, with a value for each figure."""
    family = kind(name, text, labels=labels)
    for key, figure in figures.items():
        family.add_metric((key,) if isinstance(key, str) else key, figure)
    return family


class Families(Collector):
    """A collector of given metrics, for ``generate_latest``."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self.families


def histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[tuple[str, ...], float, Sequence[int]]],
) -> str:
    """Return a histogram as text.

    Each row has the values of the labels, the sum, and the count in each bucket of ``BOUNDS``. Rows
    with the same labels are added up. ``generate_latest`` would take about ten times as long for so
    many lines, and the engine of the worker would wait for it.
    """
    sums: dict[tuple[str, ...], tuple[float, Sequence[int]]] = {}
    for values, seconds, buckets in rows:
        if before := sums.get(values):
            seconds, buckets = (
                before[0] + seconds,
                [one + other for one, other in zip(before[1], buckets, strict=True)],
            )
        sums[values] = seconds, buckets

    lines = [f"# HELP {name} {text}\n# TYPE {name} histogram\n"]
    for values, (seconds, buckets) in sums.items():
        pairs = ",".join(
            f'{label}="{escaped(value)}"' for label, value in zip(labels, values, strict=True)
        )
        start = f'{name}_bucket{{{pairs}{"," * bool(pairs)}le="'

        lines += [
            f'{start}{bound}"}} {many}\n'
            for bound, many in zip(BOUND_TEXTS, accumulate(buckets), strict=True)
        ]

        braced = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{name}_count{braced} {sum(buckets)}\n{name}_sum{braced} {seconds}\n")

    return "".join(lines)


def escaped(value: str) -> str:
    """Return the value of a label with the escapes for the text between quotation marks."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def site_metrics(connection: Connection) -> Iterator[Metric]:
    """Yield the metrics of the system, or only its problems if a lock hides the tables.

    Raises the errors of the driver.
    """
    health = examine(connection)
    store = HealthStore(connection)

    found = Counter((one.code, one.severity) for one in problems(health))
    codes = {(code, code.severity): found[code, code.severity] for code in ProblemCode}
    yield gauge("horsies_problem", "Problems that need attention.", ("code", "severity"), codes)

    if not health.complete:
        return

    yield from queue_metrics(health)

    states = Counter(worker.state for worker in health.workers)
    workers = {state: states[state] for state in ("living", "stopping", "stale", "dead", "stopped")}
    yield gauge(
        "horsies_workers",
        "Workers by state; ended workers are counted for ten minutes.",
        ("state",),
        workers,
    )

    name = "horsies_schedule_next_fire_timestamp_seconds"
    text = "Next fire times of schedules."
    yield gauge(name, text, ("schedule",), store.fire_times())

    runs = dict.fromkeys(UNFINISHED_RUNS, 0) | store.runs()
    yield gauge(
        "horsies_workflow_runs",
        "Unfinished workflow runs, counted up to 10,000.",
        ("status",),
        runs,
    )


def queue_metrics(health: Health) -> Iterator[Metric]:
    """Yield the metrics of the tasks of queues, and of their limits.

    The whole cluster has only its limit and its pause, so that sums count no task twice.
    """
    queues = [queue for queue in health.queues if queue.name != CLUSTER]
    now = health.database.clock.timestamp()
    labels = ("queue",)

    due = {queue.name: queue.pending for queue in queues}
    oldest = {
        queue.name: now - queue.oldest_seconds
        for queue in queues
        if queue.oldest_seconds is not None
    }
    running = {queue.name: queue.running for queue in queues}
    limits = {queue.name: queue.limit for queue in health.queues if queue.limit is not None}
    paused = {queue.name: queue.paused for queue in health.queues}

    yield gauge("horsies_queue_due_tasks", "Waiting due tasks, counted up to 10,000.", labels, due)
    name = "horsies_queue_oldest_due_timestamp_seconds"
    text = "Due time of the oldest due task."
    yield gauge(name, text, labels, oldest)

    yield gauge("horsies_queue_running_tasks", "Running tasks.", labels, running)
    text = "Limit of the running tasks of the queue; absent if there is no limit."
    yield gauge("horsies_queue_limit_tasks", text, labels, limits)
    yield gauge("horsies_queue_paused", "1 if the queue is paused.", labels, paused)


cached_metrics: Cached[bytes | psycopg.Error] = Cached(MOST_WAITING_REQUESTS)


def read_metrics(connect: Callable[[], AbstractContextManager[Connection]]) -> bytes:
    """Return the metrics as text, read on a new connection if the last text is too old.

    An error is kept like a text. Otherwise all requests that waited for it would try again, one
    after another. Raises the errors of the driver, and BusyError if too many requests wait.
    """

    def make() -> bytes | psycopg.Error:
        try:
            with connect() as connection:
                return generate_latest(Families(site_metrics(connection)))
        except psycopg.Error as error:
            return error

    found = cached_metrics.read("", make)
    if isinstance(found, psycopg.Error):
        raise found
    return found
