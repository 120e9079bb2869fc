"""The notification listener, which receives notifications of new tasks and changed limits.

Without it the worker only polls. A broken connection raises an error. A silent connection does not:
its server process hangs, the network link is dead, or a pooler gave it to another client. So after
a quiet time the listener tests itself: it sends itself a notification on the engine's connection.
If that does not arrive, notifications of tasks would not arrive either. Then the connection is
replaced, and the worker relies on polling until a self-test succeeds. It logs this once.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.notifications import Stalled, read_notification
from horsies_django.store.base import error_text
from horsies_django.store.notify import Listener
from horsies_django.worker.process.backoff import Backoff

logger = logging.getLogger("horsies.worker")

SELF_TEST_SECONDS = 15.0  # without any notification, until a self-test
LONGEST_SELF_TEST_SECONDS = 5.0  # the longest time of a self-test


@dataclass(eq=False)
class NotificationListener:
    """The receiver of notifications, which calls a handler for each of them.

    ``handlers`` are found by the word in the notification (see ``core.notifications.Notification``)
    and called with the time in it, which is an epoch in seconds; 0 or less means any time.
    ``advance`` is called with each workflow run that got a signal, and ``stalled`` with each
    stalled partition. ``wake`` is called after each LISTEN, because earlier
    notifications were missed.
    """

    listener: Listener
    selector: selectors.BaseSelector
    resilience: Resilience
    handlers: Mapping[str, Callable[[float], None]]
    wake: Callable[[], None]
    advance: Callable[[uuid.UUID], object] = lambda run: None
    stalled: Callable[[Stalled], object] = lambda partition: None

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.resilience)
        self.poll_seconds = self.resilience.notify_poll_interval_ms / 1000
        self.unreachable = False  # whether the last self-test failed
        self.testing = False  # whether a self-test is in progress
        # the next self-test, or the next try to connect if there is no connection
        self.next_at = 0.0

    @property
    def healthy(self) -> bool:
        """True if notifications to this worker arrive, according to the last self-test."""
        return self.listener.connection is not None and not self.unreachable

    @property
    def receives_all(self) -> bool:
        """True if notifications to all workers arrive, too."""
        return self.healthy and self.listener.listens

    def next_try(self, *, connected: bool) -> float:
        """Return when to call ``tick``, by the monotonic clock.

        ``connected`` is True if the engine has a connection, which a self-test needs.
        """
        return self.next_at if connected or self.listener.connection is None else math.inf

    def tick(self, now: float, connection: psycopg.Connection[Any] | None, prefix: str) -> None:
        """Connect, or test the listener through the engine's ``connection``, if it is time to."""
        if now < self.next_at:
            return

        if self.listener.connection is None:
            self.listen()
        elif connection is None:
            # no self-test is possible, and a self-test in progress may have been lost
            self.testing = False
        elif self.testing:
            # the notification may have arrived while the engine was busy
            self.receive()
            if self.testing:
                self._replace()
        elif self.listener.received:
            self._schedule_self_test()
        else:
            self._self_test(connection, prefix)

    def listen(self) -> None:
        """Connect and LISTEN; log a failure, so that ``tick`` tries again later."""
        try:
            self.listener.open()
        except psycopg.Error as error:
            wait = self._wait()
            logger.warning(
                "LISTEN failed; polling, next try in %.1f s: %s", wait, error_text(error)
            )
            return

        self.selector.register(self.listener.fileno(), selectors.EVENT_READ, (self.receive,))
        self.testing = False
        self.next_at = 0.0
        self.wake()

    def listen_to_all(self, wanted: bool) -> None:
        """Receive the notifications to all workers if ``wanted``, else those to this worker only.

        A failure is logged, and ``tick`` connects again.
        """
        if wanted == self.listener.listens:
            return
        if self.listener.connection is None:
            self.listener.listens = wanted  # from the next LISTEN on
            return

        descriptor = self.listener.fileno()
        try:
            self.listener.listen(wanted)
        except psycopg.Error as error:
            self._lost(descriptor, error)
            return

        if wanted:
            self.wake()

    def receive(self) -> None:
        """Read the notifications that arrived, and call their handlers."""
        descriptor = self.listener.fileno()
        try:
            payloads = self.listener.payloads()
        except psycopg.Error as error:
            self._lost(descriptor, error)
            return

        if self.testing and self.listener.received:
            if self.unreachable:
                logger.info("notifications arrive again")
            self.unreachable = False
            self.backoff.succeeded()
            self._schedule_self_test()

        for notification in filter(None, map(read_notification, payloads)):
            if notification.run is not None:
                self.advance(notification.run)
            elif notification.stalled is not None:
                self.stalled(notification.stalled)
            elif handler := self.handlers.get(notification.word):
                handler(notification.since)

    def _lost(self, descriptor: int, error: psycopg.Error) -> None:
        logger.warning(
            "the LISTEN connection was lost; polling until it is back: %s", error_text(error)
        )
        self._hang_up(descriptor)
        self.next_at = 0.0

    def _self_test(self, connection: psycopg.Connection[Any], prefix: str) -> None:
        try:
            self.listener.self_test(connection, prefix)
            self.testing = True
        except psycopg.Error as error:  # the next pass fails, too, and the engine reconnects
            logger.debug(
                "the engine's connection could not be used for a self-test: %s", error_text(error)
            )
        self.next_at = time.monotonic() + LONGEST_SELF_TEST_SECONDS

    def _schedule_self_test(self) -> None:
        self.testing = False
        self.listener.received = False
        self.next_at = time.monotonic() + SELF_TEST_SECONDS

    def _replace(self) -> None:
        """Close a connection on which nothing arrives, so that ``tick`` opens another one."""
        self._hang_up(self.listener.fileno())
        self._wait()

        if self.unreachable:
            return  # already logged
        self.unreachable = True

        if self.listener.pooled:
            logger.warning(
                "notifications do not arrive: the database %r is reached through a connection "
                "pooler that does not pass them on (such as PgBouncer in transaction mode). Tasks "
                "are found by polling only, every %.0f s. Name an alias that connects to "
                "PostgreSQL directly in HORSIES['LISTEN_DATABASE']",
                self.listener.alias,
                self.poll_seconds,
            )
        else:
            logger.warning(
                "the LISTEN connection is silent: the notification of a self-test did not arrive "
                "within %.0f s. The connection is replaced. Tasks are found by polling only, every "
                "%.0f s, until notifications arrive again",
                LONGEST_SELF_TEST_SECONDS,
                self.poll_seconds,
            )

    def _wait(self) -> float:
        wait = self.backoff.failed()
        self.next_at = time.monotonic() + wait
        return wait

    def _hang_up(self, descriptor: int) -> None:
        self.selector.unregister(descriptor)
        self.listener.close()

    def close(self) -> None:
        self.listener.close()
