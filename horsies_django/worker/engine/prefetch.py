"""The prefetch buffer of soft mode: tasks that were claimed ahead of time and wait for a free slot, under a lease.

None of them has started. A task leaves the buffer when the database confirms its start, when it expired or had no room, or when
it belongs to another worker. When the worker stops, the rest is released.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from horsies_django.core.records import Claim


class Prefetched:
    """The waiting claims, in the order of their arrival."""

    def __init__(self) -> None:
        self.claims: dict[uuid.UUID, Claim] = {}

    def __len__(self) -> int:
        return len(self.claims)

    def add(self, claims: Iterable[Claim]) -> None:
        self.claims.update((claim.id, claim) for claim in claims)

    def first(self, slots: dict[str, int]) -> list[Claim]:
        """Return the claims that would fill the free slots of each lane, without removing them."""
        left = dict(slots)
        found = []
        for claim in self.claims.values():
            if left[claim.lane] > 0:
                left[claim.lane] -= 1
                found.append(claim)
        return found

    def take(self, ids: Iterable[uuid.UUID]) -> list[Claim]:
        return [self.claims.pop(id_) for id_ in ids if id_ in self.claims]

    def snapshot(self) -> tuple[Claim, ...]:
        return tuple(self.claims.values())

    def clear(self) -> list[Claim]:
        claims, self.claims = list(self.claims.values()), {}
        return claims
