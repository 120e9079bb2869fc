"""Task ids: UUIDs of version 7 that increase within a process.

Because they increase, the tasks of one transaction keep their order. Ids also increase after the
clock is set back by up to a minute. After a larger step, new ids follow the clock again. Otherwise
the ids would be in the future for the rest of the life of the process.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid

COUNTER_BITS = 42
# If the clock is so far behind the last id, the clock was wrong before, or a test has moved it.
SET_BACK_MS = 60_000


class Clockwork:
    """A generator of increasing UUIDs.

    A UUID consists of the millisecond, a counter that begins at a random number in each
    millisecond, and 32 random bits.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # The millisecond and the counter are one number, so a full counter continues in the next
        # millisecond.
        self.last = 0

    def next(self) -> uuid.UUID:
        return self.take(1)[0]

    def take(self, count: int) -> list[uuid.UUID]:
        random = os.urandom(6 + 4 * count)
        # The top bit of the counter begins as 0, so that there is room for counting.
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
    """Return the UUID of a number and 32 random bits (``tail``).

    ``number`` consists of the millisecond and the counter.
    """
    high = number >> 30  # the 12 bits of the counter before the variant
    low = number & (1 << 30) - 1
    return uuid.UUID(
        int=high >> 12 << 80 | 7 << 76 | (high & 0xFFF) << 64 | 2 << 62 | low << 32 | tail
    )


clockwork = Clockwork()
uuid7 = clockwork.next
uuid7s = clockwork.take


def replace_lock() -> None:
    """Replace the lock in a forked child, because a thread of the parent may have held it."""
    clockwork.lock = threading.Lock()


os.register_at_fork(after_in_child=replace_lock)
