"""The statements about queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from horsies_django.store.base import Connection, execute, run


class Declared(Protocol):
    """A queue as the settings declare it."""

    @property
    def name(self) -> str: ...
    @property
    def priority(self) -> int: ...


class QueueStore:
    """Runs the queue statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def declare(self, queues: Iterable[Declared]) -> None:
        """Write the declared queues over what the table holds."""
        execute(self.connection, "queue_declare", columns(queues))

    def insert_missing(self, queues: Iterable[Declared]) -> None:
        """Add the queues that are not there yet."""
        execute(self.connection, "queue_insert_missing", columns(queues))

    def priorities(self, names: Iterable[str]) -> dict[str, int]:
        """Return the priority in the table for each of ``names`` that is there."""
        return dict(run(self.connection, "queue_priorities", {"names": list(names)}))


def columns(queues: Iterable[Declared]) -> dict[str, Any]:
    """Turn queues into the arrays that the statements take."""
    queues = list(queues)
    return {"names": [queue.name for queue in queues], "priorities": [queue.priority for queue in queues]}
