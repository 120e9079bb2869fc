"""The scheduler loop: it that sleeps until the next slot, and wakes when a schedule is changed.

It runs in ``horsies_scheduler``, and on a thread of its own in a worker that was started ``--with-scheduler``. It sees to it too
that the schedules in its code are in the table, and that those in nobody's code any more do not fire. What its code says is
written when it starts, and not again: of two releases that run side by side during a deploy, the one that started last is right.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import selectors
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
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.schedules import ScheduleStore
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.process.backoff import Backoff
from horsies_django.worker.scheduler.scheduler import Scheduler

logger = logging.getLogger("horsies.scheduler")

DECLARED_SECONDS = 60.0  # between two signs that the schedules in the code are still there
GONE_AFTER = dt.timedelta(minutes=10)  # without a sign from any scheduler, while this one was there to see it
LONGEST_STATEMENT_MS = 10_000


class SchedulerLoop(threading.Thread):
    """Ticks the scheduler until ``stop``, which any thread or signal handler may call.

    With ``gives_up`` it ends when the database stays away for longer than RESILIENCE allows. ``wakeup`` becomes readable with a
    signal: where it runs on the main thread, one that comes in the moment before it sleeps must not be slept through.
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
        self.channel = ""  # on which changes of schedules are told; a pooler may bring what others listen for
        self.names: list[str] = []  # of the schedules in the code
        self.signed_at = -math.inf  # by the monotonic clock
        self.in_touch_since = math.inf
        self.waker, self.woken = socket.socketpair()
        self.wakeup = wakeup or self.woken

    def declare(self, only: Collection[str] | None = None) -> None:
        """Write the schedules in the code into the table. Raises ScheduleError, and Django's errors of the database."""
        self.names = sorted({one.name for one in schedules.declared()})
        rows = Schedule.objects.using(self.config.database).filter(name__in=self.names)
        try:
            known = set(rows.values_list("name", flat=True))
            for name, keys in schedules.declare(actor=self.actor, only=only).items():
                if name in known:
                    logger.info("schedule %s: the code changed its %s", name, ", ".join(keys))
                else:
                    logger.info("schedule %s is new in the code", name)
        finally:
            connections[self.config.database].close()

    def run(self) -> None:
        """Tick until stopped; whatever fails is tried again. Raises DatabaseGaveUp if it ``gives_up``."""
        try:
            while not self.scheduler.stopping:
                self.sleep(self.turn())
        finally:
            self.disconnect()
            self.woken.close()
            self.waker.close()

    def turn(self) -> float:
        """Tick once, and return after how many seconds to come again. Raises DatabaseGaveUp."""
        try:
            wait = self.tick(self.connection or self.connect())
        except (psycopg.Error, DatabaseError) as error:
            self.disconnect()
            problem = str(error).strip()
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
                logger.info("the scheduler goes on")
            self.backoff.succeeded()
        return wait

    def tick(self, connection: psycopg.Connection[Any]) -> float:
        """Do what is to be done now, and return after how many seconds to come again. Raises psycopg.Error."""
        now = time.monotonic()
        if now >= self.signed_at + DECLARED_SECONDS:
            self.sign(ScheduleStore(connection))
            self.signed_at = now
        return min(self.scheduler.tick(connection), self.poll_seconds)

    def sign(self, store: ScheduleStore) -> None:
        """Give a sign that the schedules in the code are there, and switch off those that are in nobody's."""
        if missed := store.declared(self.names):
            self.declare(missed)  # no sign came through for so long that they were taken for gone
        if time.monotonic() - self.in_touch_since >= GONE_AFTER.total_seconds():
            for name in store.gone(GONE_AFTER, self.actor):
                logger.warning("schedule %s is in no scheduler's code any more: it is switched off", name)

    def sleep(self, seconds: float) -> None:
        """Wait until the time is over, a schedule is changed, or ``stop``."""
        try:
            if self.heard():
                return  # of a change that this tick may have missed
            with selectors.DefaultSelector() as selector:
                for wakeups in {self.woken, self.wakeup}:
                    selector.register(wakeups, selectors.EVENT_READ)
                if self.connection is not None:
                    selector.register(self.connection.fileno(), selectors.EVENT_READ)
                selector.select(seconds)
            self.heard()
        except psycopg.Error:
            self.disconnect()  # the next tick connects anew

    def heard(self) -> bool:
        """Return whether a schedule was changed since the last call. Raises psycopg.Error."""
        arrived = [] if self.connection is None else list(self.connection.notifies(timeout=0))
        return any(one.channel == self.channel for one in arrived)

    def connect(self) -> psycopg.Connection[Any]:
        """Open the connection, which listens. Raises psycopg.Error."""
        connection = direct_connection(
            self.alias,
            application_name="horsies scheduler",
            prepare=True,
            statement_timeout_ms=LONGEST_STATEMENT_MS,
        )
        self.connection = connection
        self.signed_at = -math.inf  # it may have been away for long
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
        """Let the loop end once it has sent what it is about to send."""
        self.scheduler.stopping = True
        with suppress(OSError):  # it has ended
            self.waker.send(b".")
