"""The life of a task as data: the moves that each event may make.

Each statement names the event that it performs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from horsies_django.core.status import Status

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
        "release": (
            frozenset({Status.CLAIMED, Status.RUNNING}),
            frozenset({Status.PENDING, Status.CANCELLED}),
        ),
        "refuse": (frozenset({Status.CLAIMED}), frozenset({Status.PENDING})),
        "lapse": (frozenset({Status.CLAIMED}), frozenset({Status.PENDING})),
        "rescue": (frozenset({Status.RUNNING}), frozenset({Status.FAILED, Status.PENDING})),
        "cancel": (frozenset({Status.PENDING, Status.CLAIMED}), frozenset({Status.CANCELLED})),
        "retry": (
            frozenset({Status.FAILED, Status.CANCELLED, Status.EXPIRED}),
            frozenset({Status.PENDING}),
        ),
    }
)
