"""The notification listener: hears that tasks were sent or limits changed. While it cannot, the poll goes on without it.

A connection that broke says so. One that went silent does not: its server process hangs, the link died, a pooler lent it to
somebody else. So the listener has itself called, on the engine's connection, when nothing was heard for a while; what it does not
hear then it would not hear of a task either. Such a connection is replaced, and until a call arrives the worker counts on its
poll alone, and says so.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
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

QUIET_SECONDS = 15.0  # without any notification: then it is looked whether one would arrive
# What followed the announcement before the last may be looked for behind the last only.
BEFORE_SECONDS = 2 * AGAIN_SECONDS[-1]
ANSWER_SECONDS = 5.0  # how long that one may take


class NotificationListener:
    """Does what ``words`` has for the name in a notification, a queue's or this worker's own, each once for all that came
    together, with the earliest moment that was told (an epoch; 0 and less: the beginning of time). Of tasks that are all
    due and in one lane the word is the lane and the queue's name.

    Calls ``wake`` after each LISTEN: what was sent before it made no noise here. And a few times more after that, and after a
    notification that says that more tasks may follow without a word: they do not make any.
    """

    def __init__(
        self,
        listener: Listener,
        selector: selectors.BaseSelector,
        resilience: Resilience,
        words: Mapping[str, Callable[[float], None]],
        wake: Callable[[], None],
    ) -> None:
        self.listener = listener
        self.selector = selector
        self.backoff = Backoff(resilience)
        self.words = words
        self.poll_seconds = resilience.notify_poll_interval_ms / 1000
        self.wake = wake
        self.unreachable = False  # whether notifications do not arrive, as far as is known
        self.asked = False  # whether a call is under way
        self.again: list[float] = []  # when to do ``acts`` once more, the next moment last
        self.acts: dict[str, Callable[[], None]] = {}  # by the name that they were done for
        self.next_at = 0.0  # while listening: when to look whether it still works; else: when to try again

    @property
    def hears(self) -> bool:
        """Whether notifications arrive, as far as is known."""
        return self.listener.connection is not None and not self.unreachable

    def next_try(self, *, connected: bool) -> float:
        """When ``tick`` has something to do, by the monotonic clock; ``connected``: whether the engine is, and can call."""
        next_at = self.next_at if connected or self.listener.connection is None else math.inf
        return min(next_at, self.again[-1]) if self.again else next_at

    def tick(self, now: float, connection: psycopg.Connection[Any] | None, prefix: str) -> None:
        """Listen, or see to it that what is said on the engine's ``connection`` arrives, when it is time to."""
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
            self.asked = False  # nobody can call, and a call that was under way may have been lost
        elif self.asked:
            self.hear()  # it may be here already: the engine was busy
            if self.asked:
                self._replace()
        elif self.listener.heard:
            self._look_later()
        else:
            self._ask(connection, prefix)

    def listen(self) -> None:
        """Connect and LISTEN; a failure is logged and sets the next try."""
        try:
            self.listener.open()
        except psycopg.Error as error:
            wait = self._wait()
            logger.warning("LISTEN failed; polling, next try in %.1f s: %s", wait, str(error).strip())
            return
        self.selector.register(self.listener.fileno(), selectors.EVENT_READ, (self.hear,))
        self.asked, self.next_at = False, 0.0
        self.wake()
        self._repeat("", self.wake)

    def hear(self) -> None:
        """Take what was said."""
        descriptor = self.listener.fileno()
        try:
            payloads = self.listener.payloads()
        except psycopg.Error as error:
            logger.warning("the LISTEN connection was lost; polling until it is back: %s", str(error).strip())
            self._hang_up(descriptor)
            self.next_at = 0.0
            return
        if self.asked and self.listener.heard:
            self._answered()
        earliest: dict[str, float] = {}
        several = set()
        for told in filter(None, map(read_told, payloads)):
            since = told.since
            if told.more:
                several.add(told.word)
                since -= BEFORE_SECONDS
            earliest[told.word] = min(earliest.get(told.word, math.inf), since)
        for word in earliest.keys() & self.words.keys():
            act = partial(self.words[word], earliest[word])
            act()
            if word in several:
                self._repeat(word, act)

    def _repeat(self, word: str, act: Callable[[], None]) -> None:
        """Do ``act`` again after each of ``AGAIN_SECONDS``, counted anew by each call: ``announcing`` says why that finds all."""
        now = time.monotonic()
        self.again = [now + seconds for seconds in reversed(AGAIN_SECONDS)]
        self.acts[word] = act

    def _ask(self, connection: psycopg.Connection[Any], prefix: str) -> None:
        try:
            self.listener.self_test(connection, prefix)
        except psycopg.Error as error:
            logger.debug("the engine's connection could not be used for a call: %s", error)  # its next pass will tell
            self.next_at = time.monotonic() + ANSWER_SECONDS
        else:
            self.asked, self.next_at = True, time.monotonic() + ANSWER_SECONDS

    def _answered(self) -> None:
        if self.unreachable:
            logger.info("notifications arrive again")
        self.unreachable = False
        self.backoff.succeeded()
        self._look_later()

    def _look_later(self) -> None:
        self.asked, self.listener.heard = False, False
        self.next_at = time.monotonic() + QUIET_SECONDS

    def _replace(self) -> None:
        """Give up a connection that brings nothing; another is opened in its place."""
        self._hang_up(self.listener.fileno())
        self._wait()
        if self.unreachable:
            return  # that was said
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
                "the LISTEN connection is silent: a call to itself did not arrive within %.0f s. It is replaced; until "
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
        """End it."""
        self.listener.close()
