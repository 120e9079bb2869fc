"""Task ids: UUIDs of version 7 that increase within a process, so that tasks of one transaction
keep their order.

They also do after a clock was set back, unless by more than a minute: then they would stay in the
future while the process lives.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid

COUNTER_BITS = 42
# A clock that is so far behind the last id was wrong before, or was moved by a test.
SET_BACK_MS = 60_000


class Clockwork:
    """Generates increasing UUIDs: the millisecond, a counter with a random start in each, and 32
    random bits.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Millisecond and counter as one number. A full counter continues in the next millisecond.
        self.last = 0

    def next(self) -> uuid.UUID:
        return self.take(1)[0]

    def take(self, count: int) -> list[uuid.UUID]:
        random = os.urandom(6 + 4 * count)
        # The top bit is left free for counting.
        seed = int.from_bytes(random[:6], "big") & (1 << COUNTER_BITS - 1) - 1

        with self.lock:
            now = time.time_ns() // 1_000_000
            ahead = (self.last >> COUNTER_BITS) - now
            first = self.last + 1 if 0 <= ahead < SET_BACK_MS else now << COUNTER_BITS | seed
            self.last = first + count - 1

        return [
            uuid_of(first + place, tail)
            for place, (tail,) in enumerate(struct.iter_unpack("=I", random[6:]))
        ]


def uuid_of(number: int, tail: int) -> uuid.UUID:
    """Return the UUID with millisecond and counter in ``number`` and 32 random bits in ``tail``."""
    high = number >> 30  # the 12 bits of the counter before the variant
    low = number & (1 << 30) - 1
    return uuid.UUID(
        int=high >> 12 << 80 | 7 << 76 | (high & 0xFFF) << 64 | 2 << 62 | low << 32 | tail
    )


clockwork = Clockwork()
uuid7 = clockwork.next
uuid7s = clockwork.take


def forked() -> None:
    """Give a forked child a new lock."""
    clockwork.lock = threading.Lock()


os.register_at_fork(after_in_child=forked)
