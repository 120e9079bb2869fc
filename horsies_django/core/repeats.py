"""Log lines that would repeat.

Each kind of line is logged once a minute, with the number of lines that were left out before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Repeats:
    """The kinds of lines that were logged."""

    # By kind: the time of the last line, and the number of lines that were left out since.
    kinds: dict[str, tuple[float, int]] = field(default_factory=dict)

    def due(self, kind: str, now: float) -> str | None:
        """Return the end of a line that has to be logged.

        Return None if a line of its kind was logged in the last minute. ``now`` is the time of a
        monotonic clock, in seconds.
        """
        logged_at, more = self.kinds.get(kind, (-math.inf, 0))
        if now < logged_at + 60.0:
            self.kinds[kind] = logged_at, more + 1
            return None

        self.kinds[kind] = now, 0
        return f" (and {more:,} more since the last such line)" if more else ""
