"""The notification listener: receives notifications of new tasks and changed limits. Without it the worker only polls.

A broken connection raises an error. A silent one does not: its server process hangs, the network link is dead, or a pooler gave
it to another client. So after a quiet time the listener tests itself: it sends itself a notification on the engine's connection.
If that does not arrive, notifications of tasks would not either. The connection is replaced, and until a self-test succeeds the
worker relies on polling, and logs this once.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import psycopg

from horsies_django.conf import Resilience
from horsies_django.core.notifications import read_told
from horsies_django.store.notify import Listener
from horsies_django.tasks.notify_throttle import AGAIN_SECONDS
from horsies_django.worker.process.backoff import Backoff

logger = logging.getLogger("horsies.worker")

QUIET_SECONDS = 15.0  # without any notification, until a self-test
# Tasks that quietly followed the notification before the last one may be looked for only after the last one.
BEFORE_SECONDS = 2 * AGAIN_SECONDS[-1]
ANSWER_SECONDS = 5.0  # how long a self-test may take


class NotificationListener:
    """Receives notifications and calls their ``handlers``, by the name in the notification: a queue, a lane and a queue (all
    tasks are due and in that lane), or this worker's id. Each is called once for all notifications that arrived together, with
    the earliest time in them (an epoch; 0 or less means any time).

    Calls ``advance`` with each workflow run that got a signal. Calls ``wake`` after each LISTEN, because earlier notifications
    were missed. That call, and those for notifications that announce more tasks without a notification, are repeated a few times.
    """

    def __init__(
        self,
        listener: Listener,
        selector: selectors.BaseSelector,
        resilience: Resilience,
        handlers: Mapping[str, Callable[[float], None]],
        wake: Callable[[], None],
        advance: Callable[[uuid.UUID], object] = lambda run: None,
    ) -> None:
        self.listener = listener
        self.selector = selector
        self.backoff = Backoff(resilience)
        self.handlers = handlers
        self.poll_seconds = resilience.notify_poll_interval_ms / 1000
        self.wake = wake
        self.advance = advance
        self.unreachable = False  # whether the last self-test failed
        self.testing = False  # whether a self-test is in progress
        self.again: list[float] = []  # when to repeat ``acts``, the next time last
        self.acts: dict[str, Callable[[], None]] = {}  # the calls to repeat, by the name in the notification
        self.next_at = 0.0  # while listening: the next self-test; else: the next try to connect

    @property
    def healthy(self) -> bool:
        """Whether notifications arrive, according to the last self-test."""
        return self.listener.connection is not None and not self.unreachable

    def next_try(self, *, connected: bool) -> float:
        """Return when to call ``tick``, by the monotonic clock; ``connected``: whether the engine is."""
        next_at = self.next_at if connected or self.listener.connection is None else math.inf
        return min(next_at, self.again[-1]) if self.again else next_at

    def tick(self, now: float, connection: psycopg.Connection[Any] | None, prefix: str) -> None:
        """Connect, repeat calls, or test the listener through the engine's ``connection``, if it is time to."""
        if self.again and now >= self.again[-1]:
            self.again = [moment for moment in self.again if moment > now]
            for act in self.acts.values():
                act()
            if not self.again:
                self.acts.clear()
        if now < self.next_at:
            return
        if self.listener.connection is None:
            self.listen()
        elif connection is None:
            self.testing = False  # no self-test is possible, and one in progress may have been lost
        elif self.testing:
            self.receive()  # it may have arrived already: the engine was busy
            if self.testing:
                self._replace()
        elif self.listener.received:
            self._look_later()
        else:
            self._ask(connection, prefix)

    def listen(self) -> None:
        """Connect and LISTEN; a failure is logged, and ``tick`` tries again later."""
        try:
            self.listener.open()
        except psycopg.Error as error:
            wait = self._wait()
            logger.warning("LISTEN failed; polling, next try in %.1f s: %s", wait, str(error).strip())
            return
        self.selector.register(self.listener.fileno(), selectors.EVENT_READ, (self.receive,))
        self.testing, self.next_at = False, 0.0
        self.wake()
        self._repeat("", self.wake)

    def receive(self) -> None:
        """Read the notifications that arrived, and call their handlers."""
        descriptor = self.listener.fileno()
        try:
            payloads = self.listener.payloads()
        except psycopg.Error as error:
            logger.warning("the LISTEN connection was lost; polling until it is back: %s", str(error).strip())
            self._hang_up(descriptor)
            self.next_at = 0.0
            return
        if self.testing and self.listener.received:
            self._answered()
        earliest: dict[str, float] = {}
        several = set()
        for told in filter(None, map(read_told, payloads)):
            if told.run is not None:
                self.advance(told.run)
                continue
            since = told.since
            if told.more:
                several.add(told.word)
                since -= BEFORE_SECONDS
            earliest[told.word] = min(earliest.get(told.word, math.inf), since)
        for word in earliest.keys() & self.handlers.keys():
            act = partial(self.handlers[word], earliest[word])
            act()
            if word in several:
                self._repeat(word, act)

    def _repeat(self, word: str, act: Callable[[], None]) -> None:
        """Repeat ``act`` after each of ``AGAIN_SECONDS`` from now; ``notify_throttle`` explains why that finds all tasks."""
        now = time.monotonic()
        self.again = [now + seconds for seconds in reversed(AGAIN_SECONDS)]
        self.acts[word] = act

    def _ask(self, connection: psycopg.Connection[Any], prefix: str) -> None:
        try:
            self.listener.self_test(connection, prefix)
        except psycopg.Error as error:
            logger.debug("the engine's connection could not be used for a self-test: %s", error)  # its next pass fails
            self.next_at = time.monotonic() + ANSWER_SECONDS
        else:
            self.testing, self.next_at = True, time.monotonic() + ANSWER_SECONDS

    def _answered(self) -> None:
        if self.unreachable:
            logger.info("notifications arrive again")
        self.unreachable = False
        self.backoff.succeeded()
        self._look_later()

    def _look_later(self) -> None:
        self.testing, self.listener.received = False, False
        self.next_at = time.monotonic() + QUIET_SECONDS

    def _replace(self) -> None:
        """Close a connection on which nothing arrives; another one is opened."""
        self._hang_up(self.listener.fileno())
        self._wait()
        if self.unreachable:
            return  # it was logged
        self.unreachable = True
        if self.listener.pooled:
            logger.warning(
                "notifications do not arrive: the database %r is reached through a connection pooler that does not pass them on "
                "(PgBouncer in transaction mode, say). Tasks are found by polling only, every %.0f s. Name an alias that "
                "connects to PostgreSQL directly in HORSIES['LISTEN_DATABASE']",
                self.listener.alias, self.poll_seconds,
            )  # fmt: skip
        else:
            logger.warning(
                "the LISTEN connection is silent: a self-test did not arrive within %.0f s. The connection is replaced; until "
                "notifications arrive again, tasks are found by polling only, every %.0f s",
                ANSWER_SECONDS, self.poll_seconds,
            )  # fmt: skip

    def _wait(self) -> float:
        wait = self.backoff.failed()
        self.next_at = time.monotonic() + wait
        return wait

    def _hang_up(self, descriptor: int) -> None:
        self.selector.unregister(descriptor)
        self.listener.close()

    def close(self) -> None:
        """Close the connection."""
        self.listener.close()
