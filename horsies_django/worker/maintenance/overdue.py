"""Advances workflows that no engine advances: after a cancel, an expiry or a rescue, or when the worker that should have died.

Engines advance the runs of the tasks that they settle. Whatever else moves a task to a final status, and waits whose time is
over, are found in the tables.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from horsies_django.store.notify import channel_prefix
from horsies_django.workflows.advancer import Advancer

INTERVAL_SECONDS = 1.0
RECENT = timedelta(minutes=1)
EVERYTHING_SECONDS = 30.0  # between looks at older tasks as well, at least
EVERYTHING_SHARE = 100  # of the time may be spent on one of those
MANY = 1_000
TURN_SECONDS = 0.3


class OverdueWorkflows:
    """``tick`` is one round."""

    def __init__(self, advancer: Advancer) -> None:
        self.advancer = advancer
        self.everything_at = 0.0  # when to look at all finished tasks that were not advanced

    def tick(self, connection: Any) -> bool:
        """Find what is owed to workflows, and advance them; return whether to continue at once. Raises psycopg.Error."""
        store = self.advancer.store(connection, channel_prefix(connection))
        now = time.monotonic()
        until = now + TURN_SECONDS
        while self.advancer.wake(store):
            if time.monotonic() > until:
                return True  # thousands wake at this moment
        everything = now >= self.everything_at
        self.advancer.find(store, None if everything else RECENT, MANY)
        if everything:
            took = time.monotonic() - now
            self.everything_at = now + max(EVERYTHING_SECONDS, EVERYTHING_SHARE * took)
        while self.advancer.next_at <= time.monotonic() < until:
            self.advancer.turn(store, TURN_SECONDS)
        return False
