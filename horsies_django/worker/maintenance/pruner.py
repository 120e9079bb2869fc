"""The pruner, which deletes records that are older than their retention.

These are tasks, fire times, keys, workers, snapshots, the audit and the history. A pruner runs in
every worker, in the maintenance thread. A round consists of short ticks and ends when no records
are left to delete. Each batch is a statement and a transaction of its own. Rows differ in size by a
factor of a million (a result may have megabytes). So batches of each kind start with one row and
double only while they are fast. Heartbeats are not delayed by them, and large rows are deleted,
too. The file ``store/sql/functions/tasks/horsies_prune.sql`` describes why a round does not read
all history.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg

from horsies_django.conf import Retention
from horsies_django.conf.values import span
from horsies_django.core.repeats import Repeats
from horsies_django.store.base import error_text
from horsies_django.store.history import HOUR_SECONDS, MINUTE_SECONDS, HistoryStore
from horsies_django.store.retention import KEPT, Kept, OwnRetention, RetentionStore, kept_by
from horsies_django.worker.maintenance import TURN_SECONDS

logger = logging.getLogger("horsies.worker")

# the next batch is larger after a batch that took less, smaller after one that took twice as long
QUICK_SECONDS = 0.05

# a function that deletes a batch of at most so many rows; it returns the number of deleted rows by
# name, and whether there may be more
Delete = Callable[[RetentionStore, int], tuple[dict[str, int], bool]]
# a function that deletes at most so many rows older than an age, and returns their number
Prune = Callable[[RetentionStore, timedelta, int], int]


@dataclass(eq=False)
class PruningStep:
    """One kind of record, of which a round deletes batches until none is left.

    ``batch`` is the number of rows of the next batch.
    """

    delete: Delete
    batch: int = 1


class Pruner:
    """The rounds that delete old records; ``tick`` runs a part of a round.

    The kinds of records take turns with a batch each. If a round is not over when the next one is
    due, the next one begins, and the remaining kinds take their turn in it. So no kind delays
    another, even if it has many records. ``own`` returns the ``keep_result`` of tasks of this
    worker, and ``note`` records them.
    """

    def __init__(
        self, retention: Retention, own: Callable[[], Iterable[int | bool]] = tuple
    ) -> None:
        self.interval_seconds = float(retention.retention_sweep_interval_s)
        self.largest_batch = retention.retention_delete_batch_size
        self.own = own
        self.noted: set[int | bool] = set()

        self.steps = steps(retention)
        self.own_steps: dict[OwnRetention, PruningStep] = {}
        self.left: deque[PruningStep] = deque()  # the remaining steps of the current round
        self.began_at: float | None = None  # when the round began, by the monotonic clock
        self.counts: Counter[str] = Counter()
        self.repeats = Repeats()

    @property
    def has_new_retentions(self) -> bool:
        return not self.noted.issuperset(self.own())

    def note(self, connection: Any) -> None:
        """Record the ``keep_result`` of tasks, so that other workers delete these tasks, too.

        Raises psycopg.OperationalError.
        """
        new = set(self.own()) - self.noted
        self.noted |= new

        try:
            RetentionStore(connection).note_retentions(map(OwnRetention, new))
        except psycopg.ProgrammingError as error:
            logger.error("retention: keep_result cannot be recorded: %s", error_text(error))
        except psycopg.Error:
            self.noted -= new
            raise

    def tick(self, connection: psycopg.Connection[Any]) -> float | None:
        """Delete records for a short time.

        Return the seconds until the next round, or None if this round is not over. Raises
        psycopg.OperationalError.
        """
        store = RetentionStore(connection)
        until = time.monotonic() + TURN_SECONDS
        self.begin_if_due(store)

        while self.left:
            step = self.left.popleft()
            if self.more_after(step, store):
                self.left.append(step)
            if self.left and time.monotonic() >= until:
                return None

        self.report()
        self.began_at = None
        return self.interval_seconds

    def begin_if_due(self, store: RetentionStore) -> None:
        """Begin a round if there is none, or if the current one takes longer than the interval.

        The remaining steps of the current one follow after the others.
        """
        now = time.monotonic()
        if self.began_at is not None and now - self.began_at < self.interval_seconds:
            return

        self.report()
        self.began_at = now
        own = self.own_retentions(store)
        self.own_steps = {
            kept: self.own_steps.get(kept) or PruningStep(partial(prune_tasks, kept))
            for kept in own
        }

        every = [*self.steps, *self.own_steps.values()]
        unfinished = [step for step in self.left if step in every]
        self.left = deque([*(step for step in every if step not in unfinished), *unfinished])

    def own_retentions(self, store: RetentionStore) -> list[OwnRetention]:
        """Return the retentions that tasks have set by ``keep_result``.

        Return an empty list if the role of the worker may not read them.
        """
        try:
            return sorted(store.own_retentions())
        except psycopg.ProgrammingError as error:
            logger.error("retention: keep_result cannot be read: %s", error_text(error))
            return []

    def report(self) -> None:
        """Log how many records were deleted since the last such line."""
        if deleted := ", ".join(
            f"{name}: {count:,}" for name, count in self.counts.items() if count
        ):
            logger.info("retention deleted %s", deleted)
        self.counts.clear()

    def more_after(self, step: PruningStep, store: RetentionStore) -> bool:
        """Delete a batch, and return whether there may be more.

        Raises psycopg.Error if the connection is lost.
        """
        connection: Any = store.connection

        try:
            with self.logging_kept(connection):
                return self.delete(store, step)
        except psycopg.errors.QueryCanceled:
            logger.warning(
                "retention: a batch of %s rows took too long, the next one is smaller", step.batch
            )
            step.batch = max(1, step.batch // 10)
            return True
        except psycopg.Error as error:
            if connection.closed:
                raise

            # A privilege is missing, or a trigger of the project refuses. The heartbeats and the
            # deletion of other rows continue.
            logger.error("retention: rows cannot be deleted: %s", error_text(error))
            return False

    @contextmanager
    def logging_kept(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Log the rows that a statement in this block keeps.

        It keeps rows to which rows of the project refer.
        """

        def log_kept(notice: psycopg.errors.Diagnostic) -> None:
            if notice.sqlstate != KEPT:
                return
            message = notice.message_primary or ""
            kind = message.partition(" ")[2].partition(":")[0]
            if (more := self.repeats.due(kind, time.monotonic())) is not None:
                logger.warning("retention: %s%s", message, more)

        connection.add_notice_handler(log_kept)
        try:
            yield
        finally:
            connection.remove_notice_handler(log_kept)

    def delete(self, store: RetentionStore, step: PruningStep) -> bool:
        """Delete one batch; return whether there may be more.

        The size of the next batch is adjusted by the duration of this one.
        """
        began = time.monotonic()
        deleted, more = step.delete(store, step.batch)
        took = time.monotonic() - began
        self.counts.update(deleted)

        if took < QUICK_SECONDS:
            step.batch = min(step.batch * 2, self.largest_batch)
        elif took > 2 * QUICK_SECONDS:
            step.batch = max(step.batch // 2, 1)

        return more


def steps(retention: Retention) -> list[PruningStep]:
    """Return the steps of a round, one for each kind of record that is not kept for ever."""
    by_queue = retention.queue_ages
    terminal = retention.terminal_age
    found: list[Delete] = [partial(prune_tasks, kept) for kept in kept_by(terminal, by_queue)]
    if terminal is not None:
        found.append(partial(prune_runs, terminal))

    for name, hours, prune in (
        (
            "fire times of schedules",
            retention.terminal_record_retention_hours,
            RetentionStore.prune_ticks,
        ),
        ("keys of sends", retention.key_hours, RetentionStore.prune_keys),
        (
            "snapshots of workers",
            retention.worker_state_retention_hours,
            RetentionStore.prune_states,
        ),
        ("workers", retention.worker_retention_hours, RetentionStore.prune_workers),
        ("entries of the audit", retention.audit_retention_hours, RetentionStore.prune_audit),
        ("minutes of the history", 24, prune_history(MINUTE_SECONDS)),
        ("hours of the history", retention.history_hours, prune_history(HOUR_SECONDS)),
    ):
        if (age := span(hours)) is not None:
            found.append(partial(prune_rows, name, age, prune))

    return [PruningStep(delete) for delete in found]


def prune_tasks(
    kept: Kept | OwnRetention, store: RetentionStore, many: int
) -> tuple[dict[str, int], bool]:
    """Delete the finished tasks of some queues, or with the same ``keep_result``."""
    pruned = store.prune_tasks(kept, many)
    return {"tasks": pruned.tasks, "attempts": pruned.attempts}, pruned.more


def prune_runs(age: timedelta, store: RetentionStore, many: int) -> tuple[dict[str, int], bool]:
    """Delete finished workflow runs, with their tasks."""
    runs, tasks, attempts, more = store.prune_runs(age, many)
    return {"workflow runs": runs, "tasks": tasks, "attempts": attempts}, more


def prune_rows(
    name: str, age: timedelta, prune: Prune, store: RetentionStore, many: int
) -> tuple[dict[str, int], bool]:
    """Delete rows of one table; a batch that is not full is the last one."""
    count = prune(store, age, many)
    return {name: count}, count >= many


def prune_history(width: int) -> Prune:
    """Return the function that deletes old rows of the history of one width."""
    return lambda store, age, many: HistoryStore(store.connection).prune(width, age, many)
