"""The database's clock, and the next due time for ``testing.drain``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from horsies_django.store.base import Connection, run

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def now(connection: Connection) -> dt.datetime:
    """Return the time of the database's clock."""
    ((microseconds,),) = run(connection, "sessions/clock")
    return EPOCH + dt.timedelta(microseconds=microseconds)


def next_due(
    connection: Connection, queues: Sequence[str], after: dt.datetime, until: dt.datetime
) -> dt.datetime | None:
    """Return the earliest due time after ``after`` and up to ``until`` of a waiting task of these queues, or None."""
    params = {"queues": list(queues), "after": after, "until": until}
    ((microseconds,),) = run(connection, "tasks/next_due", params)
    return None if microseconds is None else EPOCH + dt.timedelta(microseconds=microseconds)
