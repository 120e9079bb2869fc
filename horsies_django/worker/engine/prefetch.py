"""Prefetched tasks of soft mode: they were claimed ahead and wait here for a free slot, under a lease.

Nothing in it has started. A task leaves it when the database confirms its start, when it expired or had no room, or when it
turns out that it is not this worker's any more; what is left when the worker stops is given back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from horsies_django.core.records import Claim


class Prefetched:
    """Claims that wait, in the order in which they came."""

    def __init__(self) -> None:
        self.claims: dict[uuid.UUID, Claim] = {}

    def __len__(self) -> int:
        return len(self.claims)

    def add(self, claims: Iterable[Claim]) -> None:
        """Put claims behind the others."""
        self.claims.update((claim.id, claim) for claim in claims)

    def first(self, slots: dict[str, int]) -> list[Claim]:
        """Return the claims that would fill the free slots of each lane; they stay until ``take``."""
        left = dict(slots)
        found = []
        for claim in self.claims.values():
            if left[claim.lane] > 0:
                left[claim.lane] -= 1
                found.append(claim)
        return found

    def take(self, ids: Iterable[uuid.UUID]) -> list[Claim]:
        """Remove claims and return them, in the order of ``ids``."""
        return [self.claims.pop(id_) for id_ in ids if id_ in self.claims]

    def snapshot(self) -> tuple[Claim, ...]:
        """Return all claims as they are now."""
        return tuple(self.claims.values())

    def clear(self) -> list[Claim]:
        """Empty the buffer and return what was in it."""
        claims, self.claims = list(self.claims.values()), {}
        return claims
