"""Direct connections to PostgreSQL, besides Django's, and LISTEN on such a connection.

NOTIFY only wakes processes, which also poll. So a lost notification costs time but never a task.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from typing import Any

import psycopg
from psycopg import sql

from horsies_django.store.base import run_statement
from horsies_django.store.opening import ending_after, open_connection, wrapper_of

# Defaults that OPTIONS in DATABASES may override. A dead network link is noticed after half a
# minute, not after TCP's fifteen.
LINK = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "target_session_attrs": "read-write",  # never a server that lost its role at a failover
}
# Required settings, which a role or a database may set differently. A pass must read everything
# that was committed before it got its locks. psycopg parses timestamps in ISO style only. With
# fewer digits, times would be rounded up, past due tasks. The last three would end sessions that
# wait, as our sessions do by design. Sessions through a pooler cannot be set up, so there the first
# settings are only checked.
SESSION_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
SET_UP_SECONDS = 5.0  # the longest time of the first statements on a new connection


def direct_connection(
    alias: str,
    *,
    application_name: str,
    prepare: bool = False,
    statement_timeout_ms: int | None = None,
    read_only: bool = False,
) -> psycopg.Connection[Any]:
    """Open and return an autocommit connection to ``alias``, at READ COMMITTED.

    It is opened as the project opens its own, but it does not belong to the project's wrappers and
    pool. With ``prepare``, psycopg prepares each statement at its first use. Behind a pooler
    statements are not prepared and the session is not set up, because settings would stay with the
    server connection, which other clients get next. With ``read_only``, a read-only server is used
    if there is no other. Raises psycopg.OperationalError if no server can be reached, and
    psycopg.ProgrammingError if a receiver of ``connection_created`` raised.
    """
    options = {"application_name": application_name, "prepare_threshold": None}
    try:
        return _opened(alias, options, prepare, statement_timeout_ms)
    except psycopg.OperationalError:
        if not read_only:
            raise
        return _opened(
            alias, options | {"target_session_attrs": "any"}, prepare, statement_timeout_ms
        )


def _opened(
    alias: str, options: dict[str, Any], prepare: bool, statement_timeout_ms: int | None
) -> psycopg.Connection[Any]:
    wrapper = wrapper_of(alias, LINK, options)

    # A pooler accepts connections while its server is away; then the first statement waits for it.
    with ending_after(SET_UP_SECONDS, wrapper, shut_down):
        try:
            connection = open_connection(wrapper)
            if through_pooler(connection):
                _refuse_unfit_session(connection, alias)
            else:
                connection.prepare_threshold = 0 if prepare else None

                # a pool of SQLAlchemy may have opened the connection with another name
                own = {"application_name": str(options["application_name"])}
                if statement_timeout_ms is not None:
                    own["statement_timeout"] = str(statement_timeout_ms)
                _set_up(connection, SESSION_SETTINGS | own)
        except BaseException:
            if wrapper.connection is not None:
                wrapper.connection.close()
            raise

    return connection


def shut_down(connection: psycopg.Connection[Any]) -> bool:
    """Shut down a connection from another thread; return whether it was open.

    A thread that waits on the connection gets psycopg.OperationalError.
    """
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return False  # the connection was closed in the meantime
    return True


def through_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the connection goes through a pooler.

    Poolers report process ids of their own to their clients.
    """
    ((pid,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != connection.info.backend_pid)


def _set_up(connection: psycopg.Connection[Any], settings: dict[str, str]) -> None:
    """Set the settings that exist on the server, over those of the role, database and project."""
    connection.execute(
        "SELECT set_config(s.name, %s::jsonb ->> s.name, false) FROM pg_settings s WHERE %s::jsonb "
        "? s.name",
        [json.dumps(settings)] * 2,
    )


def _refuse_unfit_session(connection: psycopg.Connection[Any], alias: str) -> None:
    """Raise psycopg.OperationalError if a session behind a pooler has unsuitable settings."""
    names = ["default_transaction_isolation", "DateStyle", "extra_float_digits"]
    rows = connection.execute(
        "SELECT current_setting(n) FROM unnest(%s::text[]) AS n", [names]
    ).fetchall()
    isolation, style, digits = (value for (value,) in rows)

    fits = {
        names[0]: isolation == "read committed",
        names[1]: style.startswith("ISO"),
        names[2]: int(digits) > 0,
    }

    for (name, fit), found in zip(fits.items(), (isolation, style, digits), strict=True):
        if not fit:
            raise psycopg.OperationalError(
                f"the database {alias!r} is reached through a connection pooler, and its {name} is "
                f"{found!r}: workers need {SESSION_SETTINGS[name]!r}. Set it with ALTER ROLE or "
                "ALTER DATABASE, or connect without the pooler"
            )


def channel_prefix(connection: Any) -> str:
    """Return the prefix of this installation's channels; "_new" and "_done" complete it."""
    return str(run_statement(connection, "horsies_channel", {})[0][0])


class Listener:
    """A LISTEN on a connection of its own, for use with a selector.

    ``fileno`` is readable when notifications arrive. A connection may seem healthy and deliver no
    notifications: behind a pooler, over a dead link, from a server process that hangs. So each
    listener also listens on a channel of its own, to which ``self_test`` sends a notification from
    another connection. ``own`` is the suffix of that channel, if others send to it, too. While
    ``listens`` is False it does not listen on other channels.
    """

    def __init__(self, alias: str, suffix: str, *, application_name: str, own: str = "") -> None:
        self.alias = alias
        self.suffix = suffix
        self.application_name = application_name
        self.own = own or f"_{uuid.uuid4().hex[:16]}"

        self.listens = True
        self.prefix = ""
        self.channels: frozenset[str] = frozenset()  # the channels that it listens on
        self.received = False  # whether a notification arrived since this was set to False
        self.pooled = False
        self.connection: psycopg.Connection[Any] | None = None

    def open(self) -> None:
        """Connect and LISTEN.

        Raises psycopg.OperationalError if the server cannot be reached.
        """
        connection = direct_connection(self.alias, application_name=self.application_name)
        try:
            self.pooled = through_pooler(connection)
            self.prefix = channel_prefix(connection)
            own = self.prefix + self.own
            self.channels = frozenset({self.prefix + self.suffix, own})
            for channel in self.channels if self.listens else [own]:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            connection.close()
            raise

        self.connection = connection
        self.received = False

    def listen(self, wanted: bool) -> None:
        """Begin, or stop, to listen on the channel that is shared with other listeners.

        Raises psycopg.Error.
        """
        verb = sql.SQL("LISTEN {}" if wanted else "UNLISTEN {}")
        self._connection_or_raise().execute(verb.format(sql.Identifier(self.prefix + self.suffix)))
        self.listens = wanted

    def self_test(self, connection: psycopg.Connection[Any], prefix: str) -> None:
        """Send a notification on ``connection`` that must arrive here.

        Raises psycopg.Error.
        """
        connection.execute("SELECT pg_notify(%s, '')", [prefix + self.own])

    def fileno(self) -> int:
        """Return the descriptor of the socket to watch.

        Raises psycopg.OperationalError if the listener is not connected.
        """
        return self._connection_or_raise().fileno()

    def payloads(self) -> list[str]:
        """Return the payloads since the last call, without waiting.

        A pooler may give us a server connection on which another client listened. Notifications for
        that client are dropped, and do not count as received. Raises psycopg.OperationalError if
        the connection is lost.
        """
        arrived = [
            one
            for one in self._connection_or_raise().notifies(timeout=0)
            if one.channel in self.channels
        ]
        self.received = self.received or bool(arrived)
        return [notification.payload for notification in arrived if notification.payload]

    def _connection_or_raise(self) -> psycopg.Connection[Any]:
        if self.connection is None:
            raise psycopg.OperationalError("the listener is not connected")
        return self.connection

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
