"""How queues stand now: limits, what runs and waits, who holds the slots. For pages and commands: it reads, and locks nothing."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connections

from horsies_django.conf import config
from horsies_django.store.overviews import OverviewStore, PartitionLoad, QueueOverview, SlotHolder

__all__ = ["PartitionLoad", "QueueOverview", "SlotHolder", "partitions", "queues", "slots"]


def queues(names: Iterable[str] | None = None) -> list[QueueOverview]:
    """Return how queues stand: those of ``names`` that exist, or all (S4.23).

    The whole cluster, named ``*``, comes first; without ``names`` only if it has a cap or an override. Then by priority and name.
    """
    return _store().queues(names, claimed=_claims_hold_permits())


def slots(queue: str, limit: int = 100) -> list[SlotHolder]:
    """Return the tasks that hold a queue's permits now, the longest-held first; those of the whole cluster for ``*``."""
    return _store().slots(queue, limit)


def partitions(queue: str, limit: int = 20) -> list[PartitionLoad]:
    """Return the partitions of a queue that hold permits, the busiest first."""
    return _store().partitions(queue, limit, claimed=_claims_hold_permits())


def _store() -> OverviewStore:
    return OverviewStore(connections[config().database])


def _claims_hold_permits() -> bool:
    """Return whether caps count claims: not in soft mode, where what waits in a buffer is looked at again before it starts."""
    return not config().prefetch_buffer
