"""Statements about a PostgreSQL session as a whole."""

from __future__ import annotations

from typing import Any

from horsies_django.store.base import execute


def discard(connection: Any) -> None:
    """Reset a session to the state in which it was opened. Raises the driver's errors, also inside a transaction.

    The driver does not always notice that the server has dropped the statements that it prepared: psycopg 3.2 never, later
    versions not if they had prepared none when the session was last reset.
    """
    execute(connection, "sessions/discard")
    connection._prepared.clear()
