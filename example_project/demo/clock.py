"""The database's clock, which all moments of the demo are told by."""

from __future__ import annotations

import datetime as dt

from django.db import connection


def now() -> dt.datetime:
    """Return the moment."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
