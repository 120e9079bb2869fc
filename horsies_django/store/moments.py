"""Moments by the database's clock, for tests that move from one to the next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from horsies_django.store.base import Connection, run

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def now(connection: Connection) -> dt.datetime:
    """Return what time it is."""
    ((microseconds,),) = run(connection, "sessions/clock")
    return EPOCH + dt.timedelta(microseconds=microseconds)


def next_due(
    connection: Connection, queues: Sequence[str], after: dt.datetime, until: dt.datetime
) -> dt.datetime | None:
    """Return when the next task of these queues becomes due between two moments, None if none does."""
    params = {"queues": list(queues), "after": after, "until": until}
    ((microseconds,),) = run(connection, "tasks/next_due", params)
    return None if microseconds is None else EPOCH + dt.timedelta(microseconds=microseconds)
