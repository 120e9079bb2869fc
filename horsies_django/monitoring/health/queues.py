"""Problems of workers and queues."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from horsies_django.core.queues import CLUSTER
from horsies_django.monitoring.health.problem import Problem, ProblemCode, number, problem, span
from horsies_django.monitoring.health.state import Health, QueueHealth


def of_workers(health: Health) -> Iterator[Problem]:
    """Yield the workers that hold tasks and should not."""
    for worker in health.workers:
        if worker.holds and worker.state != "living":
            yield problem(
                ProblemCode.STALE_WORKER,
                f"worker {worker.hostname}:{worker.pid}",
                f"worker {worker.hostname}:{worker.pid} is {worker.state}, was last seen {worker.silent_seconds:,.0f} s ago, and "
                f"holds {number(worker.holds, 'task')}",
                "any live worker recovers them: start one, or see in its log why it does not",
                worker.seen_at,
            )


def of_queues(health: Health, max_wait_seconds: float | None) -> Iterator[Problem]:
    """Yield what is wrong with queues that nobody has paused."""
    if any(queue.name == CLUSTER and queue.paused for queue in health.queues):
        return
    for queue in health.queues:
        if queue.name != CLUSTER and not queue.paused:
            yield from _of_queue(queue, health.database.clock)
            if max_wait_seconds is not None:
                yield from _of_waits(queue, health.database.clock, max_wait_seconds)


def _of_queue(queue: QueueHealth, clock: dt.datetime) -> Iterator[Problem]:
    if queue.pending and not queue.workers:
        yield problem(
            ProblemCode.NO_LIVING_WORKER,
            f"queue {queue.name}",
            f"queue {queue.name} has {number(queue.pending, 'task', queue.pending_more)} due and no live worker",
            f"start one that serves it, as in 'manage.py horsies_worker --queues={queue.name}'",
            _ago(clock, queue.oldest_seconds),
        )
    if queue.stopped_seconds is not None:
        yield problem(
            ProblemCode.ORDER_STOPPED,
            f"queue {queue.name}",
            f"failed tasks stop {number(min(queue.stopped, 1_000), 'key', queue.stopped > 1_000)} of queue {queue.name}, the "
            f"first for {queue.stopped_seconds:,.0f} s",
            f"retry or skip them; 'manage.py horsies_queue show {queue.name}' lists them",
            _ago(clock, queue.stopped_seconds),
        )


def _of_waits(queue: QueueHealth, clock: dt.datetime, most: float) -> Iterator[Problem]:
    if queue.oldest_seconds is not None and queue.oldest_seconds > most:
        yield problem(
            ProblemCode.WAITS_TOO_LONG,
            f"queue {queue.name}",
            f"a due task of queue {queue.name} has been waiting for {span(queue.oldest_seconds)}, longer than {span(most)}",
            "start more workers, or raise the limit that holds it back; 'manage.py horsies_explain ID' shows the reason",
            _ago(clock, queue.oldest_seconds),
        )
    if queue.partition_seconds is not None and queue.partition_seconds > most:
        yield problem(
            ProblemCode.PARTITION_WAITS,
            f"queue {queue.name}",
            f"a due task of queue {queue.name} whose partition is at its limit has been waiting for "
            f"{span(queue.partition_seconds)}, longer than {span(most)}",
            f"raise the limit of partitions, or send less; 'manage.py horsies_queue show {queue.name}' lists full partitions",
            _ago(clock, queue.partition_seconds),
        )


def _ago(clock: dt.datetime, seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else clock - dt.timedelta(seconds=seconds)
