"""The opening of connections by the database backend and the receivers of the user's project.

The database backend may use more than the settings, such as a tunnel or a password that changes,
and a receiver of ``connection_created`` may set the ``search_path``. So a new DatabaseWrapper of
Django opens each connection. Afterwards only psycopg's connection is used. The wrapper is never one
of ``django.db.connections``, except while the connection is opened, for receivers that use their
connection by its alias.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, InterfaceError, InternalError, OperationalError, connections
from django.db.backends.signals import connection_created
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

# Temporary errors: psycopg's, and Django's, which a backend may raise without a cause of psycopg.
AWAY_ERRORS = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
    OperationalError,
    InterfaceError,
    InternalError,
)
NOT_OURS = ("pool", "isolation_level")  # keys of OPTIONS that our connections do not use
DJANGO_READS = ("jsonb", "timestamptz")  # types for which Django has loaders of its own


def wrapper_of(alias: str, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return a new wrapper for ``alias``, without a pool.

    ``defaults`` are OPTIONS that DATABASES may override, and ``options`` override DATABASES.
    """
    own = connections[alias]
    given = {
        name: value for name, value in own.settings_dict["OPTIONS"].items() if name not in NOT_OURS
    }
    settings = {
        **own.settings_dict,
        "AUTOCOMMIT": True,
        "OPTIONS": {**defaults, **given, **options},
    }
    return type(own)(settings, alias)


def open_connection(wrapper: Any) -> psycopg.Connection[Any]:
    """Open the connection of a wrapper, and return it in autocommit mode.

    Its cursors, rows and loaders are psycopg's own, not Django's. Raises psycopg's errors. If a
    receiver of ``connection_created`` raised, the error names it.
    """
    alias = wrapper.alias
    own, connections[alias] = connections[alias], wrapper

    try:
        with naming_receivers(alias):
            wrapper.connect()
        connection = wrapper.connection = unwrapped(wrapper.connection, alias)
        with naming_receivers(alias):
            wrapper.cursor().close()  # django-tenants sets the search_path when a cursor is opened
    finally:
        connections[alias] = own

    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise psycopg.ProgrammingError(
            "a receiver of connection_created left a transaction open on a connection to the "
            f"database {alias!r}"
        )

    connection.autocommit = True
    connection.cursor_factory = psycopg.Cursor
    connection.row_factory = tuple_row

    for name in DJANGO_READS:
        if (
            loader := psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, Format.TEXT)
        ) is not None:
            connection.adapters.register_loader(name, loader)

    return connection


def drivers(connection: Any) -> Any:
    """Return the driver's connection behind a connection of a pool of SQLAlchemy.

    If there is no such pool, return the connection itself.
    """
    return getattr(connection, "driver_connection", connection)


def unwrapped(connection: Any, alias: str) -> psycopg.Connection[Any]:
    """Return psycopg's connection, and detach it from its pool, which would give it to others.

    Raises psycopg.NotSupportedError if the backend uses another driver, or hides its connection.
    """
    found: psycopg.Connection[Any] = drivers(connection)
    if found is not connection and hasattr(connection, "detach"):
        # django-db-connection-pool has replaced it by that of the driver
        vars(connection).pop("info", None)
        connection.detach()
    elif found is not connection or not isinstance(found, psycopg.Connection):
        kind = type(connection)
        raise psycopg.NotSupportedError(
            f"the ENGINE of the database {alias!r} opens a {kind.__module__}.{kind.__qualname__}, "
            "but horsies_django needs a connection of psycopg 3: use another ENGINE, or set "
            "HORSIES['DATABASE'] and HORSIES['LISTEN_DATABASE'] to an alias that opens one"
        )

    return found


@contextmanager
def naming_receivers(alias: str) -> Iterator[None]:
    """Raise only psycopg's errors in the block, in which Django opens a connection.

    If a receiver raised, the error names it. An OperationalError is temporary, and is also raised
    for errors of the backend that are neither psycopg's nor Django's. A ProgrammingError is
    permanent, and is also raised for all errors of receivers but temporary ones.
    """
    try:
        yield
    except Exception as error:
        receiver = receiver_in(error)
        found = error.__cause__ if isinstance(error, Error) else error
        if receiver is None and isinstance(found, psycopg.Error):
            raise found from found.__cause__

        stays = isinstance(error, Error | ImproperlyConfigured) or receiver is not None
        away = isinstance(found, AWAY_ERRORS) or isinstance(error, AWAY_ERRORS) or not stays
        kind = psycopg.OperationalError if away else psycopg.ProgrammingError
        what = f"{type(error).__name__}: {error}".strip()

        if receiver is None:
            raise kind(f"the database backend of {alias!r} raised {what}") from error
        raise kind(
            f"the receiver {receiver} of connection_created raised {what}. It is also called "
            f"for the connections of horsies to the database {alias!r}, whose OPTIONS have an "
            "application_name that begins with 'horsies': correct the receiver, or ignore these "
            "connections in it"
        ) from error


def receiver_in(error: BaseException) -> str | None:
    """Return the dotted name of the receiver of ``connection_created`` that raised an error.

    Return None if no receiver raised it.
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if (
            frame.f_code is type(connection_created).send.__code__
            and frame.f_locals["self"] is connection_created
        ):
            receiver = frame.f_locals.get("receiver")
            name = getattr(receiver, "__qualname__", None)
            return f"{getattr(receiver, '__module__', None)}.{name}" if name else repr(receiver)

    return None


@contextmanager
def ending_after(
    seconds: float, wrapper: Any, end: Callable[[psycopg.Connection[Any]], object]
) -> Iterator[None]:
    """Call ``end`` with the connection of the wrapper if the block takes too long.

    The time begins when the connection is opened in the block, and ``end`` is called in another
    thread after ``seconds``.
    """
    timer = threading.Timer(seconds, lambda: end(wrapper.connection))
    timer.daemon = True
    get_new_connection = wrapper.get_new_connection

    def timed(parameters: Any) -> Any:
        connection = get_new_connection(parameters)
        timer.start()
        return connection

    wrapper.get_new_connection = timed
    try:
        yield
    finally:
        timer.cancel()
