"""Reads the history of counts. Only reads, without locks."""

from __future__ import annotations

import datetime as dt

from horsies_django.core.counts import Total
from horsies_django.store.base import Connection
from horsies_django.store.history import HOUR, MINUTE, HistoryStore

LONGEST_BY_MINUTES = dt.timedelta(hours=2)


def totals(connection: Connection, span: dt.timedelta) -> list[Total]:
    """Return how often each result of each task occurred in the last ``span``, up to two hours by minutes, else by hours.

    Workers write once a minute, so the last minute is missing. Raises the errors of the driver.
    """
    return HistoryStore(connection).totals(MINUTE if span <= LONGEST_BY_MINUTES else HOUR, span)
