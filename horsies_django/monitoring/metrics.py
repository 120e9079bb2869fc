"""The metrics of the whole system, from the database. It is imported only where prometheus-client is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from horsies_django.core.queues import CLUSTER
from horsies_django.core.status import UNFINISHED_RUNS
from horsies_django.monitoring.families import gauge
from horsies_django.monitoring.health import Health, ProblemCode, examine, problems
from horsies_django.monitoring.reading import Cached
from horsies_django.store.base import Connection
from horsies_django.store.health import HealthStore

WORKER_STATES = ("living", "stale", "dead", "stopped")


class SiteCollector(Collector):
    """Reads the state of the system on a connection. Raises the errors of the driver."""

    def __init__(self, connection: Connection) -> None:
        self.health = examine(connection)
        if self.health.complete:
            store = HealthStore(connection)
            self.fire_times, self.runs = store.fire_times(), store.runs()

    def collect(self) -> Iterator[Metric]:
        """Yield each family of metrics; only the problems, if the tables could not be read because of a lock."""
        found = Counter(problem.code for problem in problems(self.health))
        rows = [([code, code.severity], found[code]) for code in ProblemCode]
        yield gauge("horsies_problem", "Problems that need attention.", ["code", "severity"], rows)
        if not self.health.complete:
            return
        yield from of_queues(self.health)
        states = Counter(worker.state for worker in self.health.workers)
        workers = [([state], states[state]) for state in WORKER_STATES]
        yield gauge("horsies_workers", "Workers; those that ended, for ten minutes.", ["state"], workers)
        fire_times = [([name], epoch) for name, epoch in self.fire_times.items()]
        name, text = "horsies_schedule_next_fire_timestamp_seconds", "When schedules fire next."
        yield gauge(name, text, ["schedule"], fire_times)
        runs = [([status], self.runs.get(status, 0)) for status in UNFINISHED_RUNS]
        yield gauge("horsies_workflow_runs", "Unfinished workflow runs, up to 10,000.", ["status"], runs)


def of_queues(health: Health) -> Iterator[Metric]:
    """Yield what queues hold, and their limits. Of the whole cluster only limit and pause, so that sums count no task twice."""
    queues = [queue for queue in health.queues if queue.name != CLUSTER]
    now, label = health.database.clock.timestamp(), ["queue"]
    due = [([queue.name], queue.pending) for queue in queues]
    yield gauge("horsies_queue_due_tasks", "Due tasks that wait, up to 10,000.", label, due)
    oldest = [([queue.name], now - queue.oldest_seconds) for queue in queues if queue.oldest_seconds is not None]
    name, text = "horsies_queue_oldest_due_timestamp_seconds", "Since when the oldest due task has been due."
    yield gauge(name, text, label, oldest)
    running = [([queue.name], queue.running) for queue in queues]
    yield gauge("horsies_queue_running_tasks", "Tasks that run.", label, running)
    limits = [([queue.name], queue.limit) for queue in health.queues if queue.limit is not None]
    yield gauge(
        "horsies_queue_limit_tasks", "Tasks of the queue that may run at once; none: any number.", label, limits
    )
    paused = [([queue.name], queue.paused) for queue in health.queues]
    yield gauge("horsies_queue_paused", "1: the queue is paused.", label, paused)


texts: Cached[bytes] = Cached()


def rendered(connect: Callable[[], AbstractContextManager[Connection]]) -> bytes:
    """Return the metrics as text, read on a new connection if need be. Raises the errors of the driver."""

    def make() -> bytes:
        with connect() as connection:
            collector = SiteCollector(connection)
        return generate_latest(collector)

    return texts.read("", make)
