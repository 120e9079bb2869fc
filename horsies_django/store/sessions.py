"""What can be done to a session of PostgreSQL as a whole."""

from __future__ import annotations

from horsies_django.store.base import Connection, execute


def discard(connection: Connection) -> None:
    """Make a session what it was when it was opened. Raises the driver's errors, also in a transaction."""
    execute(connection, "sessions/discard")
