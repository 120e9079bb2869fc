"""Task ids: UUIDs of version 7, growing within a process, so that tasks of one transaction keep the order of their sends."""

from __future__ import annotations

import os
import threading
import time
import uuid

COUNTER_BITS = 42


class Clockwork:
    """Hands out UUIDs that never go back: the millisecond, a counter seeded at random in each, and 32 random bits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.millisecond = 0
        self.counter = 0

    def next(self) -> uuid.UUID:
        """Return the next id."""
        random = int.from_bytes(os.urandom(9), "big")
        with self.lock:
            now = time.time_ns() // 1_000_000
            if now > self.millisecond:
                self.millisecond = now
                self.counter = random >> 32 & (1 << COUNTER_BITS - 1) - 1  # the top bit stays free to count up into
            else:
                self.counter += 1
                if self.counter >> COUNTER_BITS:
                    self.millisecond += 1
                    self.counter = 0
            millisecond, counter = self.millisecond, self.counter
        high, low = counter >> 30, counter & (1 << 30) - 1
        return uuid.UUID(int=millisecond << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | random & 0xFFFFFFFF)


clockwork = Clockwork()
uuid7 = clockwork.next


def forked() -> None:
    """Give a forked child a lock that nobody holds."""
    clockwork.lock = threading.Lock()


os.register_at_fork(after_in_child=forked)
