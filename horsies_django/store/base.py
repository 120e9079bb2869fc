"""Loads a statement by name and runs it on any connection: Django's own, or a direct one to PostgreSQL."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any, Protocol


class Cursor(Protocol):
    """What the store needs of a cursor; psycopg's and Django's both have it."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, query: Any, params: Any = ..., /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What the store needs of a connection; psycopg's and Django's both have it."""

    def cursor(self) -> Any: ...


@functools.cache
def load(name: str) -> str:
    """Return the text of ``sql/<name>.sql``. Raises FileNotFoundError for an unknown name."""
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def run(connection: Connection, name: str, params: Mapping[str, Any] | None = None) -> list[Any]:
    """Run the statement ``name`` and return its rows, [] when it returns none. Raises the driver's errors."""
    with executed(connection, name, params) as cursor:
        return cursor.fetchall()


def execute(connection: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Run the statement ``name``, which returns no rows, and return how many it touched."""
    with executed(connection, name, params) as cursor:
        return cursor.rowcount


@contextmanager
def executed(connection: Connection, name: str, params: Mapping[str, Any] | None) -> Iterator[Cursor]:
    """Give the cursor on which the statement ``name`` has run."""
    with connection.cursor() as cursor:
        cursor.execute(load(name), params)
        yield cursor
