"""The reaper, which rescues the tasks of dead workers, and the search for overdue workflows.

The reaper also ends overrides, and brings waiting tasks in line with changed limits. Only the
reapers of the workers on duty run (see ``heartbeat.py``). Only one at a time can rescue; the other
statements may run in parallel. A reaper declares workers dead only while its own heartbeats are
sent in time and the database's clock does not jump. After an outage of the database, or such a
jump, every heartbeat is old although no worker has died.

Engines advance the runs of the tasks that they settle. Overdue workflows are those that no engine
advances: after a cancel, an expiry or a rescue, after the time of a wait is over, or after the
death of the worker that should have advanced them. They are found in the tables.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from horsies_django.conf import Recovery
from horsies_django.core.counts import CRASHED, EXPIRED, OTHER
from horsies_django.core.texts import printable_name
from horsies_django.store.notify import channel_prefix
from horsies_django.store.queues import NO_OVERRIDE, QueueStore
from horsies_django.store.workers import Happened, WorkerStore
from horsies_django.worker.logs.task_log import (
    about_first,
    in_parentheses,
    log_expired,
    task_label,
)
from horsies_django.worker.maintenance import TURN_SECONDS
from horsies_django.worker.process.counts import Counts
from horsies_django.workflows.advancer import Advancer

logger = logging.getLogger("horsies.worker")

ROWS_PER_STATEMENT = 1_000  # rows of a kind per statement
REQUEST_SWEEP_SECONDS = 30.0


@dataclass(eq=False)
class Reaper:
    """The reaper of a worker; ``tick`` runs one round.

    ``may_declare_dead`` returns whether heartbeats were sent in time for so many seconds.
    ``send_signals`` sends the signals about rescued tasks.
    """

    recovery: Recovery
    forget_overrides_after: timedelta | None
    queues: Sequence[str]
    worker: uuid.UUID
    may_declare_dead: Callable[[float], bool]
    send_signals: Callable[[Sequence[Happened]], None] = lambda happened: None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.threshold = timedelta(milliseconds=self.recovery.running_stale_threshold_ms)
        # the highest age of the own heartbeat, because heartbeats of other workers may be one
        # interval older
        self.fresh = self.threshold - timedelta(
            milliseconds=self.recovery.claimer_heartbeat_interval_ms
        )
        self.request_sweep_at = time.monotonic() + REQUEST_SWEEP_SECONDS
        self.refused: set[uuid.UUID] = set()  # tasks that were logged as refused

    def note_served(self, connection: Any) -> None:
        """Record that this worker serves its queues.

        Raises psycopg.Error.
        """
        QueueStore(connection).served(self.queues)

    def tick(self, connection: Any) -> None:
        """Run one round.

        Raises psycopg.Error.
        """
        self.rescue(connection)
        queues = QueueStore(connection)
        self.end_overrides(queues)

        if (now := time.monotonic()) >= self.request_sweep_at:
            queues.request_sweep()
            self.request_sweep_at = now + REQUEST_SWEEP_SECONDS

        self.sweep(queues)

    def rescue(self, connection: Any) -> None:
        """Declare workers dead, and rescue their tasks until a batch is not full."""
        workers = WorkerStore(connection)
        self.declare_dead_workers(workers)
        more = True

        while more:
            happened = workers.reap(
                self.threshold,
                declare_dead=False,
                many=ROWS_PER_STATEMENT,
                max_crashes=self.recovery.max_crashes,
            )
            self.send_signals(happened)
            self.count(happened)

            by_kind: defaultdict[str, list[Happened]] = defaultdict(list)
            for each in happened:
                by_kind[each.kind].append(each)

            self.report_refused(by_kind["refused"])
            more = max(self.report_rescue(by_kind), len(by_kind["expired"])) >= ROWS_PER_STATEMENT
            log_expired(by_kind["expired"])

    def declare_dead_workers(self, workers: WorkerStore) -> None:
        """Declare workers dead, if this worker may do so."""
        if self.may_declare_dead(self.threshold.total_seconds()):
            for id_ in workers.declare_dead_workers(self.worker, self.threshold, self.fresh):
                logger.error(
                    "worker %s sent no heartbeat for %s; declaring it dead", id_, self.threshold
                )

    def count(self, happened: Iterable[Happened]) -> None:
        """Count the attempts that ended with their worker, and the tasks that expired."""
        results = {"failed": None, "retried": CRASHED, "expired": EXPIRED}
        self.counts.ended(
            (one.queue_name, one.task_name, results[one.kind] or one.code or OTHER)
            for one in happened
            if one.kind in results
        )

    def report_rescue(self, by_kind: Mapping[str, Sequence[Happened]]) -> int:
        """Log the rescued tasks of dead workers, and return their number."""
        failed = by_kind["failed"]
        retried = by_kind["retried"]
        returned = by_kind["returned"]

        if rescued := len(failed) + len(retried) + len(returned):
            logger.error(
                "%s task(s) of dead workers rescued: %s failed%s, %s are retried%s, %s had not "
                "begun and are pending again%s",
                rescued,
                len(failed),
                in_parentheses(failed),
                len(retried),
                in_parentheses(retried),
                len(returned),
                in_parentheses(returned),
                extra=about_first(failed),
            )

        return rescued

    def report_refused(self, tasks: Sequence[Happened]) -> None:
        """Log each task of a dead worker that could not be rescued, once per task."""
        for task in tasks:
            if task.id not in self.refused:
                self.refused.add(task.id)
                logger.error(
                    "%s of a dead worker cannot be rescued: the database refuses to store its "
                    "failure. Check the triggers and constraints of the project on horsies_tasks. "
                    "Each round of the reaper tries again",
                    task_label(task),
                )

    def end_overrides(self, queues: QueueStore) -> None:
        """End overrides whose time is over, and those of queues without a worker for too long."""
        for name, over in queues.outlived(self.forget_overrides_after):
            reason = (
                "its end time has passed"
                if over
                else f"no worker served the queue for {self.forget_overrides_after}"
            )
            if queues.configure(
                name, NO_OVERRIDE, action="queue.expire", actor="reaper", reason=reason
            ):
                logger.info("queue %s: the override ended, %s", printable_name(name), reason)

    def sweep(self, queues: QueueStore) -> None:
        """Bring waiting tasks in line with changed limits, for a short time."""
        until = time.monotonic() + TURN_SECONDS
        for name in queues.sweeps():
            while queues.sweep(name, ROWS_PER_STATEMENT) and time.monotonic() < until:
                pass


class OverdueWorkflows:
    """The search for overdue workflows; ``tick`` runs one round."""

    def __init__(self, advancer: Advancer) -> None:
        self.advancer = advancer
        # when to read all finished tasks that were not advanced, by the monotonic clock
        self.everything_at = 0.0

    def tick(self, connection: Any) -> float | None:
        """Find overdue workflows and advance them.

        Return 0.0 if the next round should follow at once, else None. Raises psycopg.Error.
        """
        store = self.advancer.store(connection, channel_prefix(connection))
        now = time.monotonic()
        until = now + TURN_SECONDS

        while self.advancer.wake(store):
            if time.monotonic() > until:
                return 0.0  # the time of thousands of waits is over at this moment

        everything = now >= self.everything_at
        self.advancer.find(store, None if everything else timedelta(minutes=1), ROWS_PER_STATEMENT)
        if everything:
            # at most a hundredth of the time is spent on older tasks
            self.everything_at = now + max(30.0, 100 * (time.monotonic() - now))

        while self.advancer.next_at <= time.monotonic() < until:
            self.advancer.turn(store, TURN_SECONDS)
        return None
