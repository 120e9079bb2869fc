"""The metrics of a worker, from its memory.

This module is imported only if prometheus-client is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from horsies_django import __version__
from horsies_django.core.counts import CLAIMED, Total
from horsies_django.core.queues import LANES
from horsies_django.monitoring.metrics import Families, gauge, histogram
from horsies_django.monitoring.reading import SCRAPED_SECONDS, Cached
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.limits.memory import memory_bytes
from horsies_django.worker.pool.process import Child

MOST_WAITING_CLIENTS = 4  # clients, each of which takes a thread
# instead of 5 ms while metrics are rendered, because a pass needs the interpreter several times
SWITCH_SECONDS = 0.0001


cached_worker_metrics: Cached[bytes] = Cached(MOST_WAITING_CLIENTS)


def read_worker_metrics(engine: Engine) -> bytes:
    """Return the metrics as text, at most a second old.

    One thread at a time renders them. Raises BusyError if too many clients wait.
    """
    return cached_worker_metrics.read("", lambda: _render(engine), SCRAPED_SECONDS)


def _render(engine: Engine) -> bytes:
    """Return the metrics as text, while the engine gets the interpreter whenever it needs it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        totals = engine.outbox.counts.read()
        return (
            generate_latest(Families(of_worker(engine, totals)))
            + histograms(engine, totals).encode()
        )
    finally:
        sys.setswitchinterval(before)


def of_worker(engine: Engine, totals: list[Total]) -> Iterator[Metric]:
    """Yield the families of metrics without the histograms; may be called from any thread."""
    status = engine.status
    results = {total[:3]: total.n for total in totals if total.result != CLAIMED}
    text = "Attempts that ended, and tasks that expired."
    labels = ("queue", "task", "result")
    yield gauge("horsies_tasks", text, labels, results, CounterMetricFamily)

    slots = {lane: engine.pool.options.slots(lane) for lane in LANES}
    # tasks that are dispatched ahead of a free slot do not count
    used = {
        "sync": min(status.running_sync, slots["sync"]),
        "async": min(status.running_async, slots["async"]),
    }
    yield gauge("horsies_slots", "Tasks that may run at once.", ("lane",), slots)
    yield gauge("horsies_slots_used", "Running tasks.", ("lane",), used)

    text = "Child processes that ended."
    ended = engine.pool.ended
    yield gauge("horsies_children_ended", text, ("reason",), ended, CounterMetricFamily)

    children = [memory_bytes(member.pid) for member in status.members if isinstance(member, Child)]
    memory = {"worker": memory_bytes(os.getpid()), "children": sum(children)}
    largest = max(children, default=0)
    yield gauge(
        "horsies_resident_memory_bytes",
        "Resident memory; processes share a part of it.",
        ("role",),
        memory,
    )

    text = "Resident memory of the largest child."
    yield gauge("horsies_children_resident_memory_max_bytes", text, (), {(): largest})
    text = "Outcomes that the database has not stored yet."
    yield gauge("horsies_unwritten_outcomes", text, (), {(): engine.outbox.unwritten})
    yield gauge("horsies_worker_info", "The version of the worker.", ("version",), {__version__: 1})


def histograms(engine: Engine, totals: list[Total]) -> str:
    """Return a text with the histograms: how long attempts ran, tasks waited, and passes took."""
    runs = [
        (total[:2], total.seconds, total.buckets) for total in totals if total.result != CLAIMED
    ]
    waits = [
        (total[:1], total.seconds, total.buckets) for total in totals if total.result == CLAIMED
    ]
    passes = [((), engine.passes.seconds, tuple(engine.passes.buckets))]

    return (
        histogram("horsies_task_duration_seconds", "Duration of attempts.", ("queue", "task"), runs)
        + histogram(
            "horsies_task_wait_seconds",
            "Time from the due time of a task to its claim.",
            ("queue",),
            waits,
        )
        + histogram("horsies_pass_duration_seconds", "Duration of passes.", (), passes)
    )
