"""The maintenance thread of a worker: heartbeat, reaper, overdue workflows, pruner and history, on a connection of their own.

Statements on this connection have a timeout of one second, so that a long one cannot delay the heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import psycopg

from horsies_django.store.base import forget_plans, said
from horsies_django.store.notify import direct_connection
from horsies_django.worker.maintenance.heartbeat import HeartbeatSender
from horsies_django.worker.maintenance.history import HISTORY_SECONDS, HistoryWriter
from horsies_django.worker.maintenance.pruner import TICK_INTERVAL_SECONDS, Pruner
from horsies_django.worker.maintenance.reaper import INTERVAL_SECONDS, OverdueWorkflows, Reaper

logger = logging.getLogger("horsies.worker")


class MaintenanceThread(threading.Thread):
    """Calls ``tick`` of heartbeat, reaper, overdue workflows and pruner, each at its interval, until ``stop``."""

    def __init__(
        self,
        alias: str,
        heartbeat: HeartbeatSender,
        reaper: Reaper,
        reap_seconds: float,
        pruner: Pruner,
        overdue: OverdueWorkflows,
        history: HistoryWriter,
    ) -> None:
        super().__init__(name="horsies-maintenance", daemon=True)
        self.alias = alias
        self.heartbeat = heartbeat
        self.reaper = reaper
        self.reap_seconds = reap_seconds
        self.pruner = pruner
        self.prune_at = 0.0
        self.overdue = overdue
        self.history = history
        self.count_at = time.monotonic() + HISTORY_SECONDS
        self.connection: psycopg.Connection[Any] | None = None
        self.planned_at = 0.0
        self.ended = threading.Event()
        self.asked_since: float | None = None  # while it waits for the database, by the monotonic clock
        self.failing: set[str] = set()  # what was logged as failed and has not succeeded since

    def run(self) -> None:
        """Tick until stopped; errors are logged, and the next tick tries again on a new connection."""
        beat_at = reap_at = advance_at = 0.0
        while True:
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + self.heartbeat.interval_seconds
                if not self.attempt("the heartbeat", self.beat):
                    self.heartbeat.missed()
            if now >= reap_at:
                reap_at = now + self.reap_seconds
                self.attempt("the reaper's round", self.reap)
                self.attempt("recording which queues are served", self.note_served)
            if now >= advance_at:
                advance_at = now + INTERVAL_SECONDS
                if self.heartbeat.on_duty and self.attempt("advancing workflows", self.advance):
                    advance_at = 0.0
                self.note_retentions()
            if now >= self.prune_at:
                self.attempt("pruning", self.prune)
            if now >= self.count_at:
                self.count_at = now + HISTORY_SECONDS
                self.attempt("writing the history", self.count)
            due = min(beat_at, reap_at, advance_at, self.prune_at, self.count_at)
            if self.ended.wait(max(0.0, due - time.monotonic())):
                self.note_retentions()
                self.attempt("writing the history", self.count)
                self.disconnect()
                return

    def beat(self) -> bool:
        return self.heartbeat.tick(self.connected())

    def reap(self) -> bool:
        """Run one round of the reaper, if this worker is on duty."""
        if self.heartbeat.on_duty:
            self.reaper.tick(self.connected())
        return True

    def note_served(self) -> bool:
        """Record that this worker serves its queues."""
        self.reaper.note_served(self.connected())
        return True

    def advance(self) -> bool:
        """Advance overdue workflows; return whether to continue at once."""
        return self.overdue.tick(self.connected())

    def count(self) -> bool:
        """Write what was counted to the history."""
        return self.history.tick(self.connected())

    def note_retentions(self) -> None:
        """Record the ``keep_result`` of tasks that this worker has run."""
        if self.pruner.owes_note:
            self.attempt("noting retentions", lambda: self.pruner.note(self.connected()))

    def prune(self) -> bool:
        """Run one tick of the pruner."""
        self.prune_at = time.monotonic() + TICK_INTERVAL_SECONDS
        self.prune_at = time.monotonic() + self.pruner.tick(self.connected())
        return True

    def attempt(self, what: str, action: Any) -> bool:
        """Run an action that uses the database, and return whether it succeeded."""
        self.heartbeat.asked()
        self.asked_since = time.monotonic()
        try:
            done = bool(action())
        except psycopg.Error as error:
            if what not in self.failing:
                logger.warning("%s failed; trying again until it succeeds: %s", what, said(error))
            self.failing.add(what)
            self.disconnect()
            return False
        finally:
            self.asked_since = None
        self.heartbeat.answered()
        if what in self.failing:
            logger.info("%s succeeds again", what)
            self.failing.remove(what)
        return done

    def connected(self) -> psycopg.Connection[Any]:
        """Return the connection, opening one if there is none. Raises psycopg.OperationalError."""
        if self.connection is None:
            self.connection = direct_connection(
                self.alias,
                application_name="horsies maintenance",
                prepare=True,
                statement_timeout_ms=1_000,
            )
            self.planned_at = time.monotonic()
        self.planned_at = forget_plans(self.connection, self.planned_at)
        return self.connection

    def stop(self) -> None:
        """End the thread and close its connection."""
        self.ended.set()
        self.join(5)

    def disconnect(self) -> None:
        """Close the connection, in any state."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
