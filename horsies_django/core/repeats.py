"""Log lines that would repeat: each kind is said once a minute, with how often it was left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Repeats:
    """Remembers which kinds of lines were said.

    ``now`` is the time by a monotonic clock, in seconds.
    """

    # By kind: when it was said, and how often not since.
    kinds: dict[str, tuple[float, int]] = field(default_factory=dict)

    def due(self, kind: str, now: float) -> str | None:
        """Return the end of a line that has to be said, None if one of its kind was said in the
        last minute.
        """
        said_at, more = self.kinds.get(kind, (-math.inf, 0))
        if now < said_at + 60.0:
            self.kinds[kind] = said_at, more + 1
            return None

        self.kinds[kind] = now, 0
        return f" (and {more:,} more since the last such line)" if more else ""
