"""How the pages of a site read the state of the system: with bounded statements, and once in five
seconds however many ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg

from horsies_django.conf import config
from horsies_django.store.notify import direct_connection

STATEMENT_TIMEOUT_MS = 3_000
# lists show the newest rows, and no more than these are searched for what an index does not have
DEEPEST = 100_000
CACHED_SECONDS = 5.0
SCRAPED_SECONDS = 1.0  # that a text for machines is kept
MOST_WAITING = 8  # requests for such a text, in a process of the site
WAITING_SECONDS = 5.0  # for one that is being made, where only so many may wait

T = TypeVar("T")


def alias() -> str:
    """Return the database that ``connected`` uses: a pooler would not pass on the timeout."""
    conf = config()
    return conf.listen_database or conf.database


def connected(timeout_ms: int = STATEMENT_TIMEOUT_MS) -> psycopg.Connection[Any]:
    """Return a connection in autocommit mode whose statements are bounded.

    Raises the errors of the driver.
    """
    return direct_connection(
        alias(), application_name="horsies status", read_only=True, statement_timeout_ms=timeout_ms
    )


class BusyError(Exception):
    """Too many wait for a value that is being made."""


class Cached(Generic[T]):
    """Values of this process by name, each made anew when it is too old.

    Those who ask meanwhile wait for it: with ``most`` only so many, for some seconds, since each of
    them takes a thread; all others are refused.
    """

    def __init__(self, most: int | None = None) -> None:
        self.lock = threading.RLock()  # one value may contain another one
        self.waiting = None if most is None else threading.BoundedSemaphore(most)
        self.kept: dict[str, tuple[float, T]] = {}  # until when, by the monotonic clock

    def read(self, name: str, make: Callable[[], T], seconds: float = CACHED_SECONDS) -> T:
        """Return the value, from ``make`` if it is so old.

        Raises what that raises, and keeps nothing then; BusyError.
        """
        self._lock()
        try:
            kept = self.kept.get(name)
            if kept is None or time.monotonic() >= kept[0]:
                value = make()
                kept = self.kept[name] = time.monotonic() + seconds, value
            return kept[1]
        finally:
            self.lock.release()

    def _lock(self) -> None:
        """Acquire the lock. Raises BusyError if as many as may wait do so, or it takes too long."""
        if self.lock.acquire(blocking=self.waiting is None):
            return
        if self.waiting is None or not self.waiting.acquire(blocking=False):
            raise BusyError

        try:
            acquired = self.lock.acquire(timeout=WAITING_SECONDS)
        finally:
            self.waiting.release()

        if not acquired:
            raise BusyError
