"""The comparison of the database's clock with the monotonic clock of this machine.

The database's clock may jump: an administrator or NTP sets it, a virtual machine is resumed, or a
replica on another machine takes over. The monotonic clock is never set, but may stop while this
machine is suspended. Either way heartbeats seem to be older or younger than they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClockComparison:
    """The comparison of two readings, with a ``tolerance`` in seconds."""

    tolerance: float
    last: tuple[float, float, float] | None = None

    def jump(self, moment: float, sent: float, received: float) -> float:
        """Return by how many seconds the database's clock has jumped since the last reading.

        Return 0.0 if it has not jumped. ``moment`` is the reading in seconds. It was taken between
        ``sent`` and ``received``, by the monotonic clock. A slow reply is not a jump.
        """
        last = self.last
        self.last = (moment, sent, received)
        if last is None:
            return 0.0

        passed = moment - last[0]
        least = sent - last[2]
        most = received - last[1]
        if passed > most + self.tolerance:
            return passed - most
        if passed < least - self.tolerance:
            return passed - least
        return 0.0

    def forget(self) -> None:
        """Discard the last reading, because the next one may be from another server."""
        self.last = None
