"""The metrics of a worker, from its memory. It is imported only where prometheus-client is installed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from horsies_django import __version__
from horsies_django.core.counts import CLAIMED, Total
from horsies_django.core.queues import LANES
from horsies_django.monitoring.families import gauge, histogram
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.pool.process import Child
from horsies_django.worker.process.memory import memory_bytes

rendering = threading.Lock()
SWITCH_SECONDS = 0.0001  # while metrics are rendered, instead of 5 ms: a pass asks for the interpreter several times


def rendered(engine: Engine) -> bytes:
    """Return the metrics as text. One thread at a time renders, and hands over the interpreter when the engine needs it."""
    with rendering:
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            totals = engine.outbox.counts.read()
            return generate_latest(WorkerCollector(engine, totals)) + histograms(engine, totals).encode()
        finally:
            sys.setswitchinterval(before)


class WorkerCollector(Collector):
    """Reads what the parts of a worker count, from any thread. Nothing is counted here."""

    def __init__(self, engine: Engine, totals: list[Total]) -> None:
        self.engine = engine
        self.totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield each family of metrics but the histograms."""
        engine = self.engine
        text = "Attempts that ended, and tasks that expired."
        results = CounterMetricFamily("horsies_tasks", text, labels=["queue", "task", "result"])
        for total in ended(self.totals):
            results.add_metric([total.queue, total.task, total.result], total.n)
        yield results
        yield from of_slots(engine)
        children = CounterMetricFamily("horsies_children_ended", "Child processes that ended.", labels=["reason"])
        for reason, count in engine.pool.ended.items():
            children.add_metric([reason], count)
        yield children
        yield from of_memory(engine)
        unwritten = [((), engine.outbox.unwritten)]
        yield gauge("horsies_unwritten_outcomes", "Outcomes that the database has not stored yet.", (), unwritten)
        yield gauge("horsies_worker_info", "The version of the worker.", ["version"], [([__version__], 1)])


def ended(totals: list[Total]) -> list[Total]:
    """Return the counts of results, without those of claims."""
    return [total for total in totals if total.result != CLAIMED]


def histograms(engine: Engine, totals: list[Total]) -> str:
    """Return how long attempts ran, due tasks waited, and passes took, as text."""
    runs = [((total.queue, total.task), total.seconds, total.buckets) for total in ended(totals)]
    waits = [((total.queue,), total.seconds, total.buckets) for total in totals if total.result == CLAIMED]
    passes = [((), engine.passes.seconds, tuple(engine.passes.buckets))]
    return "".join(
        (
            histogram("horsies_task_duration_seconds", "How long attempts ran.", ("queue", "task"), runs),
            histogram("horsies_task_wait_seconds", "How long claimed tasks had been due.", ("queue",), waits),
            histogram("horsies_pass_duration_seconds", "How long passes took.", (), passes),
        )
    )


def of_slots(engine: Engine) -> Iterator[Metric]:
    """Yield the slots of the lanes, and how many are in use; tasks that are dispatched ahead of a free slot do not count."""
    slots = {lane: engine.pool.options.slots(lane) for lane in LANES}
    running = {"sync": engine.status.running_sync, "async": engine.status.running_async}
    yield gauge("horsies_slots", "Tasks that may run at once.", ["lane"], [([lane], slots[lane]) for lane in LANES])
    used = [([lane], min(running[lane], slots[lane])) for lane in LANES]
    yield gauge("horsies_slots_used", "Tasks that run.", ["lane"], used)


def of_memory(engine: Engine) -> Iterator[Metric]:
    """Yield the resident memory of the worker, of its children together, and of the largest one."""
    children = [memory_bytes(member.pid) for member in engine.status.members if isinstance(member, Child)]
    roles = [(["worker"], memory_bytes(os.getpid())), (["children"], sum(children))]
    yield gauge("horsies_resident_memory_bytes", "Resident memory; processes share a part of it.", ["role"], roles)
    largest = [((), max(children, default=0))]
    yield gauge("horsies_children_resident_memory_max_bytes", "Resident memory of the largest child.", (), largest)
