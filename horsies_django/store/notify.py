"""Connections of our own beside Django's, and the LISTEN that rides on one of them.

NOTIFY only wakes: whoever listens also polls, so a lost notification costs time and never a task.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
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
    "target_session_attrs": "read-write",  # a server that lost its role at a failover takes no part: not even a try is a write
}
# What a role or a database may set otherwise, and why it matters: a pass must see what was committed before its locks; psycopg
# reads moments in the ISO style only; fewer digits round a moment up, past tasks that are due; the last three end sessions that
# wait, as ours do by design. A session through a pooler cannot be told: there the first ones are looked at.
SESSION = {
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
SET_UP_SECONDS = 5.0  # for the first statements on a new connection


def direct_connection(
    alias: str,
    *,
    application_name: str,
    prepare: bool = False,
    statement_timeout_ms: int | None = None,
    read_only: bool = False,
) -> psycopg.Connection[Any]:
    """Open an autocommit connection to ``alias``, outside Django's wrappers and pool, at READ COMMITTED.

    ``prepare`` lets psycopg prepare each statement at its first use. Behind a pooler it does not, and the session is left as
    it is: what is set there stays with the server's connection, for whoever gets that next. With ``read_only`` a server that
    takes no writes will do where there is none that does. Raises psycopg.OperationalError when no server can be reached.
    """
    wrapper = connections[alias]
    params = {**LINK, **wrapper.get_connection_params()}
    for name in ("context", "cursor_factory"):
        params.pop(name, None)
    params.update(application_name=application_name, prepare_threshold=None)
    try:
        connection = psycopg.connect(**params, autocommit=True)
    except psycopg.OperationalError:
        if not read_only:
            raise
        connection = psycopg.connect(**params | {"target_session_attrs": "any"}, autocommit=True)
    # A pooler takes connections for a server that is away, and lets their first statement wait for it.
    impatience = threading.Timer(SET_UP_SECONDS, shut_down, [connection])
    impatience.daemon = True
    impatience.start()
    try:
        if through_pooler(connection):
            _refuse_unfit_session(connection, alias)
        else:
            connection.prepare_threshold = 0 if prepare else None
            _set_up(connection)
            if statement_timeout_ms is not None:
                connection.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(statement_timeout_ms)))
        if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    except BaseException:
        connection.close()
        raise
    finally:
        impatience.cancel()
    return connection


def shut_down(connection: psycopg.Connection[Any]) -> bool:
    """End a connection under whoever waits on it, from another thread: that one gets psycopg.OperationalError.

    Returns whether there was anything to end.
    """
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return False  # it has ended meanwhile
    return True


def through_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return whether something between us and the server hands out connections: it gives its clients process ids of its own."""
    ((pid,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != connection.info.backend_pid)


def _set_up(connection: psycopg.Connection[Any]) -> None:
    """Set what this session needs, as far as the server knows it, whatever the role or the database say."""
    connection.execute(
        "SELECT set_config(s.name, %s::jsonb ->> s.name, false) FROM pg_settings s WHERE %s::jsonb ? s.name",
        [json.dumps(SESSION)] * 2,
    )


def _refuse_unfit_session(connection: psycopg.Connection[Any], alias: str) -> None:
    """Behind a pooler no session can be told otherwise. Raises psycopg.OperationalError for one that would go wrong."""
    names = ["default_transaction_isolation", "DateStyle", "extra_float_digits"]
    rows = connection.execute("SELECT current_setting(n) FROM unnest(%s::text[]) AS n", [names]).fetchall()
    isolation, style, digits = (value for (value,) in rows)
    fits = {names[0]: isolation == "read committed", names[1]: style.startswith("ISO"), names[2]: int(digits) > 0}
    for (name, fit), found in zip(fits.items(), (isolation, style, digits), strict=True):
        if not fit:
            raise psycopg.OperationalError(
                f"the database {alias!r} is reached through a connection pooler, and its {name} is {found!r}: workers need "
                f"{SESSION[name]!r}. Set it with ALTER ROLE or ALTER DATABASE, or connect without the pooler"
            )


def channel_prefix(connection: Any) -> str:
    """Return the prefix of this installation's channels; "_new" and "_done" complete it."""
    return str(run(connection, "sessions/channel")[0][0])


class Listener:
    """One LISTEN on a connection of its own, for somebody else's selector: ``fileno`` is readable when there is news.

    A connection may look well and bring nothing: behind a pooler, through a link that died, from a server process that hangs.
    So each listener also has a channel for itself: what ``self_test`` says there on another connection must arrive here.
    """

    def __init__(self, alias: str, suffix: str, *, application_name: str) -> None:
        self.alias = alias
        self.suffix = suffix
        self.application_name = application_name
        self.own = f"_{uuid.uuid4().hex[:16]}"
        self.channels: frozenset[str] = frozenset()  # what it listens on
        self.heard = False  # whether anything arrived since somebody set this to False
        self.pooled = False
        self.connection: psycopg.Connection[Any] | None = None

    def open(self) -> None:
        """Connect and LISTEN. Raises psycopg.OperationalError when the server cannot be reached."""
        connection = direct_connection(self.alias, application_name=self.application_name)
        try:
            self.pooled = through_pooler(connection)
            prefix = channel_prefix(connection)
            self.channels = frozenset({prefix + self.suffix, prefix + self.own})
            for channel in self.channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self.heard = False

    def self_test(self, connection: psycopg.Connection[Any], prefix: str) -> None:
        """Say something on ``connection`` that shall be heard here. Raises psycopg.Error."""
        connection.execute("SELECT pg_notify(%s, '')", [prefix + self.own])

    def fileno(self) -> int:
        """Return the socket to watch. Raises psycopg.OperationalError when not connected."""
        return self._connection_or_raise().fileno()

    def payloads(self) -> list[str]:
        """Return what was notified since the last call, without waiting. Raises psycopg.OperationalError when cut off.

        A pooler may lend us a server connection on which another client listened: what arrives for that one is not for us, and no
        proof that we are heard.
        """
        arrived = [one for one in self._connection_or_raise().notifies(timeout=0) if one.channel in self.channels]
        self.heard = self.heard or bool(arrived)
        return [notification.payload for notification in arrived if not notification.channel.endswith(self.own)]

    def _connection_or_raise(self) -> psycopg.Connection[Any]:
        if self.connection is None:
            raise psycopg.OperationalError("the listener is not connected")
        return self.connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
