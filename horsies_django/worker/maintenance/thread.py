"""The maintenance thread of a worker, which has a connection of its own.

It runs the heartbeat, the reaper, overdue workflows, the pruner and the history. Statements on the
connection have a timeout of one second, so that a long one cannot delay the heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from horsies_django.store.base import error_text, forget_plans
from horsies_django.store.history import MINUTE_SECONDS
from horsies_django.store.notify import direct_connection
from horsies_django.worker.maintenance.heartbeat import HeartbeatSender
from horsies_django.worker.maintenance.pruner import Pruner
from horsies_django.worker.maintenance.reaper import OverdueWorkflows, Reaper
from horsies_django.worker.process.backoff import Link
from horsies_django.worker.process.counts import HistoryWriter
from horsies_django.worker.process.shutdown import STOP_SECONDS

logger = logging.getLogger("horsies.worker")

OFTEN_SECONDS = 1.0  # the time between two rounds of frequent jobs


@dataclass
class PeriodicJob:
    """A job that is done every ``seconds``, if it is ``wanted`` then.

    ``act`` may return another number of seconds until the next time.
    """

    name: str
    seconds: float
    act: Callable[[psycopg.Connection[Any]], float | None]
    wanted: Callable[[], bool] = lambda: True
    at: float = 0.0  # when the job is due, by the monotonic clock
    at_the_end: bool = False  # whether the job is done once more when the worker stops


class MaintenanceThread(threading.Thread, Link):
    """The thread that does each job at its interval, until ``stop``."""

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
        self.history = history

        first_count_at = time.monotonic() + MINUTE_SECONDS
        self.jobs = [
            PeriodicJob("the heartbeat", heartbeat.interval_seconds, self.beat),
            PeriodicJob("the reaper's round", reap_seconds, reaper.tick, lambda: heartbeat.on_duty),
            PeriodicJob("recording which queues are served", MINUTE_SECONDS, reaper.note_served),
            PeriodicJob(
                "recording that the worker stops",
                OFTEN_SECONDS,
                heartbeat.record_stopping,
                lambda: heartbeat.must_record_stopping,
            ),
            PeriodicJob(
                "advancing workflows", OFTEN_SECONDS, overdue.tick, lambda: heartbeat.on_duty
            ),
            PeriodicJob(
                "recording retentions",
                OFTEN_SECONDS,
                pruner.note,
                lambda: pruner.has_new_retentions,
                at_the_end=True,
            ),
            PeriodicJob("pruning", OFTEN_SECONDS, pruner.tick),
            PeriodicJob(
                "writing the history",
                MINUTE_SECONDS,
                history.tick,
                at=first_count_at,
                at_the_end=True,
            ),
        ]

        self.planned_at = 0.0
        self.ended = threading.Event()
        # when the current job began, by the monotonic clock, None between jobs
        self.job_since: float | None = None
        # since when no job has succeeded, by the monotonic clock, None after a success
        self.unanswered_since: float | None = None
        self.failing: set[str] = set()  # jobs that were logged as failed and have not succeeded

    def run(self) -> None:
        """Run the due jobs until stopped.

        Errors are logged, and the next job uses a new connection.
        """
        while not self.ended.wait(max(0.0, min(job.at for job in self.jobs) - time.monotonic())):
            for job in self.jobs:
                if time.monotonic() >= job.at:
                    self.attempt(job)

        for job in self.jobs:
            if job.at_the_end:
                self.attempt(job)

        self.disconnect()

    def beat(self, connection: psycopg.Connection[Any]) -> None:
        self.heartbeat.tick(connection)

    def attempt(self, job: PeriodicJob) -> None:
        """Run a job if it is wanted, and set when it is due again."""
        began = time.monotonic()
        job.at = began + job.seconds
        if not job.wanted():
            return

        self.job_since = began
        self.unanswered_since = self.unanswered_since or began

        try:
            if (seconds := job.act(self.connected())) is not None:
                job.at = began + seconds
        except Exception as error:  # any error, because without heartbeats the worker is dead
            if job.name not in self.failing:
                unforeseen = not isinstance(error, psycopg.Error)
                line = "%s failed; trying again until it succeeds: %s"
                logger.warning(line, job.name, error_text(error), exc_info=unforeseen)
            self.failing.add(job.name)
            self.disconnect()
            return
        finally:
            self.job_since = None

        self.unanswered_since = None
        if job.name in self.failing:
            logger.info("%s succeeds again", job.name)
            self.failing.remove(job.name)

    def connected(self) -> psycopg.Connection[Any]:
        """Return the connection; open one if there is none.

        Raises psycopg.OperationalError.
        """
        connection = self.connection or self.connect()
        self.planned_at = forget_plans(connection, self.planned_at)
        return connection

    def connect(self) -> psycopg.Connection[Any]:
        self.connection = direct_connection(
            self.alias,
            application_name="horsies maintenance",
            prepare=True,
            statement_timeout_ms=1_000,
        )
        self.planned_at = time.monotonic()
        self.heartbeat.reconnected()
        return self.connection

    def stop(self) -> None:
        """End the thread and close its connection."""
        self.ended.set()
        self.join(STOP_SECONDS)
