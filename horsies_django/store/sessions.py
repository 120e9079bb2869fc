"""Statements about a PostgreSQL session as a whole."""

from __future__ import annotations

from typing import Any

import psycopg

from horsies_django.store.base import execute


def discard(connection: Any) -> None:
    """Reset a session to the state in which it was opened. Raises the driver's errors, also inside a transaction."""
    execute(connection, "sessions/discard")
    if psycopg.__version__.startswith("3.2."):
        connection._prepared.clear()  # only later versions notice that the server has dropped what they prepared
