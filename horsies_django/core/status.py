"""The life of a task as data: its statuses, and which event moves it from where to where.

The store's statements are the only writers of ``status``; each of them names the event it performs, and a test compares
the statement's guard with this table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Status(enum.StrEnum):
    """Where a task stands. The last four are final: such a task never changes again."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


TERMINAL: frozenset[Status] = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})

# event -> (statuses it may start from, statuses it may lead to)
TRANSITIONS: Mapping[str, tuple[frozenset[Status], frozenset[Status]]] = MappingProxyType(
    {
        "claim": (frozenset({Status.PENDING}), frozenset({Status.RUNNING, Status.CLAIMED})),
        "start": (frozenset({Status.CLAIMED}), frozenset({Status.RUNNING})),
        "expire": (frozenset({Status.PENDING, Status.CLAIMED}), frozenset({Status.EXPIRED})),
        "settle": (
            frozenset({Status.RUNNING}),
            frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.PENDING}),
        ),
        "release": (frozenset({Status.CLAIMED, Status.RUNNING}), frozenset({Status.PENDING, Status.CANCELLED})),
        "refuse": (frozenset({Status.CLAIMED}), frozenset({Status.PENDING})),
        "lapse": (frozenset({Status.CLAIMED}), frozenset({Status.PENDING})),
        "rescue": (frozenset({Status.RUNNING}), frozenset({Status.FAILED, Status.PENDING})),
        "cancel": (frozenset({Status.PENDING, Status.CLAIMED}), frozenset({Status.CANCELLED})),
    }
)
