"""The database's clock, which gives all times of the demo."""

from __future__ import annotations

import datetime as dt

from django.db import connection


def now() -> dt.datetime:
    """Return the current time of the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
