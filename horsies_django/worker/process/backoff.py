"""How long to wait before the database is tried again."""

from __future__ import annotations

import random

from horsies_django.conf import Resilience


class Backoff:
    """Counts failures in a row: initial x 2^n milliseconds, capped, +-25 % so that workers do not return together."""

    def __init__(self, resilience: Resilience) -> None:
        self.resilience = resilience
        self.failures = 0

    @property
    def exhausted(self) -> bool:
        """Whether the settings allow no further try."""
        return 0 < self.resilience.db_retry_max_attempts <= self.failures

    def failed(self) -> float:
        """Note a failure and return the seconds to wait."""
        capped = min(self.resilience.db_retry_initial_ms * 2 ** min(self.failures, 30), self.resilience.db_retry_max_ms)
        self.failures += 1
        return float(capped) * random.uniform(0.75, 1.25) / 1000

    def succeeded(self) -> None:
        """Start from the beginning at the next failure."""
        self.failures = 0
