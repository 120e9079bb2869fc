"""The ear: hears that tasks were sent or limits changed. While its connection is broken, the poll goes on without it."""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections.abc import Callable, Mapping

import psycopg

from horsies_django.conf import Resilience
from horsies_django.store.notify import Listener
from horsies_django.worker.backoff import Backoff

logger = logging.getLogger("horsies.worker")


class Ear:
    """Does what ``words`` has for the name in a notification, a queue's or this worker's own, each once for all that came
    together.

    Calls ``wake`` after each LISTEN: what was sent before it made no noise here.
    """

    def __init__(
        self,
        listener: Listener,
        selector: selectors.BaseSelector,
        resilience: Resilience,
        words: Mapping[str, Callable[[], None]],
        wake: Callable[[], None],
    ) -> None:
        self.listener = listener
        self.selector = selector
        self.backoff = Backoff(resilience)
        self.words = words
        self.wake = wake
        self.listen_at = 0.0  # while not listening: when to try again

    @property
    def next_try(self) -> float:
        """When to call ``listen`` again, by the monotonic clock; never while it listens."""
        return self.listen_at if self.listener.connection is None else math.inf

    def listen(self) -> None:
        """Connect and LISTEN; a failure is logged and sets the next try."""
        try:
            self.listener.open()
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            wait = self.backoff.failed()
            self.listen_at = time.monotonic() + wait
            logger.warning("LISTEN failed, polling until it works, next try in %.1f s: %s", wait, str(error).strip())
            return
        self.backoff.succeeded()
        self.selector.register(self.listener.fileno(), selectors.EVENT_READ, (self.hear,))
        self.wake()

    def hear(self) -> None:
        """Take what was said."""
        descriptor = self.listener.fileno()
        try:
            payloads = self.listener.payloads()
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            logger.warning("the LISTEN connection broke, polling until it is back: %s", str(error).strip())
            self.selector.unregister(descriptor)
            self.listener.close()
            self.listen_at = 0.0
            return
        for act in {self.words[word] for payload in payloads if (word := payload.partition(" ")[2]) in self.words}:
            act()

    def close(self) -> None:
        """End it."""
        self.listener.close()
