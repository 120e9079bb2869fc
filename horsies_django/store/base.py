"""Loads a statement by name and runs it on any connection: Django's own, or a direct one to
PostgreSQL. Resets sessions.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import resources
from typing import Any, Protocol

import psycopg
from django.db import ProgrammingError

from horsies_django.core.errors import Restorable

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PLANS_SECONDS = 10.0  # for which a session that lives long keeps the plans of its statements
UNDEFINED = ("42P01", "42883", "42703", "42704")  # SQLSTATEs: no such table, function, column, type
LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE: a statement has waited for a lock for too long


class NotMigrated(Restorable, ProgrammingError):  # noqa: N818 - a state of the database
    """The tables or functions that this release needs are not there.

    The message says what to run.
    """

    def __init__(self, alias: str, said: str) -> None:
        where = "" if alias == "default" else f" --database={alias}"
        super().__init__(
            f"the database {alias!r} does not have the tables and functions of this release of "
            f"horsies_django ({said}): "
            f"run 'python manage.py migrate{where}'"
        )


class Cursor(Protocol):
    """The part of a cursor that the store uses; those of psycopg and Django have it."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, query: Any, params: Any = ..., /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """The part of a connection that the store uses; those of psycopg and Django have it."""

    def cursor(self) -> Any: ...


class Store:
    """Runs statements on the given connection.

    Tests pass ``now`` in place of the database's clock.
    """

    def __init__(self, connection: Connection, now: dt.datetime | None = None) -> None:
        self.connection = connection
        self.now = now

    def run(self, name: str, /, **params: Any) -> list[Any]:
        """Run the statement, or call the function, ``name`` and return its rows, as the function
        ``run`` does.
        """
        return run(self.connection, name, params or None)

    def execute(self, name: str, /, **params: Any) -> int:
        """Run the statement ``name``, and return the number of rows it changed, as the function
        ``execute`` does.
        """
        return execute(self.connection, name, params or None)


class OneCursor:
    """A direct connection whose statements share one cursor, and so run one after another.

    A new cursor for each of them would look up again how each type is written and read. Results
    come in binary form: a pass that claims 200 tasks takes 4 % less time.
    """

    connection: psycopg.Connection[Any] | None = None

    def on(self, connection: psycopg.Connection[Any]) -> OneCursor:
        """Use this connection from now on, with a cursor of its own if it is another one."""
        if connection is not self.connection:
            self.connection = connection
            self.shared = connection.cursor(binary=True)
        return self

    def cursor(self) -> AbstractContextManager[Any]:
        return nullcontext(self.shared)


watchers: list[Callable[[Connection, str, Any], None]] = []  # called after each statement


@functools.cache
def load(name: str) -> str:
    """Return the text of ``sql/<name>.sql``. Raises FileNotFoundError for an unknown name."""
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


@functools.cache
def calling(function: str, names: tuple[str, ...]) -> str:
    """Return a statement that calls a function of the database, whose parameters are these names
    with "p_".
    """
    return f"SELECT * FROM {function}({', '.join(f'p_{name} => %({name})s' for name in names)})"


def text_of(name: str, params: Mapping[str, Any] | None = None) -> str:
    """Return a statement: of ``sql/<name>.sql``, or, if ``name`` begins with "horsies_", a call of
    that function.
    """
    return calling(name, tuple(params or ())) if name.startswith("horsies_") else load(name)


def run(connection: Connection, name: str, params: Mapping[str, Any] | None = None) -> list[Any]:
    """Run the statement, or call the function, ``name`` and return its rows.

    Raises Django's errors, including NotMigrated, on a Django connection, and the driver's errors
    on a direct one.
    """
    with executed(connection, name, params) as cursor:
        return cursor.fetchall()


def execute(connection: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Run the statement ``name``, which returns no rows; return how many rows it changed."""
    with executed(connection, name, params) as cursor:
        return cursor.rowcount


@contextmanager
def executed(
    connection: Connection, name: str, params: Mapping[str, Any] | None
) -> Iterator[Cursor]:
    with connection.cursor() as cursor:
        with migrated(connection):
            cursor.execute(text_of(name, params), params)
        yield cursor

    for watch in watchers:
        watch(connection, name, params)


@contextmanager
def watching(connection: Connection, watch: Callable[[str, Any], None]) -> Iterator[None]:
    """Call a function with the name and the parameters of each statement that has run on a
    connection.
    """

    def on_that(used: Connection, name: str, params: Any) -> None:
        if used is connection:
            watch(name, params)

    watchers.append(on_that)
    try:
        yield
    finally:
        watchers.remove(on_that)


@contextmanager
def migrated(connection: Any) -> Iterator[None]:
    """Raise NotMigrated if a statement fails because the database is not migrated."""
    try:
        yield
    except ProgrammingError as error:
        if (found := not_migrated(connection, error)) is not None:
            raise found from error.__cause__
        raise


def not_migrated(connection: Any, error: ProgrammingError) -> NotMigrated | None:
    """Return NotMigrated if the error of a Django connection is a missing migration, else None."""
    undefined = getattr(error.__cause__, "sqlstate", None) in UNDEFINED
    return NotMigrated(connection.alias, said(error)) if undefined else None


def said(error: Exception) -> str:
    """Return the database's message without its detail and context, which contain values of rows
    and the text of functions.

    The error is Django's or the driver's.
    """
    diagnosis = getattr(error, "diag", None) or getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or error).strip()


def discard(connection: Any) -> None:
    """Reset a session to the state in which it was opened. Raises the driver's errors, also inside
    a transaction.

    The driver does not always notice that the server has dropped the statements that it prepared:
    psycopg 3.2 never, later versions not if they had prepared none when the session was last reset.
    """
    execute(connection, "sessions/discard")
    connection._prepared.clear()


def forget_plans(connection: Connection, planned_at: float) -> float:
    """Have a session plan its statements anew if it did so ``PLANS_SECONDS`` ago; return when it
    did, by the monotonic clock.

    The tables may have been nearly empty then. Raises the driver's errors.
    """
    if (moment := time.monotonic()) - planned_at < PLANS_SECONDS:
        return planned_at
    execute(connection, "sessions/forget_plans")
    return moment


def now(connection: Connection) -> dt.datetime:
    """Return the time of the database's clock."""
    ((microseconds,),) = run(connection, "sessions/clock")
    return EPOCH + dt.timedelta(microseconds=microseconds)


def next_due(
    connection: Connection, queues: Sequence[str], after: dt.datetime, until: dt.datetime
) -> dt.datetime | None:
    """Return the earliest due time after ``after`` and up to ``until`` of a waiting task of these
    queues, or None.
    """
    params = {"queues": list(queues), "after": after, "until": until}
    ((microseconds,),) = run(connection, "tasks/next_due", params)
    return None if microseconds is None else EPOCH + dt.timedelta(microseconds=microseconds)
