"""Statements about a PostgreSQL session as a whole."""

from __future__ import annotations

from horsies_django.store.base import Connection, execute


def discard(connection: Connection) -> None:
    """Reset a session to the state in which it was opened. Raises the driver's errors, also inside a transaction."""
    execute(connection, "sessions/discard")
