"""The base of objects with a connection of their own, and the wait before they try again."""

from __future__ import annotations

import random
from typing import Any

import psycopg

from horsies_django.conf import Resilience


class Link:
    """An object that has a direct connection to the database ``alias``.

    ``connection`` is None while there is none.
    """

    alias: str
    connection: psycopg.Connection[Any] | None = None

    def connect(self) -> psycopg.Connection[Any]:
        """Open and return the connection.

        Raises psycopg.Error.
        """
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection, in any state."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Backoff:
    """The number of consecutive failures, and the wait after them.

    The wait is initial x 2^n milliseconds, up to a maximum, +-25 % so that workers do not reconnect
    together.
    """

    def __init__(self, resilience: Resilience) -> None:
        self.resilience = resilience
        self.failures = 0

    @property
    def exhausted(self) -> bool:
        """True if the settings allow no further try."""
        return 0 < self.resilience.db_retry_max_attempts <= self.failures

    def failed(self) -> float:
        """Count a failure; return how long to wait, in seconds."""
        capped = min(
            self.resilience.db_retry_initial_ms * 2 ** min(self.failures, 30),
            self.resilience.db_retry_max_ms,
        )
        self.failures += 1
        return float(capped) * random.uniform(0.75, 1.25) / 1000

    def succeeded(self) -> None:
        """Reset the count of failures."""
        self.failures = 0
