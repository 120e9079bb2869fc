"""The base of all stores: it loads a statement by name and runs it on any connection.

The connection is Django's own, or a direct one to PostgreSQL. Functions that reset a session are
here, too.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import resources
from typing import Any, Protocol

import psycopg
from django.db import ProgrammingError
from django.dispatch import Signal

from horsies_django.core.errors import Restorable
from horsies_django.core.records import NewTasks

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PLANS_SECONDS = 10.0  # how long a session keeps the plans of its statements
UNDEFINED = ("42P01", "42883", "42703", "42704")  # SQLSTATEs: no such table, function, column, type
LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE: a statement has waited for a lock for too long
QUERY_CANCELED = "57014"  # SQLSTATE: a statement has taken too long, or was canceled


class NotMigrated(Restorable, ProgrammingError):  # noqa: N818 - a state of the database
    """The database does not have the tables or functions that this release needs.

    The message contains the command that creates them.
    """

    def __init__(self, alias: str, problem: str) -> None:
        where = "" if alias == "default" else f" --database={alias}"
        super().__init__(
            f"the database {alias!r} does not have the tables and functions of this release of "
            f"horsies_django ({problem}): "
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
    """The base of classes that run statements on the given connection.

    Tests pass ``now`` in place of the database's clock.
    """

    def __init__(self, connection: Connection, now: dt.datetime | None = None) -> None:
        self.connection = connection
        self.now = now

    def run(self, name: str, /, **params: Any) -> list[Any]:
        """Run a statement or call a function by name, and return its rows.

        See ``run_statement``.
        """
        return run_statement(self.connection, name, params or None)

    def execute(self, name: str, /, **params: Any) -> int:
        """Run a statement by name, and return the number of changed rows; see ``execute``."""
        return execute(self.connection, name, params or None)

    def report_written(self, sent: NewTasks | None = None) -> None:
        """Send ``tasks_written``."""
        tasks_written.send(type(self), connection=self.connection, sent=sent)


class OneCursor:
    """A direct connection whose statements share one cursor, and so run one after another.

    A new cursor for each statement would search again for the dumper and the loader of each type.
    Results are read in binary form, so that a pass that claims 200 tasks takes 4 % less time.
    """

    connection: psycopg.Connection[Any] | None = None

    def on(self, connection: psycopg.Connection[Any]) -> OneCursor:
        """Use this connection from now on, with a new cursor if it is another one."""
        if connection is not self.connection:
            self.connection = connection
            self.shared = connection.cursor(binary=True)
        return self

    def cursor(self) -> AbstractContextManager[Any]:
        return nullcontext(self.shared)


# Sent after a statement that may have made tasks due, or asked running ones to stop, for the test
# kit. ``sent`` are the tasks that it has inserted, or None.
tasks_written = Signal()


@functools.cache
def sql_text(name: str) -> str:
    """Return the text of ``sql/<name>.sql``.

    Raises FileNotFoundError if there is no such file.
    """
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


@functools.cache
def calling(function: str, names: tuple[str, ...]) -> str:
    """Return a statement that calls a function of the database.

    The names of its parameters are ``names`` with the prefix "p_".
    """
    return f"SELECT * FROM {function}({', '.join(f'p_{name} => %({name})s' for name in names)})"


def statement_text(name: str, params: Mapping[str, Any] | None = None) -> str:
    """Return the statement in ``sql/<name>.sql``, or a call of the function ``name``.

    The names of functions begin with "horsies_".
    """
    return calling(name, tuple(params or ())) if name.startswith("horsies_") else sql_text(name)


def run_statement(
    connection: Connection, name: str, params: Mapping[str, Any] | None = None
) -> list[Any]:
    """Run a statement or call a function by name, and return its rows.

    Raises Django's errors, including NotMigrated, on a Django connection, and the driver's errors
    on a direct one.
    """
    with executed(connection, name, params) as cursor:
        return cursor.fetchall()


def execute(connection: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Run a statement by name that returns no rows; return how many rows it changed."""
    with executed(connection, name, params) as cursor:
        return cursor.rowcount


@contextmanager
def executed(
    connection: Connection, name: str, params: Mapping[str, Any] | None
) -> Iterator[Cursor]:
    with connection.cursor() as cursor:
        with migrated(connection):
            cursor.execute(statement_text(name, params), params)
        yield cursor


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
    """Return NotMigrated if the cause of an error is a missing migration, else None.

    It is the error of a Django connection.
    """
    undefined = getattr(error.__cause__, "sqlstate", None) in UNDEFINED
    return NotMigrated(connection.alias, error_text(error)) if undefined else None


def error_text(error: Exception) -> str:
    """Return the message of an error of Django or the driver, without its detail and context.

    These contain values of rows and the text of functions.
    """
    diagnosis = getattr(error, "diag", None) or getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or error).strip()


def discard(connection: Any) -> None:
    """Reset a session to the state in which it was opened.

    psycopg is also reset, because it does not always notice that the server has dropped its
    prepared statements: version 3.2 never notices it, later versions do not if they had prepared no
    statement when the session was last reset. Raises the driver's errors, also if the session is in
    a transaction.
    """
    execute(connection, "sessions/discard")
    connection._prepared.clear()


def forget_plans(connection: Connection, planned_at: float) -> float:
    """Discard the plans of a session if they are older than ``PLANS_SECONDS``.

    The tables may have been nearly empty when the plans were made. ``planned_at`` and the result
    are the time of the plans, by the monotonic clock. Raises the driver's errors.
    """
    if (moment := time.monotonic()) - planned_at < PLANS_SECONDS:
        return planned_at
    execute(connection, "sessions/forget_plans")
    return moment


def now(connection: Connection) -> dt.datetime:
    """Return the time of the database's clock."""
    ((microseconds,),) = run_statement(connection, "sessions/clock")
    return EPOCH + dt.timedelta(microseconds=microseconds)


def next_due(
    connection: Connection, queues: Sequence[str], after: dt.datetime, until: dt.datetime
) -> dt.datetime | None:
    """Return the earliest due time of a waiting task of these queues, or None if there is none.

    Only times after ``after`` and up to ``until`` count.
    """
    params = {"queues": list(queues), "after": after, "until": until}
    ((microseconds,),) = run_statement(connection, "tasks/next_due", params)
    return None if microseconds is None else EPOCH + dt.timedelta(microseconds=microseconds)
