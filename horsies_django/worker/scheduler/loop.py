"""The scheduler loop: sleeps until the next fire time, and wakes when a schedule is changed.

It runs in ``horsies_scheduler``, and on a thread of its own in a worker started with ``--with-scheduler``. It also writes the
schedules of its code to the table, and disables those that are no longer in any scheduler's code. It writes them only when it
starts: if two releases run side by side during a deploy, the one that started last decides.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psycopg
from django.db import DatabaseError, connections

from horsies_django import schedules
from horsies_django.conf import Config
from horsies_django.models import Schedule
from horsies_django.store.base import said
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.schedules import ScheduleStore
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.ipc.channel import wait_readable
from horsies_django.worker.process.backoff import Backoff
from horsies_django.worker.process.logs import shown_name
from horsies_django.worker.scheduler.scheduler import Scheduler

logger = logging.getLogger("horsies.scheduler")

DECLARED_SECONDS = 60.0  # how often to record that the schedules are still in the code
GONE_AFTER = dt.timedelta(minutes=10)  # without such a record by any scheduler, while this one was connected


class SchedulerLoop(threading.Thread):
    """Runs the scheduler's rounds until ``stop``, which any thread or signal handler may call.

    With ``gives_up`` it ends if the database is unavailable for longer than RESILIENCE allows. ``wakeup`` becomes readable when a
    signal arrives, so that on the main thread a signal that arrives just before it sleeps is not missed.
    """

    def __init__(
        self, config: Config, actor: str, *, gives_up: bool = False, wakeup: socket.socket | None = None
    ) -> None:
        super().__init__(name="horsies-scheduler", daemon=True)
        self.config = config
        self.actor = actor
        self.gives_up = gives_up
        self.alias = config.listen_database or config.database
        self.scheduler = Scheduler(dt.timedelta(milliseconds=config.unknown_task_grace_ms))
        self.backoff = Backoff(config.resilience)
        self.poll_seconds = config.resilience.notify_poll_interval_ms / 1000
        self.connection: psycopg.Connection[Any] | None = None
        self.channel = ""  # of changed schedules; a pooler may deliver other channels too
        self.names: list[str] = []  # of the schedules in the code
        self.signed_at = -math.inf  # by the monotonic clock
        self.in_touch_since = math.inf
        self.waker, self.woken = socket.socketpair()
        self.wakeup = wakeup or self.woken

    def declare(self, only: Collection[str] | None = None) -> None:
        """Write the schedules of the code to the table. Raises ScheduleError and Django's database errors."""
        self.names = sorted({one.name for one in schedules.declared()})
        rows = Schedule.objects.using(self.config.database).filter(name__in=self.names)
        try:
            known = set(rows.values_list("name", flat=True))
            for name, keys in schedules.declare(actor=self.actor, only=only).items():
                if name in known:
                    logger.info("schedule %s: %s changed in the code", name, ", ".join(keys))
                else:
                    logger.info("schedule %s was added by the code", name)
        finally:
            connections[self.config.database].close()

    def run(self) -> None:
        """Run until stopped; failures are retried. Raises DatabaseGaveUp if it ``gives_up``."""
        try:
            while not self.scheduler.stopping:
                self.sleep(self.turn())
        finally:
            self.disconnect()
            self.woken.close()
            self.waker.close()

    def turn(self) -> float:
        """Run one round; return the seconds until the next. Raises DatabaseGaveUp."""
        try:
            wait = self.tick(self.connection or self.connect())
        except (psycopg.Error, DatabaseError) as error:
            self.disconnect()
            problem = said(error)
            if self.gives_up and self.backoff.exhausted:
                raise DatabaseGaveUp(f"the database is gone and RESILIENCE allows no further try: {problem}") from error
            wait = self.backoff.failed()
            logger.warning("the database is not available, next try in %.1f s: %s", wait, problem)
        except Exception:
            self.disconnect()
            wait = self.backoff.failed()
            logger.exception("the scheduler failed, next try in %.1f s", wait)
        else:
            if self.backoff.failures:
                logger.info("the scheduler is running again")
            self.backoff.succeeded()
        return wait

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Do what is due now; return the seconds until the next round. Raises psycopg.Error."""
        now = time.monotonic()
        if now >= self.signed_at + DECLARED_SECONDS:
            self.sign(ScheduleStore(connection))
            self.signed_at = now
        return min(self.scheduler.tick(connection), self.poll_seconds)

    def sign(self, store: ScheduleStore) -> None:
        """Record that the schedules of the code are still in use, and disable those that no scheduler has any more."""
        if missed := store.declared(self.names):
            self.declare(missed)  # no record was written for so long that they were disabled
        if time.monotonic() - self.in_touch_since >= GONE_AFTER.total_seconds():
            for name in store.gone(GONE_AFTER, self.actor):
                logger.warning("schedule %s is no longer in any scheduler's code; disabling it", shown_name(name))

    def sleep(self, seconds: float) -> None:
        """Wait until the time is over, a schedule is changed, or ``stop`` is called."""
        try:
            if self.heard():
                return  # this round may have missed the change
            wait_readable({self.woken, self.wakeup} | ({self.connection} if self.connection else set()), seconds)
            self.heard()
        except psycopg.Error:
            self.disconnect()  # the next round connects again

    def heard(self) -> bool:
        """Return whether a schedule has been changed since the last call. Raises psycopg.Error."""
        arrived = [] if self.connection is None else list(self.connection.notifies(timeout=0))
        return any(one.channel == self.channel for one in arrived)

    def connect(self) -> psycopg.Connection[Any]:
        """Open the connection and listen for changes. Raises psycopg.Error."""
        connection = direct_connection(
            self.alias,
            application_name="horsies scheduler",
            prepare=True,
            statement_timeout_ms=10_000,
        )
        self.connection = connection
        self.signed_at = -math.inf  # it may have been disconnected for long
        self.in_touch_since = time.monotonic()
        self.channel = f"{channel_prefix(connection)}_schedules"
        connection.execute(f"LISTEN {self.channel}")
        return connection

    def disconnect(self) -> None:
        """Close the connection, whatever state it is in."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def stop(self) -> None:
        """End the loop after what it is sending now."""
        self.scheduler.stopping = True
        with suppress(OSError):  # the loop has ended
            self.waker.send(b".")
