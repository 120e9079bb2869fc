"""How the pages of a site read the state of the system.

The statements have a timeout, and a value is read at most once in five seconds, regardless of the
number of requests.
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
# Lists show the newest rows. At most this many are searched if no index has the conditions.
DEEPEST_ROW = 100_000
CACHED_SECONDS = 5.0
SCRAPED_SECONDS = 1.0  # how long a text for machines is kept
MOST_WAITING_REQUESTS = 8  # the most requests that wait for such a text in a process of the site
WAITING_SECONDS = 5.0  # how long such a request waits for a text that is being made

T = TypeVar("T")


def alias() -> str:
    """Return the alias of the database that ``status_connection`` uses.

    It is the one for listening, because a pooler would not pass on the timeout.
    """
    conf = config()
    return conf.listen_database or conf.database


def status_connection(timeout_ms: int = STATEMENT_TIMEOUT_MS) -> psycopg.Connection[Any]:
    """Return a connection in autocommit mode whose statements have a timeout.

    Raises the errors of the driver.
    """
    return direct_connection(
        alias(), application_name="horsies status", read_only=True, statement_timeout_ms=timeout_ms
    )


class BusyError(Exception):
    """Too many requests wait for a value that is being made."""


class Cached(Generic[T]):
    """Values of this process by name. A value that is too old is made again.

    Requests for a value wait while it is being made. If ``most`` is given, at most that many wait,
    for some seconds, because each of them takes a thread. All others raise BusyError.
    """

    def __init__(self, most: int | None = None) -> None:
        self.lock = threading.RLock()  # one value may contain another one
        self.waiting = None if most is None else threading.BoundedSemaphore(most)
        # The values by name, each after the end of its validity by the monotonic clock
        self.kept: dict[str, tuple[float, T]] = {}

    def read(self, name: str, make: Callable[[], T], seconds: float = CACHED_SECONDS) -> T:
        """Return a value, and make it with ``make`` if it is missing or older than ``seconds``.

        Raises the errors of ``make``, and stores no value then. Raises BusyError if too many
        requests wait.
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
        """Acquire the lock. Raise BusyError if too many requests wait, or if it takes too long."""
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
