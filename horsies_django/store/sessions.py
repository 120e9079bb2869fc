"""Statements about a session as a whole: its reset, and the database's clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from horsies_django.store.base import Connection, execute, run


def discard(connection: Any) -> None:
    """Reset a session to the state in which it was opened. Raises the driver's errors, also inside a transaction.

    The driver does not always notice that the server has dropped the statements that it prepared: psycopg 3.2 never, later
    versions not if they had prepared none when the session was last reset.
    """
    execute(connection, "sessions/discard")
    connection._prepared.clear()


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
