"""How much a worker asks of a pass: its slots, its buffer, and two options of its command line.

The prefetch buffer of soft mode: tasks that were claimed ahead of time and wait for a free slot,
under a lease.

None of them has started. A task leaves the buffer when the database confirms its start, when it
expired or had no room, or when it belongs to another worker. When the worker stops, the rest is
released.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.worker.process.options import WorkerOptions

MOST_CHARACTERS = 64 * 2**20  # of arguments in the buffer, and those of one more pass
FIELDS = {"sync": "sync", "async": "async_"}  # lane -> its field of Wanted


@dataclass(frozen=True, slots=True)
class Capacity:
    """``prefetch`` tasks may wait in the buffer under ``lease``; 0 and None in hard mode.
    ``durable``: see ``Wanted``.

    ``max_claim_per_worker`` bounds what the worker has claimed and not started, and so what one
    pass claims; ``max_claim_batch`` what one pass claims of a queue, 0 without bound.
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
        """Return what the next pass may claim.

        ``free`` slots are left after ``starting`` of the ``prefetched`` tasks have started. They
        include ``ahead`` places for run-ahead, which count against the buffer; ``standing`` tasks
        run ahead now. Only a pass that claims or starts tasks anyway fills the buffer. ``full``:
        its arguments need much memory, so it gets no more.
        """
        looking = any(free.values()) or starting
        room = self.prefetch - ahead - (prefetched - starting) if looking and not full else 0
        total = self.max_claim_per_worker - standing - (prefetched - starting)
        room, total = max(0, room), max(0, total)

        return Wanted(
            free["sync"], free["async"], room, total, self.max_claim_batch, self.lease, self.durable
        )


def capacity(config: Config, options: WorkerOptions) -> Capacity:
    """Return what a worker may ask for: by default as many tasks as it has slots, and its buffer.

    Claims are durable with ``--processes=0``, because a worker cannot end tasks in its own process
    whose claims are lost.
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
        """Whether the arguments of the claims need so much memory that no more are prefetched."""
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
        """Remove and return those of these claims that wait."""
        return [self.pop(id_) for id_ in ids if id_ in self]
