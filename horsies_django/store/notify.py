"""Connections of our own beside Django's, and the LISTEN that rides on one of them.

NOTIFY only wakes: whoever listens also polls, so a lost notification costs time and never a task.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from horsies_django.store.base import run

# What DATABASES may override in OPTIONS: a link that died silently is noticed after half a minute, not after the fifteen
# minutes that TCP gives it.
LINK = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def direct_connection(alias: str, *, application_name: str, prepare: bool = False) -> psycopg.Connection[Any]:
    """Open an autocommit connection to ``alias``, outside Django's wrappers and pool, at READ COMMITTED.

    ``prepare`` lets psycopg prepare each statement at its first use (not behind a transaction pooler). Raises
    psycopg.OperationalError when the server cannot be reached.
    """
    wrapper = connections[alias]
    params = {**LINK, **wrapper.get_connection_params()}
    for name in ("context", "cursor_factory"):
        params.pop(name, None)
    params.update(application_name=application_name, prepare_threshold=0 if prepare else None)
    connection = psycopg.connect(**params, autocommit=True)
    try:
        connection.execute("SET default_transaction_isolation = 'read committed'")
        if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    except BaseException:
        connection.close()
        raise
    return connection


def channel_prefix(connection: Any) -> str:
    """Return the prefix of this installation's channels; "_new" and "_done" complete it."""
    return str(run(connection, "schema_channel")[0][0])


class Listener:
    """One LISTEN on a connection of its own, for somebody else's selector: ``fileno`` is readable when there is news."""

    def __init__(self, alias: str, suffix: str, *, application_name: str) -> None:
        self.alias = alias
        self.suffix = suffix
        self.application_name = application_name
        self.connection: psycopg.Connection[Any] | None = None

    def open(self) -> None:
        """Connect and LISTEN. Raises psycopg.OperationalError when the server cannot be reached."""
        connection = direct_connection(self.alias, application_name=self.application_name)
        try:
            channel = channel_prefix(connection) + self.suffix
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            connection.close()
            raise
        self.connection = connection

    def fileno(self) -> int:
        """Return the socket to watch. Raises psycopg.OperationalError when not connected."""
        if self.connection is None:
            raise psycopg.OperationalError("the listener is not connected")
        return self.connection.fileno()

    def payloads(self) -> list[str]:
        """Return what was notified since the last call, without waiting. Raises psycopg.OperationalError when cut off."""
        if self.connection is None:
            raise psycopg.OperationalError("the listener is not connected")
        return [notification.payload for notification in self.connection.notifies(timeout=0)]

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
