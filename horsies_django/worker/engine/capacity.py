"""The capacity of a worker: how many tasks a pass may claim, and the prefetch buffer of soft mode.

The capacity follows from the slots, the size of the buffer and two options of the command line.

The buffer contains tasks that were claimed ahead of time and wait for a free slot, under a lease.
None of them has started. A task leaves the buffer when the database confirms its start, when it has
expired or had no room, or when it belongs to another worker. When the worker stops, the remaining
tasks are released.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.worker.process.options import WorkerOptions

# Arguments in the buffer. The last pass before the limit may exceed it.
MOST_CHARACTERS = 64 * 2**20
WANTED_FIELDS = {"sync": "sync", "async": "async_"}  # lane -> its field of Wanted


@dataclass(frozen=True, slots=True)
class Capacity:
    """The limits of the claims of a worker.

    ``max_claim_per_worker`` limits the tasks that the worker has claimed and not started, and so
    the tasks that one pass claims. ``max_claim_batch`` limits the tasks that one pass claims from a
    queue; 0 means no limit. ``prefetch`` tasks may wait in the buffer under ``lease``; these are 0
    and None in hard mode. ``durable`` is that of ``Wanted``.
    """

    max_claim_per_worker: int
    max_claim_batch: int = 0
    prefetch: int = 0
    lease: timedelta | None = None
    durable: bool = True

    def wanted(
        self,
        free: Mapping[str, int],
        *,
        standing: int,
        ahead: int,
        prefetched: int,
        starting: int,
        full: bool = False,
    ) -> Wanted:
        """Return how many tasks the next pass may claim.

        ``free`` is the number of free slots by lane after ``starting`` of the ``prefetched`` tasks
        have started. It includes ``ahead`` places for the run-ahead, which count against the
        buffer. ``standing`` tasks are dispatched ahead now. Only a pass that claims or starts tasks
        anyway fills the buffer, and only if the buffer is not ``full``, which means that its
        arguments need much memory.
        """
        claims_or_starts = any(free.values()) or starting
        room = (
            self.prefetch - ahead - (prefetched - starting) if claims_or_starts and not full else 0
        )
        total = self.max_claim_per_worker - standing - (prefetched - starting)
        room, total = max(0, room), max(0, total)

        return Wanted(
            free["sync"], free["async"], room, total, self.max_claim_batch, self.lease, self.durable
        )


def capacity(config: Config, options: WorkerOptions) -> Capacity:
    """Return the capacity of a worker: by default its slots and the size of its buffer.

    Claims are durable with ``--processes=0``, because a worker cannot end tasks in its own process
    if the database loses their claims.
    """
    lease = (
        timedelta(milliseconds=config.claim_lease_ms)
        if config.prefetch_buffer and config.claim_lease_ms
        else None
    )
    most = (
        options.max_claim_per_worker
        or options.sync_slots + options.async_slots + config.prefetch_buffer
    )
    durable = config.durable_claims or options.processes == 0
    return Capacity(most, options.max_claim_batch, config.prefetch_buffer, lease, durable)


class Prefetched(dict[uuid.UUID, Claim]):
    """The waiting claims by id, in the order of their arrival."""

    @property
    def full(self) -> bool:
        """True if the arguments of the claims need so much memory that no more are prefetched."""
        return sum(len(claim.kwargs) for claim in self.values()) >= MOST_CHARACTERS

    def first(self, slots: dict[str, int]) -> list[Claim]:
        """Return the claims that would fill the free slots of each lane, without removing them."""
        left = dict(slots)
        found = []

        for claim in self.values():
            if left[claim.lane] > 0:
                left[claim.lane] -= 1
                found.append(claim)

        return found

    def take(self, ids: Iterable[uuid.UUID]) -> list[Claim]:
        """Remove the claims with these ids and return them, without ids that do not wait here."""
        return [self.pop(id_) for id_ in ids if id_ in self]
