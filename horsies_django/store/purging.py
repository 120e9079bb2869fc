"""The statements that cancel waiting tasks, and delete finished ones, of a queue or a name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from horsies_django.store.base import Connection, run


class Selection(NamedTuple):
    """The tasks that a purge concerns: waiting ones sent until ``before``, or, if ``finished``, those finished until then.

    ``queue``, ``name`` and ``status`` narrow them; None: any.
    """

    before: datetime
    finished: bool = False
    queue: str | None = None
    name: str | None = None
    status: str | None = None


class Matched(NamedTuple):
    """How many tasks a purge concerns, and how many more it leaves, because they belong to workflow runs."""

    tasks: int
    in_runs: int


class PurgeStore:
    """Runs the statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def count(self, selection: Selection) -> Matched:
        """Return how many tasks a purge would cancel or delete now."""
        return Matched(*run(self.connection, "tasks/count_purgeable", selection._asdict())[0])

    def page(self, selection: Selection, many: int) -> list[uuid.UUID]:
        """Return ``many`` of the tasks, at most, in no particular order."""
        rows = run(self.connection, "tasks/purgeable", {**selection._asdict(), "many": many})
        return [id_ for (id_,) in rows]

    def cancel(self, ids: Sequence[uuid.UUID], channel: str) -> int:
        """Cancel those that still wait, and return how many."""
        return int(run(self.connection, "horsies_purge", {"ids": list(ids), "channel": channel})[0][0])

    def delete(self, ids: Sequence[uuid.UUID]) -> int:
        """Delete those that have finished, with their attempts and steps, and return how many."""
        return int(run(self.connection, "horsies_delete_finished", {"ids": list(ids)})[0][0])
