"""The wait before the next try to reach the database."""

from __future__ import annotations

import random

from horsies_django.conf import Resilience


class Backoff:
    """Counts consecutive failures: waits initial x 2^n milliseconds, capped, +-25 % so that workers do not reconnect together."""

    def __init__(self, resilience: Resilience) -> None:
        self.resilience = resilience
        self.failures = 0

    @property
    def exhausted(self) -> bool:
        """Whether the settings allow no further try."""
        return 0 < self.resilience.db_retry_max_attempts <= self.failures

    def failed(self) -> float:
        """Count a failure; return the seconds to wait."""
        capped = min(self.resilience.db_retry_initial_ms * 2 ** min(self.failures, 30), self.resilience.db_retry_max_ms)
        self.failures += 1
        return float(capped) * random.uniform(0.75, 1.25) / 1000

    def succeeded(self) -> None:
        """Reset the count of failures."""
        self.failures = 0
