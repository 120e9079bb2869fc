"""A database that refuses to change some rows, as a trigger of the project may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def refused(table: str, condition: str) -> Iterator[None]:
    """Let the database refuse updates of the rows for which a condition on ``new`` holds; the detail contains "secret"."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'refused' USING DETAIL = 'Failing row contains (secret)'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
