"""A database that refuses to change some rows, as a project's trigger may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import sql


@contextmanager
def refused(
    table: str, condition: str = "true", event: str = "UPDATE", code: str = "P0001"
) -> Iterator[None]:
    """Refuse updates of the rows for which a condition on ``new`` holds.

    The detail of the error contains "secret"; ``code`` is its SQLSTATE.
    """
    name = f"refuse_{table}"
    sql(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE 'refused' USING ERRCODE = '{code}', DETAIL = 'Failing row contains "
        "(secret)'; END $$"
    )
    sql(
        f"CREATE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE "
        f"FUNCTION {name}()"
    )

    try:
        yield
    finally:
        sql(f"DROP FUNCTION {name} CASCADE")
